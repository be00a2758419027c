"""Checks the golden sets under tests/golden.

Usage: python tools/golden/check.py [--golden DIR] [--spec] [--recompute] [--update]

Without an option: every file's SHA-256 against digests.json (standard library only). ``--spec``: every stage against
the specification in float64 (spec.py) and every named mistake must be caught. ``--recompute``: makes all sets anew with
the installed references in a temporary directory; weights, ids and texts must be equal, float32 dumps within relative
L2 1e-5 of the committed ones (equal bits on the same machine and versions). ``--update`` writes digests.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

ROOT = Path(__file__).resolve().parents[2]
PARITY = 1e-5  # bound of the engine's tests
NOISE = 3e-6  # what the dumps themselves may be off from float64
CAUGHT = 10 * PARITY  # what a mistake must at least do
LIMIT = 10 * 1000 * 1000


def golden_files(golden: Path) -> list[Path]:
    files = (path for path in golden.rglob("*") if path.is_file())
    return sorted(path for path in files if path.parent != golden)


def check_digests(golden: Path, update: bool) -> list[str]:
    files = golden_files(golden)
    found = {path.relative_to(golden).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    listing = golden / "digests.json"
    if update:
        listing.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    expected = json.loads(listing.read_text(encoding="utf-8"))
    problems = [
        f"{name}: found {found.get(name)}, expected {expected.get(name)}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    size = sum(path.stat().st_size for path in files)
    if size > LIMIT:
        problems.append(f"{golden.name}: {size} bytes, at most {LIMIT}")
    print(f"digests: {len(files)} files, {size} bytes, {len(problems)} problems")
    return problems


class Comparison:
    def __init__(self, title: str) -> None:
        self.title, self.worst, self.where, self.stages = title, 0.0, "", 0
        self.problems: list[str] = []

    def compare(self, name: str, actual, expected) -> None:
        import numpy as np

        error = float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
        self.stages += 1
        if error >= self.worst:
            self.worst, self.where = error, name
        if not error <= NOISE:
            self.problems.append(f"{self.title} {name}: relative L2 {error:.2e} from the specification")

    def mistake(self, name: str, actual, expected) -> float:
        import numpy as np

        error = float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
        if not error >= CAUGHT:
            self.problems.append(f"{self.title}: mistake {name!r} moves its stage by only {error:.1e}")
        return error

    def close(self) -> list[str]:
        print(f"{self.title}: {self.stages} stages, worst relative L2 {self.worst:.1e} ({self.where})")
        return self.problems


def arrays(tensors) -> dict:
    return {name: value.double().numpy() for name, value in tensors.items()}


def spec_target(directory: Path) -> list[str]:
    from common import load_checkpoint, load_safetensors
    from mlx_target import hugging_face_form
    from spec import MIXTURE_MISTAKES, TARGET_MISTAKES, Target, rms
    from target import layer_types

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    stored = load_checkpoint(directory)
    raw = hugging_face_form(stored) if "quantization" in config else stored
    weights = {}
    for name, value in arrays(raw).items():
        if name.startswith(("mtp.", "model.visual.")):
            continue
        name = name.removeprefix("model.language_model.").removeprefix("model.")
        weights[name] = value + 1.0 if Target.shifted(name) or name == "norm.weight" else value
    stages = arrays(load_safetensors(directory / "stages.safetensors"))
    model, result = Target(text, layer_types(text), weights), Comparison(directory.name)
    ids = stages["input_ids"].astype(int)
    result.compare("hidden.0", weights["embed_tokens.weight"][ids], stages["hidden.0"])
    for index, kind in enumerate(model.kinds):
        own = stages[f"hidden.{index}"]
        made = model.layer(index, own)
        result.compare(f"hidden.{index + 1}", made.pop("hidden"), stages[f"hidden.{index + 1}"])
        for name, value in made.items():
            if f"layers.{index}.{name}" in stages:
                result.compare(f"layers.{index}.{name}", value, stages[f"layers.{index}.{name}"])
        for name in TARGET_MISTAKES[kind] + (MIXTURE_MISTAKES if "num_experts" in text else ()):
            if name == "A_log rounded to bf16" and stored_as_bf16(stored, index):
                continue
            if name == "KV head h % Nkv" and text["num_key_value_heads"] == 1:
                continue
            if name == "key head j % Hk" and text["linear_num_key_heads"] == 1:
                continue
            wrong = model.layer(index, own, name)
            result.mistake(f"{name} (layer {index})", wrong["hidden"], stages[f"hidden.{index + 1}"])
    last = stages[f"hidden.{len(model.kinds)}"]
    result.compare("final_norm", rms(last, weights["norm.weight"], model.eps), stages["final_norm"])
    head = weights.get("lm_head.weight", weights["embed_tokens.weight"])
    result.compare("logits", stages["final_norm"] @ head.T, stages["logits"])
    # Whole run in float64, prompt and continuation: the caches and logits after decoding token by token.
    every = [*ids, *stages["greedy.ids"].astype(int)[:-1]]
    h = weights["embed_tokens.weight"][every]
    for index in range(len(model.kinds)):
        made = model.layer(index, h)
        h = made.pop("hidden")
        for name, value in made.items():
            if f"greedy.layers.{index}.{name}" in stages:
                result.compare(f"greedy.layers.{index}.{name}", value, stages[f"greedy.layers.{index}.{name}"])
    logits = rms(h, weights["norm.weight"], model.eps) @ head.T
    result.compare("greedy.logits", logits[len(ids) - 1 :], stages["greedy.logits"])
    if (logits[len(ids) - 1 :].argmax(-1) != stages["greedy.ids"]).any():
        result.problems.append(f"{directory.name}: greedy ids differ from the specification")
    return result.close()


def stored_as_bf16(stored, index: int) -> bool:
    import torch

    return any(f"layers.{index}.linear_attn.A_log" in name and stored[name].dtype == torch.bfloat16 for name in stored)


def spec_draft(directory: Path, target_directory: Path) -> list[str]:
    import numpy as np
    from common import load_checkpoint, load_safetensors
    from spec import Draft, draft_mistakes, rms, softmax

    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    weights = arrays(load_checkpoint(directory))
    stages = arrays(load_safetensors(directory / "stages.safetensors"))
    table = arrays(load_checkpoint(target_directory))["model.language_model.embed_tokens.weight"]
    model, result = Draft(config, weights), Comparison(directory.name)
    context = stages["long.context"]
    result.compare("long.context", model.context(stages["taps"]), context)
    positions = np.arange(len(context), dtype=np.float64)
    for index in range(config["num_hidden_layers"]):
        base = f"layers.{index}.self_attn."
        k = model.heads(base + "k_proj.weight", context, base + "k_norm.weight", positions, None)
        v = model.heads(base + "v_proj.weight", context, None, positions, None)
        result.compare(f"long.layers.{index}.context_k", k, stages[f"long.layers.{index}.context_k"])
        result.compare(f"long.layers.{index}.context_v", v, stages[f"long.layers.{index}.context_v"])
    mistakes = draft_mistakes(config)
    caught: dict[str, float] = dict.fromkeys(mistakes, 0.0)
    for case in ("long", "edge", "short"):
        own = {name.removeprefix(case + "."): value for name, value in stages.items() if name.startswith(case + ".")}
        first = int(own["first_position"][0])
        result.compare(f"{case}.hidden.0", table[own["block_ids"].astype(int)], own["hidden.0"])
        for index in range(config["num_hidden_layers"]):
            rows = (stages[f"long.layers.{index}.context_{part}"][:first] for part in "kv")
            inputs = (index, own[f"hidden.{index}"], context[:first], *rows)
            expected = own[f"hidden.{index + 1}"]
            result.compare(f"{case}.hidden.{index + 1}", model.layer(*inputs), expected)
            for name in mistakes:
                error = np.linalg.norm(model.layer(*inputs, name) - expected) / np.linalg.norm(expected)
                caught[name] = max(caught[name], float(error))
        last = own[f"hidden.{config['num_hidden_layers']}"]
        result.compare(f"{case}.draft_hidden", rms(last, weights["norm.weight"], model.eps)[1:], own["draft_hidden"])
        result.compare(f"{case}.logits", own["draft_hidden"] @ table.T, own["logits"])
        chosen = own["candidate_ids"].astype(int)
        if (model.candidates(own["logits"]) != chosen).any():
            result.problems.append(f"{case}: candidates differ from the specification")
        if "selector_top_k" in config["dflash_config"]:
            scores, path = model.walk(own["draft_hidden"], own["logits"], chosen, int(own["block_ids"][0]))
            result.compare(f"{case}.scores", scores, own["scores"])
            result.compare(f"{case}.q", softmax(own["scores"]), own["q"])
        else:
            path = own["logits"].argmax(-1)
            result.compare(f"{case}.q", softmax(own["logits"]).max(-1), own["q"])
        if (path != own["proposals"]).any():
            result.problems.append(f"{case}: proposals differ from the specification")
    for name, error in caught.items():
        if error < CAUGHT:
            result.problems.append(f"{directory.name}: mistake {name!r} moves its stage by only {error:.1e}")
    return result.close()


def same(name: str, ours, fresh) -> list[str]:
    import torch
    from common import relative_l2

    if ours.keys() != fresh.keys():
        return [f"{name}: other tensors: {sorted(ours.keys() ^ fresh.keys())}"]
    problems = []
    for key, value in ours.items():
        other = fresh[key]
        if value.dtype != other.dtype or value.shape != other.shape:
            problems.append(f"{name} {key}: {other.dtype} {tuple(other.shape)}, expected {value.dtype}")
        elif name.endswith("stages.safetensors") and value.dtype == torch.float32:
            if relative_l2(other, value) > PARITY:
                problems.append(f"{name} {key}: relative L2 {relative_l2(other, value):.1e}")
        elif not torch.equal(value, other):
            problems.append(f"{name} {key}: values differ")
    return problems


def recompute(golden: Path) -> list[str]:
    from common import load_safetensors
    from make import SETS, make

    problems, equal = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary)
        for name in SETS:
            make(name, fresh)
        # A set beside these needs what is not installed (tests/golden/README.md).
        files = [path for path in golden_files(golden) if path.relative_to(golden).parts[0] in SETS]
        for path in files:
            name = path.relative_to(golden).as_posix()
            other = fresh / name
            if not other.exists():
                problems.append(f"{name}: not made by the scripts")
            elif other.read_bytes() == path.read_bytes():
                equal += 1
            elif name.endswith(".safetensors"):
                problems += same(name, load_safetensors(path), load_safetensors(other))
            else:
                ours, made = (json.loads(file.read_text(encoding="utf-8")) for file in (path, other))
                for value in (ours, made):
                    value.pop("versions", None)
                if ours != made:
                    problems.append(f"{name}: content differs")
    print(f"recompute: {equal} of {len(files)} files equal byte for byte, {len(problems)} problems")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, default=ROOT / "tests" / "golden")
    parser.add_argument("--spec", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    golden = arguments.golden
    problems = check_digests(golden, arguments.update)
    if arguments.spec:
        for name in ("target-r2", "target-r3", "target-r2-mlx4", "moe-hf", "moe-mlx4"):
            problems += spec_target(golden / name)
        for name in ("draft-w64", "draft-b16", "draft-v1-mixed"):
            problems += spec_draft(golden / name, golden / "target-r2")
    if arguments.recompute:
        problems += recompute(golden)
    for problem in problems:
        print("problem:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
