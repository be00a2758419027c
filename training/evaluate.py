"""Losses of the target and retained tokens per cycle of the draft, per domain, on held-out documents."""

import argparse
import contextlib
import json
import pathlib
from collections import Counter

import torch
import torch.nn.functional as F
from data import Validation
from draft import load_draft

from model import load_target

NGRAM = 16
CONTINUATION = 256
SHORTEST_KEPT = 48
# (label, domain, prompt length, prompts). Long prompts reach past the draft's window and to the longest demo prompt.
SETS = (
    ("python", "python", 256, 128),
    ("cpp", "cpp", 256, 128),
    ("prose", "prose", 256, 128),
    ("json", "json", 256, 64),
    ("arithmetic", "arithmetic", 256, 64),
    ("chat", "chat", 256, 64),
    ("python-2112", "python", 2112, 64),
    ("cpp-2112", "cpp", 2112, 64),
    ("python-8256", "python", 8256, 16),
)


@torch.no_grad()
def losses(target, validation, count=48, length=1024):
    """Mean cross-entropy in nats per token, per domain."""
    result = {}
    for domain in validation.domains:
        windows = validation.windows(domain, length, count)
        parts = [loss_per_position(target, part) for part in windows.split(8)]
        result[domain] = round(torch.cat(parts).mean().item(), 4)
    return result


def loss_per_position(target, ids):
    hidden, _ = target.hidden(ids[:, :-1])
    logits = target.logits(hidden).float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").unflatten(0, ids[:, 1:].shape)


@torch.no_grad()
def long_losses(target, validation, length=8448, count=8):
    """Loss by position in long windows of Python text."""
    windows = validation.windows("python", length, count)
    loss = torch.cat([loss_per_position(target, part) for part in windows.split(2)]).mean(0)
    edges = [0, 512, 1024, 2048, 4096, length - 1]
    return {f"{a}-{b}": round(loss[a:b].mean().item(), 4) for a, b in zip(edges[:-1], edges[1:], strict=True)}


def usable_ends(tokens, stops):
    """Length of a continuation up to its stop token, and up to where a 16-gram occurs for the second time."""
    whole = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    seen = set()
    for start in range(whole - NGRAM + 1):
        gram = tuple(tokens[start : start + NGRAM])
        if gram in seen:
            return whole, start
        seen.add(gram)
    return whole, whole


def walk(matches, end, block):
    """Retained tokens of the cycles of one continuation; anchors sit at offsets from 0, and every row is judged."""
    offset, retained = 0, []
    while offset + block <= end:
        retained.append(matches[offset] + 1)
        offset += matches[offset] + 1
    return retained


def summary(cycles, block):
    if not cycles:
        return None
    counts = Counter(cycles)
    return {
        "mean_retained": round(sum(cycles) / len(cycles), 3),
        "cycles": len(cycles),
        "all_matched_share": round(counts[block] / len(cycles), 3),
        "histogram": [counts[n] for n in range(1, block + 1)],
    }


@torch.no_grad()
def continuations(target, validation, block, sets=SETS, scale=1.0):
    """Greedy continuations per set: {label: (prompt length, ids)}. Sets of one prompt length are continued together."""
    prompts, result = {}, {}
    for label, domain, length, count in sets:
        with contextlib.suppress(ValueError):
            found = validation.prompts(domain, length, max(4, int(count * scale)), seed=5)
            prompts.setdefault(length, {})[label] = found
    for length, group in prompts.items():
        ids, _ = target.greedy(torch.cat(list(group.values())), CONTINUATION + block)
        parts = ids.split([len(found) for found in group.values()])
        result.update({label: (length, part) for label, part in zip(group, parts, strict=True)})
    return result


@torch.no_grad()
def acceptance(target, draft, length, sequences, stops):
    """Simulates greedy speculative decoding: the target's greedy text is judged against the draft at every anchor."""
    block, embedding = draft.config.block_size, target.model.embed_tokens.weight
    suffixes = ("", "_without_selector") if draft.candidate_selector else ("",)
    cycles = {name + suffix: [] for suffix in suffixes for name in ("all", "non_repeating")}
    recalled = judged = kept = 0
    for ids in sequences.split(16 if length < 4000 else 4):
        _, taps = target.hidden(ids, draft.config.target_layer_ids)
        anchors = torch.arange(length, length + CONTINUATION, device=ids.device).expand(len(ids), -1)
        truth = ids.unfold(1, block, 1)[:, length : length + CONTINUATION, 1:]
        drafts, candidates = draft.propose(ids, taps, anchors, embedding)
        found = (candidates[:, :, 0] == truth[:, :, :1]).any(-1)
        for suffix in suffixes:
            proposed = candidates[..., 0] if suffix else drafts
            matches = (proposed == truth).long().cumprod(-1).sum(-1).tolist()
            for row, tokens in enumerate(ids[:, length : length + CONTINUATION].tolist()):
                whole, fresh = usable_ends(tokens, stops)
                cycles["all" + suffix] += walk(matches[row], whole, block)
                if fresh < SHORTEST_KEPT and fresh < whole:
                    continue
                cycles["non_repeating" + suffix] += walk(matches[row], fresh, block)
                if not suffix:
                    kept += 1
                    recalled += int(found[row, :fresh].sum())
                    judged += fresh
    result = {name: summary(values, block) for name, values in cycles.items()}
    result["prompts"] = len(sequences)
    result["prompts_kept_non_repeating"] = kept
    result["recall16_first_row"] = round(recalled / max(1, judged), 4)
    return result


def acceptance_report(target, draft, texts, stops):
    """Per set; each of the texts may be longer than this draft's block needs."""
    end = CONTINUATION + draft.config.block_size
    return {
        label: acceptance(target, draft, length, ids[:, : length + end], stops)
        for label, (length, ids) in texts.items()
    }


def printed(report):
    for label, part in report.items():
        print(label, json.dumps(part["loss"]), json.dumps(part.get("loss_by_position_python")))
        for draft, rows in part["acceptance"].items():
            for name, row in rows.items():
                means = {key: value["mean_retained"] for key, value in row.items() if isinstance(value, dict)}
                print(" ", draft, name, json.dumps(means), row["prompts_kept_non_repeating"], row["recall16_first_row"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path, help="folder of the BF16 export, or of the MLX export alone")
    parser.add_argument("--draft", type=pathlib.Path, action="append", default=[], help="may be given several times")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the prompts to use")
    parser.add_argument("--only-4-bit", action="store_true", help="leave out the BF16 weights")
    arguments = parser.parse_args()
    validation = Validation(arguments.data, arguments.device)
    stops = set(json.loads((arguments.target / "generation_config.json").read_text())["eos_token_id"])
    drafts = {folder.name: load_draft(folder, arguments.device) for folder in arguments.draft}
    block = max((draft.config.block_size for draft in drafts.values()), default=0)
    report = {}
    for label, four_bit in (("mlx4", True),) if arguments.only_4_bit else (("bf16", False), ("mlx4", True)):
        target = load_target(arguments.target, arguments.device, four_bit)
        part = report[label] = {"loss": losses(target, validation)}
        if arguments.device == "cuda":
            part["loss_by_position_python"] = long_losses(target, validation)
        texts = continuations(target, validation, block, scale=arguments.scale) if drafts else {}
        part["acceptance"] = {name: acceptance_report(target, draft, texts, stops) for name, draft in drafts.items()}
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    printed(report)


if __name__ == "__main__":
    main()
