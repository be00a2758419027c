"""MLX affine quantisation (groups of 64), as the GPU kernels of MLX compute it."""

import contextlib

import torch

BITS = 4
GROUP = 64


def round_away(x):
    """Rounds halves away from zero, like the GPU kernels (torch.round goes to even)."""
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def quantise(weight, bits=BITS):
    """Codes [..., out, in/64, 64], scales and biases [..., out, in/64] of a bfloat16 matrix or a stack of them."""
    levels = 2**bits - 1
    groups = weight.to(torch.bfloat16).float().unflatten(-1, (-1, GROUP))
    high = groups.amax(-1).clamp(min=0)
    low = groups.amin(-1)
    step = ((high - low) / levels).clamp(min=1e-7)
    low_side = low.abs() > high.abs()
    step = torch.where(low_side, step, -step)
    edge = torch.where(low_side, low, high)
    zero_code = round_away(edge / step)
    usable = zero_code != 0
    scale = torch.where(usable, edge / torch.where(usable, zero_code, torch.ones_like(zero_code)), step)
    bias = torch.where(usable, edge, torch.zeros_like(edge))
    codes = round_away((groups - bias[..., None]) / scale[..., None]).clamp(0, levels)
    return codes, scale.to(torch.bfloat16), bias.to(torch.bfloat16)


def dequantise(codes, scales, biases):
    values = codes * scales.float()[..., None] + biases.float()[..., None]
    return values.flatten(-2).to(torch.bfloat16)


def pack(codes, bits=BITS):
    """32-bit words, the first code in the lowest bits."""
    lanes = codes.flatten(-2).unflatten(-1, (-1, 32 // bits)).to(torch.int64)
    shifts = torch.arange(0, 32, bits, device=codes.device)
    return (lanes << shifts).sum(-1).to(torch.uint32)


def unpack(words, bits=BITS):
    """The codes [..., groups, 64] of packed words."""
    shifts = torch.arange(0, 32, bits, device=words.device)
    lanes = (words.to(torch.int64)[..., None] >> shifts) & (2**bits - 1)
    return lanes.flatten(-2).unflatten(-1, (-1, GROUP))


@contextlib.contextmanager
def quantised_weights(matrices):
    """Replaces the matrices, given as pairs (parameter, bits), by their quantised copies for one forward and backward
    pass (straight-through gradients)."""
    kept = [matrix.data for matrix, _ in matrices]
    for matrix, bits in matrices:
        matrix.data = dequantise(*quantise(matrix.data, bits)).to(matrix.dtype)
    try:
        yield
    finally:
        for (matrix, _), data in zip(matrices, kept, strict=True):
            matrix.data = data
