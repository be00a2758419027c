"""Train the target and export it as a Hugging Face BF16 folder.

The last part of the run trains every second step through the quantised copy of the weights, so that both exports are
good. Routed experts add their load-balancing loss.
"""

import argparse
import contextlib
import json
import math
import pathlib
import random
import time

import torch
import torch.nn.functional as F
from data import Validation, Windows
from evaluate import losses
from export import export_target
from quantise import quantised_weights

from model import BALANCE_WEIGHT, Target, TargetConfig, load_target, quantised_bits

SHAPES = {
    "mini-dense": {},
    "mini-moe": {
        "hidden_size": 192,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}

# (sequences, length): most batches are short; some reach past the longest prompt of the demonstrations.
SHORT, LONG = (32, 1024), (4, 8448)
QUANTISED_SHARE = 0.25


def batch_shape(step):
    return LONG if step % 8 == 7 else SHORT


def optimiser_for(model, rate):
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        matrix = quantised_bits(name, parameter) and "embed_tokens" not in name
        (decayed if matrix else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def learning_rate(peak, progress, step):
    cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return peak * min(1.0, (step + 1) / 200) * cosine


def language_loss(hidden, embedding, labels):
    return F.cross_entropy(F.linear(hidden, embedding).flatten(0, 1).float(), labels.flatten())


def compile_layers(model):
    """Compiles the two layer kinds and the loss; layers of a kind share their code for each batch shape. What does not
    compile runs as it is."""
    global language_loss
    torch._dynamo.config.cache_size_limit = 64
    torch._dynamo.config.suppress_errors = True
    for layer in model.model.layers:
        layer.forward = torch.compile(layer.forward, dynamic=False)
    language_loss = torch.compile(language_loss, dynamic=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, help="folder of the BF16 export")
    parser.add_argument("--shape", choices=SHAPES, default="mini-dense")
    parser.add_argument("--seed", type=int, default=1, help="of the weights; the windows and the coin use the next two")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--limit", type=float, default=1e9, help="seconds after which the run ends; the schedule follows"
    )
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", type=int, default=1, help="divides batch and length, for a trial on a CPU")
    parser.add_argument("--compile", action="store_true", help="compile the layers and the loss with torch.compile")
    arguments = parser.parse_args()
    device = arguments.device
    torch.manual_seed(arguments.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    windows = Windows(arguments.data, device, seed=arguments.seed + 1)
    validation = Validation(arguments.data, device)
    model = Target(TargetConfig(**SHAPES[arguments.shape])).to(device)
    sizes = {name: quantised_bits(name, parameter) for name, parameter in model.named_parameters()}
    matrices = [(parameter, sizes[name]) for name, parameter in model.named_parameters() if sizes[name]]
    optimiser = optimiser_for(model, arguments.rate)
    if arguments.compile:
        compile_layers(model)
    coin = random.Random(arguments.seed + 2)
    started, tokens, log, smooth = time.monotonic(), 0, [], None
    step, progress = 0, 0.0
    while progress < 1.0:
        sequences, length = batch_shape(step)
        ids = windows.draw(max(1, sequences // arguments.shrink), length // arguments.shrink + 1)
        quantised = progress > 1 - QUANTISED_SHARE and coin.random() < 0.5
        rate = learning_rate(arguments.rate, progress, step)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        with quantised_weights(matrices) if quantised else contextlib.nullcontext():
            with torch.autocast(device, torch.bfloat16):
                balances = []
                hidden, _ = model.hidden(ids[:, :-1], balances=balances)
                loss = language_loss(hidden, model.model.embed_tokens.weight, ids[:, 1:])
            balance = sum(part for part in balances if part is not None) / len(balances)
            (loss + BALANCE_WEIGHT * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tokens += ids[:, 1:].numel()
        if step % 50 == 0:
            value = loss.item()
            smooth = value if smooth is None else 0.8 * smooth + 0.2 * value
            seconds = time.monotonic() - started
            log.append({"step": step, "seconds": round(seconds, 1), "tokens": tokens, "loss": round(value, 4)})
            print(
                f"step {step} {seconds:.0f} s {tokens / 1e6:.1f} M tokens, loss {smooth:.3f}, rate {rate:.2e}, "
                f"balance {torch.as_tensor(balance).detach().item():.3f}",
                flush=True,
            )
            if not math.isfinite(value):
                raise SystemExit("the loss is not finite")
        if step % 1500 == 1499:
            export_target(model, arguments.tokenizer, arguments.out)
        step += 1
        progress = max(step / arguments.steps, (time.monotonic() - started) / arguments.limit)
    seconds = time.monotonic() - started
    export_target(model, arguments.tokenizer, arguments.out)
    report = {
        "steps": step,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "rate": arguments.rate,
        "seed": arguments.seed,
        "torch": torch.__version__,
    }
    report["parameters"] = sum(p.numel() for p in model.parameters())
    for label, four_bit in (("bf16", False), ("mlx4", True)):
        report[f"loss_{label}"] = losses(load_target(arguments.out, device, four_bit), validation)
    report["log"] = log[::10]
    (arguments.out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "log"}))


if __name__ == "__main__":
    main()
