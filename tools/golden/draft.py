"""Golden drafts: small DFlash checkpoints for target-r2 and stage dumps by the authors' own PyTorch package.

The reference is the Python package ``dflash`` (z-lab), classes ``dflash.model.DFlash2DraftModel`` and
``DFlashDraftModel`` (version 1), imported as installed. It is run in float32 on the taps that target-r2 gives
(transformers), once per anchor position, with all context rows in one pass, so that its own strict masks apply.
Selector scores are read from the arguments of the reference's own top-k and argmax calls. Nothing is recomputed here
except that candidates are put into the documented order (value descending, id ascending).

Sets: ``draft-w64`` (DFlash2, block 8, window 64), ``draft-b16`` (DFlash2, block 16, a window shorter than the block)
and ``draft-v1-mixed`` (DFlash v1, block 16, causal sliding layers around a full one).

Anchor positions: ``long`` (longer than the window), ``edge`` (the window begins to cut inside the block) and ``short``;
the anchor is the prompt token there, after the whole prompt the target's first greedy token.

Rerun: ``python tools/golden/make.py target-r2 draft-w64 draft-b16 draft-v1-mixed --out tests/golden``.
"""

from __future__ import annotations

from pathlib import Path

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
from target import load_model
from torch.overrides import TorchFunctionMode

CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "num_target_layers": 5,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 64,
    "max_window_layers": 2,
    "is_causal": False,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 250,
        "target_layer_ids": [0, 2, 3],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 32,
        "selector_top_k": 16,
    },
}

# Half the width of draft-w64, to keep the sets small.
NARROW = {**CONFIG, "intermediate_size": 64, "head_dim": 16}
BLOCK_16 = {
    **NARROW,
    "sliding_window": 12,
    "dflash_config": {
        **CONFIG["dflash_config"],
        "block_size": 16,
        "target_layer_ids": [1, 3],
        "selector_rank": 16,
    },
}
# As released v1 drafts: no "is_causal", so that sliding layers are causal, and "block_size" at the top level.
MIXED_V1 = {
    **{key: value for key, value in NARROW.items() if key != "is_causal"},
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 3,
    "max_window_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 24,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 250, "target_layer_ids": [1, 3]},
}
# Seed, configuration, context rows that are dumped (None: the whole prompt), anchor positions, dump of the block's K/V.
SETS = {
    "draft-w64": (64, CONFIG, None, {"edge": 60, "short": 23}, True),
    "draft-b16": (1, BLOCK_16, 100, {"edge": 9, "short": 5}, False),
    "draft-v1-mixed": (4, MIXED_V1, 100, {"edge": 17, "short": 5}, False),
}
TOP = 16  # candidates of a draft without a selector


def draw_weights(config: dict, seed: int) -> dict[str, torch.Tensor]:
    special = config["dflash_config"]
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        weights[name + ".weight"] = normal(seed, name, (rows, cols), gain * cols**-0.5)

    def plain_norm(name: str, size: int) -> None:
        weights[name + ".weight"] = normal(seed, name, (size,), 0.2, 1.0)

    linear("fc", hidden, len(special["target_layer_ids"]) * hidden)
    plain_norm("hidden_norm", hidden)
    plain_norm("norm", hidden)
    for index in range(config["num_hidden_layers"]):
        base = f"layers.{index}."
        plain_norm(base + "input_layernorm", hidden)
        plain_norm(base + "post_attention_layernorm", hidden)
        linear(base + "self_attn.q_proj", queries, hidden, 1.5)
        linear(base + "self_attn.k_proj", keys, hidden)
        linear(base + "self_attn.v_proj", keys, hidden)
        linear(base + "self_attn.o_proj", hidden, queries, 2.0)
        plain_norm(base + "self_attn.q_norm", head)
        plain_norm(base + "self_attn.k_norm", head)
        linear(base + "mlp.gate_proj", inner, hidden, 1.5)
        linear(base + "mlp.up_proj", inner, hidden)
        linear(base + "mlp.down_proj", hidden, inner)
        for conv in ("attention_conv", "mlp_conv") if "conv_kernel_size" in special else ():
            groups, kernel = hidden // special["conv_group_size"], special["conv_kernel_size"]
            name = f"{base}{conv}.base_kernel"
            value = normal(seed, name, (2, kernel, hidden), 0.3, 0.0, torch.float32)
            value[:, 0] += 1.0
            weights[name] = value.to(torch.bfloat16)
            linear(f"{base}{conv}.kernel_projection", 2 * kernel * groups, hidden, 0.3)
    if "selector_rank" in special:
        rank = special["selector_rank"]
        linear("candidate_selector.hidden_projection", rank, hidden)
        for name in ("predecessor_codebook", "successor_codebook"):
            weights[f"candidate_selector.{name}"] = normal(seed, name, (config["vocab_size"], rank), 0.5)
    return weights


