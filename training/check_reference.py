"""Compare this folder's target with transformers' Qwen3.5 class on an exported BF16 folder, in float32 and bfloat16."""

import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file

from model import PREFIX, load_config, load_target


def reference(folder, dtype, device):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    text = json.loads((folder / "config.json").read_text())["text_config"]
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text)).to(dtype)
    tensors = load_file(folder / "model.safetensors")
    state = {"model." + name.removeprefix(PREFIX): value for name, value in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.to(device).eval()


@torch.no_grad()
def compare(folder, dtype, device, length):
    ids = torch.randint(0, load_config(folder).vocab_size, (2, length), generator=torch.Generator().manual_seed(4)).to(
        device
    )
    target = load_target(folder, device)
    if dtype == torch.float32:
        target = target.float()
    hidden, taps = target.hidden(ids, (1, 4, 6))
    logits = target.logits(hidden).float()
    out = reference(folder, dtype, device)(ids, output_hidden_states=True)
    others = torch.cat([out.hidden_states[layer + 1] for layer in (1, 4, 6)], -1)
    states = target.new_states(2, length, device)
    target.hidden(ids[:, : length // 2], states=states)
    steps = [target.hidden(ids[:, p : p + 1], states=states, start=p)[0] for p in range(length // 2, length)]
    stepped = target.logits(torch.cat(steps, 1)).float()
    return {
        "largest_logit": round(logits.abs().max().item(), 3),
        "logit_difference": (logits - out.logits.float()).abs().max().item(),
        "tap_difference": (taps.float() - others.float()).abs().max().item(),
        "argmax_agreement": (logits.argmax(-1) == out.logits.argmax(-1)).float().mean().item(),
        "step_by_step_difference": (logits[:, length // 2 :] - stepped).abs().max().item(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=200)
    arguments = parser.parse_args()
    for dtype in (torch.float32, torch.bfloat16):
        print(str(dtype), json.dumps(compare(arguments.target, dtype, arguments.device, arguments.length)))


if __name__ == "__main__":
    main()
