"""Train the DFlash2 draft against the frozen 4-bit target and export it.

Loss: block cross-entropy with weights exp(-(j - 1) / 4), plus selector cross-entropy over the 16 best candidates with
the true predecessor; rows whose true token is not among the candidates are left out of the second part.

The text is corpus prefixes with short greedy continuations by the target (short, because a small greedy model soon
repeats itself), and in every sixth batch plain corpus text at long positions.
"""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F
from data import Validation, Windows
from draft import Draft, DraftConfig
from evaluate import acceptance_report, continuations
from export import export_draft

from model import load_target

GAMMA = 4.0
PROMPT, ROLLOUT = 448, 64
POOL, PASSES = 4096, 3
SEQUENCES, ANCHORS = 128, 24
CORPUS_EVERY, CORPUS_SHAPE, CORPUS_ANCHORS = 6, (4, 8192), 256
QUICK = tuple((domain, domain, 256, 64) for domain in ("python", "cpp", "prose", "json"))


def rollout_batches(target, windows, taps, block, shrink, generator):
    """Endless batches (ids, taps, anchors): corpus prefixes with greedy continuations, anchors in the continuations."""
    device = windows.ids.device
    while True:
        pool, features = target.greedy(windows.draw(max(2, POOL // shrink**2), PROMPT), ROLLOUT, taps)
        features = F.pad(features, (0, 0, 0, 1))
        for _ in range(PASSES):
            for rows in torch.randperm(len(pool), generator=generator).to(device).split(SEQUENCES):
                last = PROMPT + ROLLOUT - block + 1
                anchors = torch.randint(PROMPT, last, (len(rows), ANCHORS), generator=generator).to(device)
                yield pool[rows], features[rows], anchors


def corpus_batch(target, windows, taps, block, shrink, generator):
    sequences, length = CORPUS_SHAPE
    ids = windows.draw(max(1, sequences // shrink), length // shrink)
    with torch.no_grad():
        _, features = target.hidden(ids, taps)
    shape = (len(ids), CORPUS_ANCHORS // shrink)
    anchors = torch.randint(1, ids.shape[1] - block + 1, shape, generator=generator).to(ids.device)
    return ids, features, anchors


def block_loss(draft, ids, taps, anchors, embedding):
    """Unary and selector losses."""
    block = draft.config.block_size
    hidden = draft.rows(ids, taps, anchors, embedding)
    labels = ids.unfold(1, block, 1).gather(1, anchors[..., None].expand(-1, -1, block))
    weights = torch.exp(-torch.arange(block - 1, device=ids.device) / GAMMA).expand(labels[..., 1:].shape)
    unary = F.linear(hidden, embedding.to(hidden.dtype)).float()
    truth = labels[..., 1:]
    losses = F.cross_entropy(unary.flatten(0, 2), truth.flatten(), reduction="none").view(truth.shape)
    unary_loss = (losses * weights).sum() / weights.sum()

    best, candidates = unary.topk(draft.config.selector_top_k, -1)
    selector = draft.candidate_selector
    scores = selector.scores(best, candidates, selector.hidden_projection(hidden), labels[..., :-1])
    hit = candidates == truth[..., None]
    usable = hit.any(-1).float() * weights
    picked = F.cross_entropy(scores.flatten(0, 2), hit.long().argmax(-1).flatten(), reduction="none").view(truth.shape)
    selector_loss = (picked * usable).sum() / usable.sum().clamp(min=1.0)
    return unary_loss, selector_loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path, help="folder of the BF16 export")
    parser.add_argument("out", type=pathlib.Path, help="folder of the draft export")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--limit", type=float, default=1e9, help="seconds after which the run ends; the schedule follows"
    )
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--check-every", type=int, default=1000, help="steps between checks of the acceptance")
    arguments = parser.parse_args()
    device = arguments.device
    torch.manual_seed(arguments.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    windows = Windows(arguments.data, device, seed=arguments.seed + 1)
    validation = Validation(arguments.data, device)
    stops = set(json.loads((arguments.target / "generation_config.json").read_text())["eos_token_id"])
    target = load_target(arguments.target, device, four_bit=True)
    embedding = target.model.embed_tokens.weight
    added = json.loads((arguments.target / "tokenizer.json").read_text())["added_tokens"]
    mask_id = next(token["id"] for token in added if token["content"] == "<|mask|>")
    draft = Draft(DraftConfig(mask_token_id=mask_id)).to(device)
    texts = continuations(target, validation, draft.config.block_size, QUICK, 1 / arguments.shrink)
    optimiser = torch.optim.AdamW(
        draft.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
    )
    taps, block = draft.config.target_layer_ids, draft.config.block_size
    generator = torch.Generator().manual_seed(arguments.seed + 2)
    rollouts = rollout_batches(target, windows, taps, block, arguments.shrink, generator)
    started, log, step, progress = time.monotonic(), [], 0, 0.0
    while progress < 1.0:
        if step % CORPUS_EVERY == CORPUS_EVERY - 1:
            batch = corpus_batch(target, windows, taps, block, arguments.shrink, generator)
        else:
            batch = next(rollouts)
        rate = arguments.rate * min(1.0, (step + 1) / 100) * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(device, torch.bfloat16):
            unary_loss, selector_loss = block_loss(draft, *batch, embedding)
        optimiser.zero_grad(set_to_none=True)
        (unary_loss + selector_loss).backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0:
            seconds = time.monotonic() - started
            log.append({"step": step, "seconds": round(seconds, 1), "unary": round(unary_loss.item(), 4)})
            log[-1]["selector"] = round(selector_loss.item(), 4)
            print(json.dumps(log[-1]), flush=True)
        if (step + 1) % arguments.check_every == 0:
            export_draft(draft, arguments.out)
            with torch.autocast(device, torch.bfloat16):
                report = acceptance_report(target, draft, texts, stops)
            means = {
                name: row["non_repeating"] and row["non_repeating"]["mean_retained"] for name, row in report.items()
            }
            print("retained per cycle", json.dumps(means), flush=True)
        step += 1
        progress = max(step / arguments.steps, (time.monotonic() - started) / arguments.limit)
    export_draft(draft, arguments.out)
    report = {
        "steps": step,
        "seconds": round(time.monotonic() - started, 1),
        "rate": arguments.rate,
        "seed": arguments.seed,
    }
    report.update(
        {"parameters": sum(p.numel() for p in draft.parameters()), "torch": torch.__version__, "log": log[::10]}
    )
    (arguments.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