class Recorder:
    """Stands where the reference expects a cache and keeps what each layer would have cached."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(self, keys, values, layer_index, *_args, **_kwargs):
        self.rows[layer_index] = (keys[0].transpose(0, 1).clone(), values[0].transpose(0, 1).clone())
        return keys, values


class SelectorTrace(TorchFunctionMode):
    """Records the arguments and results of the reference's top-k and argmax calls."""

    def __init__(self) -> None:
        super().__init__()
        self.topk = None
        self.scores: list[torch.Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.topk:
            self.topk = (result.values.clone(), result.indices.clone())
        elif func is torch.argmax:
            self.scores.append(args[0].clone())
        return result


def run_block(model, target, taps: torch.Tensor, anchor: int) -> dict[str, torch.Tensor]:
    """One draft block at position F = len(taps); returns every stage under the names of the README."""
    from dflash.model import _output_head, _raw_input_embeddings

    block, first = model.block_size, taps.shape[0]
    ids = torch.full((1, block), model.mask_token_id)
    ids[0, 0] = anchor
    stages: dict[str, torch.Tensor] = {"block_ids": ids[0].clone()}
    embeddings = _raw_input_embeddings(target, ids)
    stages["hidden.0"] = embeddings[0].clone()
    handles = [
        model.hidden_norm.register_forward_hook(lambda _m, _i, out: stages.__setitem__("context", out[0].clone()))
    ]
    for index, layer in enumerate(model.layers):

        def keep(_module, _inputs, out, name=f"hidden.{index + 1}"):
            stages[name] = out[0].clone()

        handles.append(layer.register_forward_hook(keep))
    cache = Recorder()
    hidden = model(
        position_ids=torch.arange(first + block)[None],
        noise_embedding=embeddings,
        target_hidden=taps[None],
        past_key_values=cache,
    )[:, 1 - block :, :]
    for handle in handles:
        handle.remove()
    for index, (keys, values) in cache.rows.items():
        stages[f"layers.{index}.context_k"], stages[f"layers.{index}.block_k"] = keys[:first], keys[first:]
        stages[f"layers.{index}.context_v"], stages[f"layers.{index}.block_v"] = values[:first], values[first:]
    stages["draft_hidden"] = hidden[0].clone()
    logits = model.compute_logits(hidden, _output_head(target))
    stages["logits"] = logits[0].clone()
    if hasattr(model, "candidate_selector"):
        stages.update(selector_stages(model, hidden, ids, _output_head(target)))
    else:
        stages.update(independent_stages(stages["logits"]))
    return stages


def in_order(unary: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Indices that put candidates into the documented order: value descending, id ascending."""
    order = torch.argsort(candidates, dim=-1)
    return order.gather(-1, torch.argsort(-unary.gather(-1, order), dim=-1, stable=True))


def selector_stages(model, hidden, ids, head) -> dict[str, torch.Tensor]:
    from dflash.model import _sampling_probs

    with SelectorTrace() as trace:
        path, _, _ = model.propose(hidden, ids[:, 0], head, 0.0)
    unary, candidates = (value[0] for value in trace.topk)
    order = in_order(unary, candidates)
    scores = torch.cat(trace.scores).gather(-1, order)
    return {
        "candidate_ids": candidates.gather(-1, order),
        "unary": unary.gather(-1, order),
        "scores": scores,
        "q": _sampling_probs(scores, 1.0),
        "proposals": path[0].clone(),
    }


def independent_stages(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """Version 1, as ``dflash_generate`` does it: argmax per row; probabilities over the whole vocabulary."""
    from dflash.model import _sampling_probs

    unary, candidates = logits.topk(TOP, dim=-1)
    order = in_order(unary, candidates)
    proposals = torch.argmax(logits, dim=-1)
    return {
        "candidate_ids": candidates.gather(-1, order),
        "unary": unary.gather(-1, order),
        "q": _sampling_probs(logits, 1.0).gather(-1, proposals[:, None])[:, 0],
        "proposals": proposals,
    }


def check_incremental(model, target, taps: torch.Tensor, anchor: int, expected: torch.Tensor) -> float:
    """The reference's own cache, fed in chunks, must give the same block as one pass (draft spec, section 3)."""
    from dflash.model import _crop_to, _make_cache, _raw_input_embeddings

    block, first = model.block_size, taps.shape[0]
    cache, done = _make_cache(model.config), 0
    for size in (first - 29, 21, 8):
        ids = torch.full((1, block), model.mask_token_id)
        ids[0, 0] = anchor
        positions = torch.arange(done, done + size + block)[None]
        out = model(
            position_ids=positions,
            noise_embedding=_raw_input_embeddings(target, ids),
            target_hidden=taps[None, done : done + size],
            past_key_values=cache,
            use_cache=True,
        )
        done += size
        _crop_to(cache, done)
    return relative_l2(out[0, 1:], expected)


def check_choices(name: str, stages: dict[str, torch.Tensor]) -> dict[str, float]:
    """Refuse near ties and selectors without influence: they would make a weak test."""
    logits = stages["logits"].topk(17, dim=-1).values
    top = stages.get("scores", stages["logits"]).topk(2, dim=-1).values
    report = {
        f"{name} rank-16 margin": float((logits[:, 15] - logits[:, 16]).min()),
        f"{name} order margin": float((logits[:, :15] - logits[:, 1:16]).min()),
        f"{name} choice margin": float((top[:, 0] - top[:, 1]).min()),
        f"{name} padded candidates": int((stages["candidate_ids"] >= 250).sum()),
    }
    if "scores" in stages:
        changed = int((stages["proposals"] != stages["candidate_ids"][:, 0]).sum())
        report[f"{name} choices changed by the selector"] = changed
        if changed < 2:
            raise RuntimeError(f"choose another seed: {report}")
    values = list(report.values())
    if values[0] < 1e-4 or values[1] < 1e-5 or values[2] < 1e-2:
        raise RuntimeError(f"choose another seed: {report}")
    return report


def check_layers(model, config: dict) -> None:
    """The reference must have read the masks that the set is about."""
    for layer, kind in zip(model.layers, config["layer_types"], strict=True):
        sliding = kind == "sliding_attention"
        window = config["sliding_window"] if sliding else None
        found = (layer.self_attn.sliding_window, layer.self_attn.is_causal)
        if found != (window, config.get("is_causal", sliding)):
            raise RuntimeError(f"a layer of kind {kind} has window and causality {found}")


def make_draft(out: Path, name: str) -> dict[str, float]:
    setup_torch()
    seed, config, dumped, positions, block_rows = SETS[name]
    directory, target_directory = out / name, out / "target-r2"
    save_json(directory / "config.json", config)
    save_safetensors(directory / "model.safetensors", draw_weights(config, seed), {"format": "pt"})

    import dflash.model

    target = load_model(target_directory)
    kind = config["architectures"][0]
    model = getattr(dflash.model, kind).from_pretrained(str(directory), dtype=torch.float32).eval()
    check_layers(model, config)
    source = load_safetensors(target_directory / "stages.safetensors")
    ids = source["input_ids"]
    first = len(ids) if dumped is None else dumped
    taps = torch.cat([source[f"hidden.{index + 1}"] for index in config["dflash_config"]["target_layer_ids"]], dim=-1)
    stages, report = {"input_ids": ids, "taps": taps[:first]}, {}
    anchor = int(source["greedy.ids"][0]) if first == len(ids) else int(ids[first])
    cases = {"long": (first, anchor)} | {case: (at, int(ids[at])) for case, at in positions.items()}
    for case, (first, anchor) in cases.items():
        block = run_block(model, target, taps[:first], anchor)
        report.update(check_choices(case, block))
        if case == "long":
            hidden = block["draft_hidden"]
            report["chunked context, relative L2"] = check_incremental(model, target, taps[:first], anchor, hidden)
        else:  # the same rows as in the long case, up to the order of additions
            for key in [key for key in block if key == "context" or ".context_" in key]:
                if relative_l2(block[key], stages[f"long.{key}"][:first]) > 1e-5:
                    raise RuntimeError(f"{case}.{key} differs from the long case")
                del block[key]
        for key in [key for key in block if ".block_" in key and not block_rows]:
            del block[key]
        stages[f"{case}.first_position"] = torch.tensor([first])
        stages.update({f"{case}.{key}": value for key, value in block.items()})
    reference = f"dflash (z-lab), dflash.model.{kind}; taps: transformers models/qwen3_5"
    found = versions("dflash", "torch", "transformers", "safetensors", "numpy")
    what = f"{name} on target-r2: one block at each of three anchor positions"
    save_safetensors(directory / "stages.safetensors", stages, stage_metadata(what, reference, found))
    return report
