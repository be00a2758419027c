"""Golden MLX target: target-r2 in MLX affine 4-bit form, made by mlx-lm's own conversion on the MLX CPU backend.

One module has an 8-bit override. The stage dumps come from transformers in float32 on the dequantised weights:
scale * code + bias in float32 (the product is exact, so there is one rounding), norms as stored by mlx-lm, that is
1 + w rounded to bfloat16 (handed to transformers as that value minus one, which float32 holds exactly), all other
tensors as stored. mlx-lm itself, run in float32 on the packed weights, must agree with the dump within 1e-5.
``unpack.safetensors`` holds MLX's own quantize and dequantize results as an unpacking oracle.

Rerun: ``python tools/golden/make.py target-r2 target-r2-mlx4 --out tests/golden``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import (
    load_safetensors,
    normal,
    relative_l2,
    save_json,
    save_safetensors,
    setup_torch,
    stage_metadata,
    versions,
)
from target import EOS_ID, load_model, reference_name, run_target

OVERRIDE = "language_model.model.layers.1.mlp.down_proj"
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight")
NORMS += ("k_norm.weight",)


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of a packed tensor, lowest bits first; 4 and 8 bits only."""
    wide = words.to(torch.int64) & 0xFFFFFFFF
    codes = (wide[..., None] >> torch.arange(0, 32, bits)) & (2**bits - 1)
    return codes.flatten(-2)


def dequantise(words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    bits = 32 * words.shape[-1] // (scales.shape[-1] * 64)
    codes = unpack(words, bits).float().unflatten(-1, (-1, 64))
    return (codes * scales.float()[..., None] + biases.float()[..., None]).flatten(-2)


def one_override(path, _module):
    return {"group_size": 64, "bits": 8} if path == OVERRIDE else True


def convert(source: Path, directory: Path, predicate=None) -> None:
    """mlx-lm's conversion steps (load, cast, quantise, save) without the tokenizer that its command line insists on.
    Without a predicate the model's own one decides which modules are quantised, and how."""
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    from mlx_lm.utils import load_model as mlx_load
    from mlx_lm.utils import quantize_model, save_config, save_model

    model, config = mlx_load(source, lazy=True)
    cast = getattr(model, "cast_predicate", None) or model.language_model.cast_predicate

    def to_bf16(path, value):
        return value.astype(mx.bfloat16) if cast(path) and mx.issubdtype(value.dtype, mx.floating) else value

    model.update(tree_map_with_path(to_bf16, model.parameters()))
    model, config = quantize_model(model, config, 64, 4, quant_predicate=predicate)
    save_model(directory, model)
    save_config(config, directory / "config.json")


def hugging_face_form(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Float32 tensors under transformers' names, exactly what the MLX checkpoint says."""
    result = {}
    for name, value in tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if module + ".scales" in tensors:
            value = dequantise(value, tensors[module + ".scales"], tensors[module + ".biases"])
        value = value.float()
        if name.endswith("conv1d.weight"):
            value = value.transpose(1, 2).contiguous()
        elif name.endswith(NORMS):
            value = value - 1.0
        result[name.replace("language_model.model.", "model.language_model.", 1)] = value
    for name in [name for name in result if name.endswith(".switch_mlp.gate_proj.weight")]:
        stem = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (result.pop(f"{stem}switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down"))
        result[stem + "experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
        result[stem + "experts.down_proj"] = down
    return result


def from_mlx(array) -> torch.Tensor:
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16)).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def to_mlx(tensor: torch.Tensor):
    import mlx.core as mx

    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.int16).numpy().view(np.uint16)).view(mx.bfloat16)
    return mx.array(tensor.numpy())


