"""DFlash drafts: block attention over the target's taps and, in DFlash2, two-tap dynamic convolutions and a candidate
selector."""

import json
import pathlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from model import rotary_table, rotate

VERSION_2_FIELDS = ("conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k")
# Candidates whose recall is reported for a draft without a selector.
REPORTED_CANDIDATES = 16


@dataclass
class DraftConfig:
    version: int = 2
    vocab_size: int = 8192
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    sliding_window: int = 512
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    block_size: int = 8
    target_layer_ids: tuple = (1, 4, 6)
    num_target_layers: int = 8
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 32
    selector_top_k: int = 16
    mask_token_id: int = 8165
    layer_types: tuple = ()

    def __post_init__(self):
        self.target_layer_ids = tuple(self.target_layer_ids)
        self.layer_types = tuple(self.layer_types) or ("sliding_attention",) * self.num_hidden_layers

    @property
    def causal_sliding(self):
        """Without an is_causal key, which version 1 leaves out, sliding layers are causal inside the block and full
        layers are not; version 2 says that no layer is."""
        return self.version == 1

    def hf_config(self):
        config = {
            "architectures": ["DFlash2DraftModel" if self.version == 2 else "DFlashDraftModel"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dflash_config": {
                "block_size": self.block_size,
                "conv_group_size": self.conv_group_size,
                "conv_kernel_size": self.conv_kernel_size,
                "mask_token_id": self.mask_token_id,
                "selector_rank": self.selector_rank,
                "selector_top_k": self.selector_top_k,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "dtype": "bfloat16",
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "is_causal": False,
            "layer_types": list(self.layer_types),
            "max_position_embeddings": 262144,
            "max_window_layers": self.num_hidden_layers,
            "model_type": "qwen3",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "num_target_layers": self.num_target_layers,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": False,
            "use_sliding_window": True,
            "vocab_size": self.vocab_size,
        }
        if self.version == 1:
            del config["is_causal"]
            for name in VERSION_2_FIELDS:
                del config["dflash_config"][name]
        return config


class Norm(nn.Module):
    """RMS norm with plain weight."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight.to(x.dtype)


def matrix(inputs, outputs, std=0.02):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


class BlockConv(nn.Module):
    """Two-tap convolution over the rows of one block; blocks are [..., B, H], so it restarts at each block."""

    def __init__(self, c):
        super().__init__()
        self.taps, self.groups = c.conv_kernel_size, c.hidden_size // c.conv_group_size
        base = torch.zeros(2, self.taps, c.hidden_size)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = matrix(c.hidden_size, 2 * self.taps * self.groups, 0.0)

    def convolve(self, x, delta, side):
        grouped = x.float().unflatten(-1, (self.groups, -1))
        base = self.base_kernel[side].float().unflatten(-1, (self.groups, -1))
        out = 0
        for tap in range(self.taps):
            shifted = F.pad(grouped, (0, 0, 0, 0, tap, 0))[..., : x.shape[-2], :, :]
            out = out + (base[tap] + delta[..., tap, :, None]) * shifted
        return out.flatten(-2).to(x.dtype)

    def prepare(self, x):
        delta = self.kernel_projection(x).float().unflatten(-1, (2, self.taps, self.groups))
        return self.convolve(x, delta[..., 0, :, :], 0), delta[..., 1, :, :]

    def finish(self, y, delta):
        return self.convolve(y, delta, 1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = matrix(c.hidden_size, self.heads * self.dim)
        self.k_proj = matrix(c.hidden_size, self.kv_heads * self.dim)
        self.v_proj = matrix(c.hidden_size, self.kv_heads * self.dim)
        self.o_proj = matrix(self.heads * self.dim, c.hidden_size, 0.01)
        self.q_norm = Norm(self.dim, c.rms_norm_eps)
        self.k_norm = Norm(self.dim, c.rms_norm_eps)

    def keys(self, x, rotary):
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, -1)))
        return rotate(k, *rotary), self.v_proj(x).unflatten(-1, (self.kv_heads, -1))

    def forward(self, context, rows, context_rotary, row_rotary, mask):
        q = rotate(self.q_norm(self.q_proj(rows).unflatten(-1, (self.heads, -1))), *row_rotary)
        parts = self.keys(context, context_rotary), self.keys(rows, row_rotary)
        k, v = (
            torch.cat(pair, 1).repeat_interleave(self.heads // self.kv_heads, 2) for pair in zip(*parts, strict=True)
        )
        out = F.scaled_dot_product_attention(
            q.to(v.dtype).transpose(1, 2), k.to(v.dtype).transpose(1, 2), v.transpose(1, 2), attn_mask=mask[:, None]
        )
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = matrix(c.hidden_size, c.intermediate_size)
        self.up_proj = matrix(c.hidden_size, c.intermediate_size)
        self.down_proj = matrix(c.intermediate_size, c.hidden_size, 0.01)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def between(conv, x, sublayer):
    """The sublayer with a convolution before and after it, if there is one."""
    if conv is None:
        return sublayer(x)
    x, delta = conv.prepare(x)
    return conv.finish(sublayer(x), delta)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.block = c.block_size
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.mlp = FeedForward(c)
        self.attention_conv = BlockConv(c) if c.version == 2 else None
        self.mlp_conv = BlockConv(c) if c.version == 2 else None

    def forward(self, context, h, context_rotary, row_rotary, mask):
        """h is [batch, blocks, B, H]."""

        def attend(x):
            rows = self.self_attn(context, x.flatten(1, 2), context_rotary, row_rotary, mask)
            return rows.unflatten(1, (-1, self.block))

        h = h + between(self.attention_conv, self.input_layernorm(h), attend)
        return h + between(self.mlp_conv, self.post_attention_layernorm(h), self.mlp)


class Selector(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab_size, c.selector_rank) * 0.02)
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab_size, c.selector_rank))
        self.hidden_projection = matrix(c.hidden_size, c.selector_rank)

    def scores(self, unary, candidates, gate, previous):
        """unary, candidates [..., k], gate [..., R], previous [...] -> scores [..., k] in float32."""
        left = F.embedding(previous, self.predecessor_codebook).float() * gate.float()
        right = F.embedding(candidates, self.successor_codebook).float()
        return unary.float() + (left[..., None, :] * right).sum(-1)


class Draft(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        c = self.config = config or DraftConfig()
        self.fc = matrix(len(c.target_layer_ids) * c.hidden_size, c.hidden_size)
        self.hidden_norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.candidate_selector = Selector(c) if c.version == 2 else None

    def rows(self, ids, taps, anchors, embedding):
        """Final hidden rows 1..B-1 of the blocks at the anchors.

        ids [batch, T], taps [batch, T, n * H], anchors [batch, blocks] (positions) -> [batch, blocks, B - 1, H].
        A block sees context positions before its anchor, within the window, and its own rows; nothing else.
        """
        c, length = self.config, ids.shape[1]
        context = self.hidden_norm(self.fc(taps))
        offsets = torch.arange(c.block_size, device=ids.device)
        positions = (anchors[..., None] + offsets).flatten(1)
        tokens = torch.full((*anchors.shape, c.block_size), c.mask_token_id, device=ids.device, dtype=torch.long)
        tokens[..., 0] = ids.gather(1, anchors)
        h = F.embedding(tokens, embedding)
        cos, sin = rotary_table(c.head_dim, c.rope_theta, length + c.block_size, ids.device)
        masks = {kind: self.mask(kind, length, anchors, positions) for kind in set(c.layer_types)}
        for kind, layer in zip(c.layer_types, self.layers, strict=True):
            rotary = (cos[positions], sin[positions])
            h = layer(context, h, (cos[:length], sin[:length]), rotary, masks[kind])
        return self.norm(h)[:, :, 1:]

    def mask(self, kind, length, anchors, positions):
        """What the block rows see: [batch, rows, length + rows]."""
        c, sliding = self.config, kind == "sliding_attention"
        start = torch.arange(length, device=anchors.device)
        visible = start < anchors.repeat_interleave(c.block_size, 1)[..., None]
        if sliding:
            visible = visible & (positions[..., None] - start < c.sliding_window)
        row = torch.arange(positions.shape[1], device=anchors.device)
        own = (row // c.block_size)[:, None] == row // c.block_size
        if sliding and c.causal_sliding:
            own = own & (row <= row[:, None])
        return torch.cat([visible, own.expand(len(anchors), -1, -1)], -1)

    @torch.no_grad()
    def propose(self, ids, taps, anchors, embedding):
        """Greedy drafts [batch, blocks, B - 1] and the candidates [batch, blocks, B - 1, k], best unary score first.
        Without a selector the drafts are the first candidates."""
        hidden = self.rows(ids, taps, anchors, embedding)
        count = self.config.selector_top_k if self.candidate_selector else REPORTED_CANDIDATES
        unary, candidates = F.linear(hidden, embedding).float().topk(count, -1)
        if self.candidate_selector is None:
            return candidates[..., 0], candidates
        gate = self.candidate_selector.hidden_projection(hidden)
        previous, drafts = ids.gather(1, anchors), []
        for row in range(hidden.shape[2]):
            scores = self.candidate_selector.scores(unary[:, :, row], candidates[:, :, row], gate[:, :, row], previous)
            previous = candidates[:, :, row].gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            drafts.append(previous)
        return torch.stack(drafts, -1), candidates


def draft_tensors(draft):
    return {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in draft.state_dict().items()}


def load_draft(folder, device):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    values = {**config, **config["dflash_config"], "rope_theta": config["rope_parameters"]["rope_theta"]}
    values["version"] = 2 if config["architectures"] == ["DFlash2DraftModel"] else 1
    draft = Draft(DraftConfig(**{name: values[name] for name in DraftConfig.__dataclass_fields__ if name in values}))
    draft.load_state_dict(load_file(pathlib.Path(folder) / "model.safetensors"))
    return draft.to(device, torch.bfloat16).eval().requires_grad_(False)
