"""Train a DFlash draft against the frozen 4-bit target and export it.

drafts.json names the drafts and says where each differs from Recipe's defaults, which are those of mini-dense-draft.

Loss: over the rows of a block, cross-entropy against the text (or the divergence from the target's distribution) with
weights exp(-(j - 1) / decay). With a selector also its cross-entropy over the best candidates with the true
predecessor; rows whose true token is not among the candidates are left out of that part.

The text is corpus prefixes with short greedy continuations by the target (short, because a small greedy model soon
repeats itself), and in every so many batches plain corpus text at long positions.
"""

import argparse
import itertools
import json
import math
import pathlib
import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from data import Validation, Windows
from draft import Draft, DraftConfig, load_draft
from evaluate import acceptance_report, continuations
from export import export_draft

from model import load_target

RECIPES = pathlib.Path(__file__).with_name("drafts.json")
SEQUENCES = 128
CORPUS_SHAPE = (4, 8192)
QUICK = tuple((domain, domain, 256, 64) for domain in ("python", "cpp", "prose", "json"))


@dataclass
class Recipe:
    target: str
    seed: int
    objective: str
    data: str
    config: dict = field(default_factory=dict)
    # (sequences, prompt length) of the pools of continuations, in turn; of longer prompts the draft sees as many of the
    # last tokens as the first pool's prompts have (its positions are relative, so nothing else changes).
    pools: tuple = ((4096, 448),)
    rollout: int = 64
    passes: int = 3
    anchors: int = 24
    corpus_every: int = 6
    corpus_anchors: int = 256
    decay: float = 4.0
    soft_labels: bool = False
    rate: float = 1.5e-3


def recipe_named(name):
    return Recipe(**json.loads(RECIPES.read_text())[name])


@dataclass
class Tapped:
    """Text with what the target makes of it: ids [B, T], taps [B, T, n * H], last [B, T, H] (the last layer's output,
    or None), and the positions of the anchors [B, blocks]."""

    ids: torch.Tensor
    taps: torch.Tensor
    last: torch.Tensor | None
    anchors: torch.Tensor


