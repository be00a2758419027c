"""Golden targets: small Qwen3.5 dense checkpoints and stage dumps by transformers' own Qwen3.5 model.

Weights are drawn here; every value under ``stages.safetensors`` comes from transformers (versions are in that file's
metadata). The checkpoint is loaded with ``from_pretrained(..., dtype=float32)`` and run in float32 on the CPU with
eager attention, so against an engine that keeps its stored formats in float32 only the order of additions differs.

Rerun: ``python tools/golden/make.py target-r2 target-r3 --out tests/golden``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import torch
from common import (
    generator,
    normal,
    save_json,
    save_safetensors,
    setup_torch,
    stage_metadata,
    versions,
)

PROMPT_TOKENS = 150
GREEDY_TOKENS = 24
EOS_ID = 248
TOKENIZER_IDS = 250  # ids at or above are padding rows of the vocabulary

R2_TEXT = {
    "model_type": "qwen3_5_text",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "layer_types": ["linear_attention"] * 3 + ["full_attention", "linear_attention"],
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "attn_output_gate": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "eos_token_id": EOS_ID,
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
    "use_cache": True,
}

R3_TEXT = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 48,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "attn_output_gate": True,
    "output_gate_type": "swish",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 2, 2],
        "mrope_interleaved": True,
    },
    "eos_token_id": EOS_ID,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
    "use_cache": True,
}


def layer_types(text: dict) -> list[str]:
    interval = text.get("full_attention_interval", 4)
    kinds = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(text["num_hidden_layers"])]
    return text.get("layer_types", kinds)


def draw_weights(text: dict, seed: int, prefix: str, scalars_f32: bool) -> dict[str, torch.Tensor]:
    """Healthy activations: linear weights at 1/sqrt(in), norms spread around neutral, mixed short and long memory."""
    hidden, head = text["hidden_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    value_heads = text["linear_num_value_heads"]
    key_dim = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value_dim = value_heads * text["linear_value_head_dim"]
    channels = 2 * key_dim + value_dim
    small = torch.float32 if scalars_f32 else torch.bfloat16
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        weights[name + ".weight"] = normal(seed, name, (rows, cols), gain * cols**-0.5)

    def shifted_norm(name: str, size: int) -> None:
        weights[name + ".weight"] = normal(seed, name, (size,), 0.2)

    weights[prefix + "embed_tokens.weight"] = normal(seed, "embed", (text["vocab_size"], hidden), 0.3)
    shifted_norm(prefix + "norm", hidden)
    if not text["tie_word_embeddings"]:
        linear("lm_head", text["vocab_size"], hidden, 2.0)
        weights["lm_head.weight"][TOKENIZER_IDS:] *= 0.25  # padding rows: not zero, but no winners
    for index, kind in enumerate(layer_types(text)):
        base = f"{prefix}layers.{index}."
        shifted_norm(base + "input_layernorm", hidden)
        shifted_norm(base + "post_attention_layernorm", hidden)
        if "num_experts" in text:
            stacks = {"gate_up_proj": (2 * text["moe_intermediate_size"], hidden)}
            stacks["down_proj"] = (hidden, text["moe_intermediate_size"])
            for name, (rows, cols) in stacks.items():
                values = normal(seed, f"{base}mlp.experts.{name}", (text["num_experts"], rows, cols), cols**-0.5)
                weights[f"{base}mlp.experts.{name}"] = values
            linear(base + "mlp.gate", text["num_experts"], hidden, 2.0)
            linear(base + "mlp.shared_expert_gate", 1, hidden, 2.0)
        feed = base + ("mlp.shared_expert." if "num_experts" in text else "mlp.")
        inner = text["shared_expert_intermediate_size" if "num_experts" in text else "intermediate_size"]
        linear(feed + "gate_proj", inner, hidden, 1.5)
        linear(feed + "up_proj", inner, hidden)
        linear(feed + "down_proj", hidden, inner)
        if kind == "full_attention":
            linear(base + "self_attn.q_proj", 2 * queries, hidden)
            linear(base + "self_attn.k_proj", keys, hidden)
            linear(base + "self_attn.v_proj", keys, hidden)
            linear(base + "self_attn.o_proj", hidden, queries, 2.0)
            shifted_norm(base + "self_attn.q_norm", head)
            shifted_norm(base + "self_attn.k_norm", head)
            continue
        mixer = base + "linear_attn."
        linear(mixer + "in_proj_qkv", channels, hidden)
        linear(mixer + "in_proj_z", value_dim, hidden)
        linear(mixer + "in_proj_b", value_heads, hidden)
        linear(mixer + "in_proj_a", value_heads, hidden)
        linear(mixer + "out_proj", hidden, value_dim)
        weights[mixer + "conv1d.weight"] = normal(seed, mixer + "conv1d", (channels, 1, 4), 0.5)
        decay = generator(seed, mixer + "A_log").uniform(np.log(0.05), np.log(12.0), value_heads)
        weights[mixer + "A_log"] = torch.from_numpy(decay.astype(np.float32)).to(small)
        step = np.exp(generator(seed, mixer + "dt_bias").uniform(np.log(0.003), np.log(0.3), value_heads))
        bias = np.log(np.expm1(step)).astype(np.float32)  # softplus(bias) = step
        weights[mixer + "dt_bias"] = torch.from_numpy(bias).to(torch.bfloat16)
        norm = normal(seed, mixer + "norm", (text["linear_value_head_dim"],), 0.2, 1.0, torch.float32)
        weights[mixer + "norm.weight"] = norm.to(small)
    return weights


def prompt_ids(seed: int, count: int = PROMPT_TOKENS) -> torch.Tensor:
    return torch.from_numpy(generator(seed, "prompt").integers(0, EOS_ID, count).astype(np.int64))


def load_model(directory: Path):
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        str(directory), dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    bad = [key for key in info["missing_keys"] if key != "lm_head.weight"]
    if bad or info["mismatched_keys"] or info["unexpected_keys"]:
        raise RuntimeError(f"{directory}: checkpoint does not fit the reference: {info}")
    return model.eval()


def cache_dump(prefix: str, model, cache) -> dict[str, torch.Tensor]:
    out = {}
    for index, kind in enumerate(model.config.layer_types):
        layer = cache.layers[index]
        name = f"{prefix}layers.{index}."
        if kind == "full_attention":
            out[name + "k"] = layer.keys[0].transpose(0, 1)  # [T, Nkv, D], after norm and RoPE
            out[name + "v"] = layer.values[0].transpose(0, 1)
        else:
            kernel = model.config.linear_conv_kernel_dim
            out[name + "recurrent_state"] = layer.recurrent_states[0][0]  # [Hv, Dk, Dv]
            out[name + "conv_state"] = layer.conv_states[0][0][:, 1 - kernel :].transpose(0, 1)  # [Kc-1, C]
    return {name: value.detach().clone() for name, value in out.items()}


def run_target(model, ids: torch.Tensor, greedy_tokens: int = GREEDY_TOKENS) -> dict[str, torch.Tensor]:
    """Every stage of one prefill in a single pass, then greedy decoding token by token."""
    from transformers import DynamicCache

    stages: dict[str, torch.Tensor] = {"input_ids": ids}
    handles = []

    def keep(name):
        def hook(_module, _inputs, output):
            value = output[0] if isinstance(output, tuple) else output
            stages[name] = value[0].detach().clone()

        return hook

    def keep_router(prefix):
        def hook(_module, _inputs, output):
            for name, value in zip(("logits", "weights", "experts"), output, strict=True):
                stages[prefix + name] = value.detach().clone()

        return hook

    body = model.model
    handles.append(body.embed_tokens.register_forward_hook(keep("hidden.0")))
    handles.append(body.norm.register_forward_hook(keep("final_norm")))
    for index, layer in enumerate(body.layers):
        mixer = layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn
        handles.append(mixer.register_forward_hook(keep(f"layers.{index}.mixer")))
        handles.append(layer.register_forward_hook(keep(f"hidden.{index + 1}")))
        if hasattr(layer.mlp, "experts"):
            handles.append(layer.mlp.gate.register_forward_hook(keep_router(f"layers.{index}.router_")))
    cache = DynamicCache(config=model.config)
    output = model(ids[None], cache=cache, use_cache=True)
    for handle in handles:
        handle.remove()
    stages["logits"] = output.logits[0].detach().clone()
    stages.update(cache_dump("", model, cache))

    chosen, rows = [], [stages["logits"][-1]]
    for step in range(greedy_tokens):
        chosen.append(int(torch.argmax(rows[-1])))
        if step + 1 < greedy_tokens:
            token = torch.tensor([[chosen[-1]]])
            rows.append(model(token, cache=cache, use_cache=True).logits[0, -1].detach().clone())
    stages["greedy.ids"] = torch.tensor(chosen)
    stages["greedy.logits"] = torch.stack(rows)
    stages.update(cache_dump("greedy.", model, cache))
    return stages


def check_health(stages: dict[str, torch.Tensor], layers: int) -> dict[str, float]:
    """Refuse weights that would make a weak test: dead or exploding rows, near ties, padded winners."""
    report = {f"rms hidden.{i}": float(stages[f"hidden.{i}"].pow(2).mean().sqrt()) for i in range(layers + 1)}
    if not all(0.05 < value < 50 for value in report.values()):
        raise RuntimeError(f"unhealthy activations: {report}")
    top = stages["greedy.logits"].topk(2, dim=-1).values
    report["smallest greedy margin"] = float((top[:, 0] - top[:, 1]).min())
    report["distinct greedy ids"] = len(set(stages["greedy.ids"].tolist()))
    report["largest greedy id"] = int(stages["greedy.ids"].max())
    if report["smallest greedy margin"] < 1e-2 or report["largest greedy id"] >= EOS_ID:
        raise RuntimeError(f"choose another seed: {report}")
    if report["distinct greedy ids"] < 6:
        raise RuntimeError(f"continuation too repetitive: {report}")
    return report


def reference_name() -> str:
    return "transformers models/qwen3_5 (AutoModelForCausalLM, eager attention, torch fallback kernels)"


def finish(directory: Path, layers: int, what: str) -> dict[str, float]:
    setup_torch()
    model = load_model(directory)
    stages = run_target(model, prompt_ids(11))
    report = check_health(stages, layers)
    found = versions("torch", "transformers", "safetensors", "numpy")
    save_safetensors(directory / "stages.safetensors", stages, stage_metadata(what, reference_name(), found))
    return report


def make_r2(out: Path, seed: int = 26) -> dict[str, float]:
    directory = out / "target-r2"
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 251,
        "video_token_id": 252,
        "vision_start_token_id": 253,
        "vision_end_token_id": 254,
        "tie_word_embeddings": True,
        "text_config": copy.deepcopy(R2_TEXT),
        "vision_config": {"model_type": "qwen3_5", "depth": 1, "hidden_size": 16, "num_heads": 2},
    }
    weights = draw_weights(R2_TEXT, seed, "model.language_model.", scalars_f32=True)
    # Present in released files and to be ignored by a text-only loader.
    weights["mtp.norm.weight"] = normal(seed, "mtp", (64,), 1.0)
    weights["model.visual.merger.norm.weight"] = normal(seed, "visual", (16,), 1.0)
    save_json(directory / "config.json", config)
    save_safetensors(directory / "model.safetensors", weights, {"format": "pt"})
    return finish(directory, R2_TEXT["num_hidden_layers"], "target-r2: prefill of input_ids, then greedy decoding")


def make_r3(out: Path, seed: int = 4) -> dict[str, float]:
    directory = out / "target-r3"
    weights = draw_weights(R3_TEXT, seed, "model.", scalars_f32=False)
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[: len(names) // 2]}
    shards["model-00002-of-00002.safetensors"] = names[len(names) // 2 :]
    total = sum(value.numel() * value.element_size() for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for file, members in shards.items():
        save_safetensors(directory / file, {name: weights[name] for name in members}, {"format": "pt"})
        index["weight_map"].update(dict.fromkeys(members, file))
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    save_json(directory / "config.json", R3_TEXT)
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return finish(directory, R3_TEXT["num_hidden_layers"], "target-r3: prefill of input_ids, then greedy decoding")
