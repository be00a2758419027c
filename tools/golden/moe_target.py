"""Golden mixture-of-experts targets: transformers' own Qwen3.5 MoE model on small random checkpoints.

``moe-hf`` is stored as released (stacked expert tensors, BF16). ``moe-mlx4`` is another model of that kind in MLX
affine form, converted by mlx-lm with its own choice of modules: 4 bits, router and shared expert's gate 8 bits, experts
as ``switch_mlp``. Both have the hidden size and the vocabulary of ``target-r2``, so that ``draft-w64`` fits them.

Rerun: ``python tools/golden/make.py moe-hf moe-mlx4 --out tests/golden``.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from pathlib import Path

import torch
from common import load_safetensors, save_json, save_safetensors, setup_torch, stage_metadata, versions
from mlx_target import convert, hugging_face_form, second_opinion
from target import R2_TEXT, check_health, draw_weights, load_model, prompt_ids, run_target

PROMPT_TOKENS = 33  # one page and a row
GREEDY_TOKENS = 12
REFERENCE = "transformers models/qwen3_5_moe (AutoModelForCausalLM, eager attention, torch fallback kernels)"


def text_config(attention: int, **sizes: int) -> dict:
    """Four layers, one of them with full attention. mlx-lm reads the interval only, so its set has it last."""
    text = copy.deepcopy(R2_TEXT)
    del text["intermediate_size"]
    text |= {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 4,
        "layer_types": ["full_attention" if i == attention else "linear_attention" for i in range(4)],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
    }
    return text | sizes


HF_TEXT = text_config(
    2, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=40
)
MLX_TEXT = text_config(
    3, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=128
)


def write_checkpoint(directory: Path, text: dict, seed: int) -> None:
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": True,
        "text_config": text,
    }
    save_json(directory / "config.json", config)
    weights = draw_weights(text, seed, "model.language_model.", scalars_f32=False)
    save_safetensors(directory / "model.safetensors", weights, {"format": "pt"})


def run_moe(directory: Path, text: dict) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Stages, refusing routings that would make a weak test: near ties, experts that nobody chooses."""
    stages = run_target(load_model(directory), prompt_ids(11, PROMPT_TOKENS), GREEDY_TOKENS)
    report = check_health(stages, text["num_hidden_layers"])
    chosen, gaps = [], []
    for index in range(text["num_hidden_layers"]):
        top = stages[f"layers.{index}.router_logits"].topk(text["num_experts_per_tok"] + 1).values
        gaps.append(float((top[:, -2] - top[:, -1]).min()))
        chosen.append(torch.bincount(stages[f"layers.{index}.router_experts"].flatten(), minlength=text["num_experts"]))
    report["smallest router margin"] = min(gaps)
    report["fewest rows of an expert"] = int(torch.stack(chosen).min())
    if report["smallest router margin"] < 1e-3 or report["fewest rows of an expert"] == 0:
        raise RuntimeError(f"choose another seed: {report}")
    return stages, report


def make_moe_hf(out: Path, seed: int = 2) -> dict[str, float]:
    setup_torch()
    directory = out / "moe-hf"
    write_checkpoint(directory, HF_TEXT, seed)
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("config.json", "model.safetensors"):  # dumps beside them must not be loaded
            shutil.copy(directory / name, Path(temporary) / name)
        stages, report = run_moe(Path(temporary), HF_TEXT)
    stages = {name: value for name, value in stages.items() if not name.endswith(".mixer")}  # for size
    what = "moe-hf: prefill of input_ids, then greedy decoding"
    found = versions("torch", "transformers", "safetensors", "numpy")
    save_safetensors(directory / "stages.safetensors", stages, stage_metadata(what, REFERENCE, found))
    return report


def make_moe_mlx(out: Path, seed: int = 2) -> dict[str, float]:
    setup_torch()
    directory = out / "moe-mlx4"
    with tempfile.TemporaryDirectory() as temporary:
        source, converted, plain = (Path(temporary) / name for name in ("hf", "mlx", "dequantised"))
        write_checkpoint(source, MLX_TEXT, seed)
        convert(source, converted)
        tensors = load_safetensors(converted / "model.safetensors")
        config = json.loads((converted / "config.json").read_text(encoding="utf-8"))
        save_json(plain / "config.json", json.loads((source / "config.json").read_text(encoding="utf-8")))
        save_safetensors(plain / "model.safetensors", hugging_face_form(tensors), {"format": "pt"})
        stages, report = run_moe(plain, MLX_TEXT)
        opinion = second_opinion(converted, stages)
    if max(opinion.values()) > 1e-5:
        raise RuntimeError(f"weak or wrong set: {opinion}")
    save_json(directory / "config.json", config)
    save_safetensors(directory / "model.safetensors", tensors, {"format": "mlx"})
    stages = {name: value for name, value in stages.items() if not name.endswith(".mixer")}  # for size
    what = "moe-mlx4: prefill of input_ids, then greedy decoding, on the dequantised weights"
    found = versions("torch", "transformers", "safetensors", "numpy", "mlx", "mlx-lm")
    reference = REFERENCE + "; checkpoint: mlx-lm"
    save_safetensors(directory / "stages.safetensors", stages, stage_metadata(what, reference, found))
    return report | opinion