class Batches:
    def __init__(self, recipe, config, target, windows, shrink):
        self.recipe, self.target, self.windows, self.shrink = recipe, target, windows, shrink
        self.block = config.block_size
        self.tap_columns = len(config.target_layer_ids) * config.hidden_size
        last = (config.num_target_layers - 1,) if recipe.soft_labels else ()
        self.layers = config.target_layer_ids + last
        self.random = torch.Generator().manual_seed(recipe.seed + 2)

    def draw_anchors(self, low, high, shape):
        return torch.randint(low, high, shape, generator=self.random).to(self.windows.ids.device)

    def tapped(self, ids, features, anchors):
        taps, last = features[..., : self.tap_columns], features[..., self.tap_columns :]
        return Tapped(ids, taps, last if last.shape[-1] else None, anchors)

    def rollouts(self):
        """Endless batches of corpus prefixes with greedy continuations, anchors in the continuations."""
        r = self.recipe
        prompt = r.pools[0][1]
        for sequences, length in itertools.cycle(r.pools):
            prompts = self.windows.draw(max(2, sequences // self.shrink**2), length)
            ids, features = self.target.greedy(prompts, r.rollout, self.layers)
            ids = ids[:, length - prompt :]
            features = F.pad(features[:, length - prompt :], (0, 0, 0, 1))
            for _ in range(r.passes):
                order = torch.randperm(len(ids), generator=self.random).to(ids.device)
                for rows in order.split(SEQUENCES):
                    end = prompt + r.rollout - self.block + 1
                    anchors = self.draw_anchors(prompt, end, (len(rows), r.anchors))
                    yield self.tapped(ids[rows], features[rows], anchors)

    def corpus(self):
        sequences, length = CORPUS_SHAPE
        ids = self.windows.draw(max(1, sequences // self.shrink), length // self.shrink)
        with torch.no_grad():
            _, features = self.target.hidden(ids, self.layers)
        shape = (len(ids), self.recipe.corpus_anchors // self.shrink)
        return self.tapped(ids, features, self.draw_anchors(1, ids.shape[1] - self.block + 1, shape))

    def __iter__(self):
        rollouts = self.rollouts()
        for step in itertools.count(1):
            yield self.corpus() if step % self.recipe.corpus_every == 0 else next(rollouts)


def unary_losses(logits, truth, soft):
    """Per row: cross-entropy with the text, or the divergence from the target's distribution, given as logits."""
    if soft is None:
        return F.cross_entropy(logits.float().flatten(0, 2), truth.flatten(), reduction="none").view(truth.shape)
    wanted = soft.float().log_softmax(-1)
    return (wanted.exp() * (wanted - logits.float().log_softmax(-1))).sum(-1)


def selector_losses(selector, hidden, logits, labels, top_k):
    """Per row: the selector's cross-entropy, and whether the true token is among the candidates."""
    best, candidates = logits.topk(top_k, -1)
    scores = selector.scores(best, candidates, selector.hidden_projection(hidden), labels[..., :-1])
    hit = candidates == labels[..., 1:, None]
    index = hit.long().argmax(-1)
    losses = F.cross_entropy(scores.flatten(0, 2), index.flatten(), reduction="none").view(index.shape)
    return losses, hit.any(-1)


def block_loss(draft, target, batch, decay):
    """Unary and selector losses; the second is None for a draft without a selector."""
    block, embedding = draft.config.block_size, target.model.embed_tokens.weight
    hidden = draft.rows(batch.ids, batch.taps, batch.anchors, embedding)
    labels = batch.ids.unfold(1, block, 1).gather(1, batch.anchors[..., None].expand(-1, -1, block))
    weights = torch.exp(-torch.arange(block - 1, device=labels.device) / decay).expand(labels[..., 1:].shape)
    soft = None
    if batch.last is not None:
        rows = batch.anchors[..., None] + torch.arange(block - 1, device=labels.device)
        gathered = batch.last.gather(1, rows.flatten(1)[..., None].expand(-1, -1, batch.last.shape[-1]))
        with torch.no_grad():
            soft = target.logits(target.model.norm(gathered)).unflatten(1, rows.shape[1:])
    logits = F.linear(hidden, embedding.to(hidden.dtype))
    unary_loss = (unary_losses(logits, labels[..., 1:], soft) * weights).sum() / weights.sum()
    if draft.candidate_selector is None:
        return unary_loss, None
    top_k = draft.config.selector_top_k
    losses, hit = selector_losses(draft.candidate_selector, hidden, logits, labels, top_k)
    usable = hit.float() * weights
    return unary_loss, (losses * usable).sum() / usable.sum().clamp(min=1.0)


def compile_draft(draft):
    """Compiles the layers and the unary loss; what does not compile runs as it is."""
    global unary_losses
    torch._dynamo.config.cache_size_limit = 64
    torch._dynamo.config.suppress_errors = True
    for layer in draft.layers:
        layer.forward = torch.compile(layer.forward, dynamic=False)
    unary_losses = torch.compile(unary_losses, dynamic=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a draft of drafts.json")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path, help="folder of the target: its BF16 or its MLX export")
    parser.add_argument("out", type=pathlib.Path, help="folder of the draft export")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--limit", type=float, default=1e9, help="seconds after which the run ends; the schedule follows"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", type=int, default=1, help="divides the batches, for a trial on a CPU")
    parser.add_argument("--check-every", type=int, default=10**9, help="steps between checks of the acceptance")
    parser.add_argument("--compile", action="store_true", help="compile the layers and the loss with torch.compile")
    arguments = parser.parse_args()
    device, recipe = arguments.device, recipe_named(arguments.name)
    torch.manual_seed(recipe.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    windows = Windows(arguments.data, device, seed=recipe.seed + 1)
    validation = Validation(arguments.data, device)
    stops = set(json.loads((arguments.target / "generation_config.json").read_text())["eos_token_id"])
    target = load_target(arguments.target, device, four_bit=True)
    added = json.loads((arguments.target / "tokenizer.json").read_text())["added_tokens"]
    mask_id = next(token["id"] for token in added if token["content"] == "<|mask|>")
    config = DraftConfig(mask_token_id=mask_id, **recipe.config)
    draft = Draft(config).to(device)
    parameters = sum(p.numel() for p in draft.parameters())
    print(f"{arguments.name}: {parameters} parameters", flush=True)
    checked = arguments.check_every < arguments.steps
    texts = continuations(target, validation, config.block_size, QUICK, 1 / arguments.shrink) if checked else {}
    optimiser = torch.optim.AdamW(
        draft.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
    )
    if arguments.compile:
        compile_draft(draft)
    batches = iter(Batches(recipe, config, target, windows, arguments.shrink))
    started, log, step, progress = time.monotonic(), [], 0, 0.0
    while progress < 1.0:
        batch = next(batches)
        rate = recipe.rate * min(1.0, (step + 1) / 100) * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(device, torch.bfloat16):
            unary_loss, selector_loss = block_loss(draft, target, batch, recipe.decay)
        optimiser.zero_grad(set_to_none=True)
        (unary_loss if selector_loss is None else unary_loss + selector_loss).backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0:
            seconds = time.monotonic() - started
            log.append({"step": step, "seconds": round(seconds, 1), "unary": round(unary_loss.item(), 4)})
            if selector_loss is not None:
                log[-1]["selector"] = round(selector_loss.item(), 4)
            print(arguments.name, json.dumps(log[-1]), flush=True)
        if (step + 1) % arguments.check_every == 0:
            export_draft(draft, arguments.out)
            report = acceptance_report(target, load_draft(arguments.out, device), texts, stops)
            means = {
                name: row["non_repeating"] and row["non_repeating"]["mean_retained"] for name, row in report.items()
            }
            print(arguments.name, "retained per cycle", json.dumps(means), flush=True)
        step += 1
        progress = max(step / arguments.steps, (time.monotonic() - started) / arguments.limit)
    export_draft(draft, arguments.out)
    report = {
        "name": arguments.name,
        "steps": step,
        "seconds": round(time.monotonic() - started, 1),
        "rate": recipe.rate,
        "seed": recipe.seed,
        "parameters": parameters,
        "torch": torch.__version__,
        "log": log[::10],
    }
    (arguments.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