def unpack_oracle(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    import mlx.core as mx

    step = torch.arange(64)
    thirds = torch.where(step % 3 == 0, 0.003, 0.0)
    sources = {
        "example_a": (-1.0 + 0.125 * (step % 16).float())[None],
        "example_b": (-0.6 + 0.01 * step.double() + thirds.double()).float()[None],
        "example_c": (-0.5 - 0.01 * step.double()).float()[None],
        "constant": torch.full((1, 64), 0.37),
        "zeros": torch.zeros(1, 64),
        "one_sided": (0.01 + 0.02 * step.float())[None],
        "random": normal(21, "unpack", (4, 192), 0.7, 0.0, torch.float32),
    }
    out: dict[str, torch.Tensor] = {}

    def vector(name: str, words, scales, biases) -> None:
        out[name + ".weight"], out[name + ".scales"], out[name + ".biases"] = words, scales, biases
        bits = 32 * words.shape[-1] // (scales.shape[-1] * 64)
        arrays = (to_mlx(words), to_mlx(scales), to_mlx(biases))
        out[name + ".mlx_dequantized"] = from_mlx(mx.dequantize(*arrays, group_size=64, bits=bits))
        out[name + ".codes"] = unpack(words, bits).to(torch.uint8)
        out[name + ".float32"] = dequantise(words, scales, biases)

    for name, values in sources.items():
        values = values.to(torch.bfloat16)
        for bits in (4, 8):
            parts = mx.quantize(to_mlx(values), group_size=64, bits=bits)
            out[f"{name}.b{bits}.source"] = values
            vector(f"{name}.b{bits}", *(from_mlx(part) for part in parts))
    for label, module in (("b4", "language_model.model.layers.3.self_attn.k_proj"), ("b8", OVERRIDE)):
        parts = (tensors[f"{module}.{part}"] for part in ("weight", "scales", "biases"))
        vector(f"checkpoint.{label}", *(part[:16] for part in parts))
    for name in [name for name in out if name.endswith(".mlx_dequantized")]:
        base = name.removesuffix(".mlx_dequantized")
        exact, biases = out[base + ".float32"], out[base + ".biases"].float().repeat_interleave(64, dim=-1)
        # MLX rounds to bfloat16 after the product and again after the sum: half an ulp of each.
        bound = ((exact - biases).abs() + exact.abs()) * 2.0**-8 + 1e-30
        if not bool(((out[name].float() - exact).abs() <= bound).all()):
            raise RuntimeError(f"{name}: MLX's dequantize and scale * code + bias disagree")
    return out


def second_opinion(directory: Path, stages: dict[str, torch.Tensor]) -> dict[str, float]:
    """mlx-lm in float32 on the packed weights: every layer on the dump's own input, then the whole model's logits."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model as mlx_load

    model, _ = mlx_load(directory)
    model.update(
        tree_map(lambda value: value.astype(mx.float32) if value.dtype == mx.bfloat16 else value, model.parameters())
    )
    layers = model.language_model.model.layers
    worst = 0.0
    for index, layer in enumerate(layers):
        rows = to_mlx(stages[f"hidden.{index}"])[None]
        result = layer(rows, mask=None if layer.is_linear else "causal", cache=None)
        worst = max(worst, relative_l2(from_mlx(result[0]), stages[f"hidden.{index + 1}"]))
    logits = from_mlx(model(to_mlx(stages["input_ids"])[None])[0])
    return {
        "mlx-lm float32, worst layer": worst,
        "mlx-lm float32, logits end to end": relative_l2(logits, stages["logits"]),
    }


def make_mlx(out: Path) -> dict[str, float]:
    setup_torch()
    source, directory = out / "target-r2", out / "target-r2-mlx4"
    ids = load_safetensors(source / "stages.safetensors")["input_ids"]
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "hf"
        plain.mkdir()
        for name in ("config.json", "model.safetensors"):  # the dumps lie beside them and must not be loaded
            shutil.copy(source / name, plain / name)
        converted = Path(temporary) / "mlx"
        convert(plain, converted, one_override)
        tensors = load_safetensors(converted / "model.safetensors")
        config = json.loads((converted / "config.json").read_text(encoding="utf-8"))
    save_json(directory / "config.json", config)
    save_safetensors(directory / "model.safetensors", tensors, {"format": "mlx"})

    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary)
        text = json.loads((source / "config.json").read_text(encoding="utf-8"))
        save_json(plain / "config.json", text)
        save_safetensors(plain / "model.safetensors", hugging_face_form(tensors), {"format": "pt"})
        stages = run_target(load_model(plain), ids)
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(directory / name, Path(temporary) / name)
        opinion = second_opinion(Path(temporary), stages)
    stages = {name: value for name, value in stages.items() if not name.endswith(".mixer")}  # for size
    top = stages["greedy.logits"].topk(2, dim=-1).values
    scales = [value for name, value in tensors.items() if name.endswith(".scales")]
    report = {
        "smallest greedy margin": float((top[:, 0] - top[:, 1]).min()),
        "largest greedy id": int(stages["greedy.ids"].max()),
        "negative scales": sum(int((value < 0).sum()) for value in scales),
        "scales": sum(value.numel() for value in scales),
        "stops": int((stages["greedy.ids"] == EOS_ID).sum()),
        **opinion,
    }
    if report["smallest greedy margin"] < 1e-3 or max(opinion.values()) > 1e-5:
        raise RuntimeError(f"weak or wrong set: {report}")
    found = versions("torch", "transformers", "safetensors", "numpy", "mlx", "mlx-lm")
    what = "target-r2-mlx4: prefill of input_ids, then greedy decoding, on the dequantised weights"
    reference = reference_name() + "; checkpoint: mlx-lm"
    save_safetensors(directory / "stages.safetensors", stages, stage_metadata(what, reference, found))
    what = "packed vectors: source, MLX quantize, MLX dequantize, codes, scale * code + bias in float32"
    metadata = stage_metadata(what, "mlx.core (CPU backend)", versions("mlx", "torch", "numpy"))
    save_safetensors(directory / "unpack.safetensors", unpack_oracle(tensors), metadata)
    return report
