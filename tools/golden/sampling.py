"""Golden set `sampling`: filtered target distributions, rejection decisions and residuals of the references.

Distributions come from the authors' dflash package and from transformers' logits warpers; where both serve a setting
they must agree here. Rejection runs dflash's own routine with the uniform numbers given instead of drawn, and records
what it would draw the corrected token from.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import torch
from common import normal, save_safetensors, setup_torch, stage_metadata, versions

ROWS = 6
VOCAB = 64
CANDIDATES = 16
GAMMA = 7
# temperature, top_k, top_p, min_p
SETTINGS = (
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.3, 20, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (0.8, 20, 0.95, 0.0),
    (0.6, 8, 0.5, 0.0),
    (1.0, 0, 1.0, 0.05),
    (1.5, 30, 0.9, 0.1),
    (0.05, 0, 0.3, 0.0),
)


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return scores.softmax(-1)


def rejection(dflash_model, tokens, p, q, indices, uniforms) -> tuple[int, torch.Tensor]:
    seen: list[torch.Tensor] = []

    def record(probabilities: torch.Tensor) -> torch.Tensor:
        seen.append(probabilities[0].clone())
        return torch.zeros(probabilities.shape[:-1], dtype=torch.long)

    with (
        mock.patch.object(torch, "rand_like", lambda _: uniforms),
        mock.patch.object(dflash_model, "_sample_probs", record),
    ):
        accepted, _ = dflash_model._rejection_sample(tokens, p, q, indices)
    return accepted, seen[-1]


def make_sampling(out: Path) -> dict[str, float]:
    setup_torch()
    from dflash import model as dflash_model

    logits = normal(51, "sampling.logits", (ROWS, VOCAB), 2.0, dtype=torch.float32)
    tensors: dict[str, torch.Tensor] = {"logits": logits, "settings": torch.tensor(SETTINGS, dtype=torch.float32)}
    worst = 0.0
    for number, (temperature, top_k, top_p, min_p) in enumerate(SETTINGS):
        expected = warped(logits, temperature, top_k, top_p, min_p)
        if not min_p:
            authors = dflash_model._sampling_probs(logits, temperature, top_p, top_k)
            if not torch.equal(authors > 0, expected > 0):
                raise SystemExit(f"sampling: the references keep different tokens for setting {number}")
            worst = max(worst, (authors - expected).abs().max().item())
        tensors[f"probabilities.{number}"] = expected

    # Rejection at temperature 1: p from the target's rows, q over 16 candidates per position.
    target = normal(52, "sampling.target", (1, GAMMA + 1, VOCAB), 2.0, dtype=torch.float32)
    draft = target[:, :GAMMA] + normal(53, "sampling.draft", (1, GAMMA, VOCAB), 1.5, dtype=torch.float32)
    scores, indices = draft.topk(CANDIDATES, -1)
    q = scores.softmax(-1)
    p = dflash_model._sampling_probs(target, 1.0)
    generator = torch.Generator().manual_seed(54)
    cases = 24
    uniforms = torch.rand((cases, GAMMA), generator=generator)
    accepted, tokens, finals = [], [], []
    for case in range(cases):
        picks = torch.multinomial(q[0], 1, generator=generator)[:, 0]
        drafted = indices[0].gather(-1, picks[:, None])[:, 0]
        count, final = rejection(dflash_model, drafted[None], p, q, indices, uniforms[case][None])
        accepted.append(count)
        tokens.append(drafted)
        finals.append(final)
    if len(set(accepted)) < 4:
        raise SystemExit(f"sampling: accepted lengths {sorted(set(accepted))} are too few kinds")
    tensors |= {
        "rejection.target_logits": target[0],
        "rejection.candidate_ids": indices[0],
        "rejection.candidate_scores": scores[0],
        "rejection.uniforms": uniforms,
        "rejection.tokens": torch.stack(tokens),
        "rejection.accepted": torch.tensor(accepted),
        "rejection.final": torch.stack(finals),
    }
    directory = out / "sampling"
    directory.mkdir(parents=True, exist_ok=True)
    metadata = stage_metadata(
        "sampling distributions, rejection decisions, residuals",
        "dflash 0.1.0 and transformers",
        versions("torch", "transformers", "numpy"),
    )
    save_safetensors(directory / "stages.safetensors", tensors, metadata)
    return {"references_differ_by": worst, "accepted_kinds": len(set(accepted))}
