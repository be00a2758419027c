"""Compare a target with transformers' class, and drafts with the package of DFlash's authors, in float32 and bfloat16.

    python check_reference.py ../models/mini-moe-mlx4 --draft ../models/mini-moe-draft

The target's folder is a BF16 export or an MLX export; an MLX export is dequantised, the same weights for both sides.
"""

import argparse
import json
import pathlib

import torch
import torch.nn.functional as F
from draft import load_draft
from tokenizers import Tokenizer

from model import load_target

DTYPES = (torch.float32, torch.bfloat16)
PROMPTS = pathlib.Path(__file__).parent.parent / "models/prompts"
TAPS = (1, 4, 6)


def text_ids(folder, length):
    """The ids of a bundled prompt."""
    text = (PROMPTS / "long.cc.txt").read_text()
    return torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids[:length]])


def target_as(folder, dtype, device):
    target = load_target(folder, device)
    return target.float() if dtype == torch.float32 else target


def reference(folder, target, dtype, device):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig

    text = json.loads((folder / "config.json").read_text())["text_config"]
    if target.config.num_experts:
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**text))
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text))
    missing, unexpected = model.load_state_dict(target.state_dict(), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.to(device, dtype).eval()


@torch.no_grad()
def compare_target(folder, dtype, device, length, tokens):
    target = target_as(folder, dtype, device)
    other = reference(folder, target, dtype, device)
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, target.config.vocab_size, (2, length), generator=generator).to(device)
    hidden, taps = target.hidden(ids, TAPS)
    logits = target.logits(hidden).float()
    out = other(ids, output_hidden_states=True)
    others = torch.cat([out.hidden_states[layer + 1] for layer in TAPS], -1)
    states = target.new_states(2, length, device)
    target.hidden(ids[:, : length // 2], states=states)
    steps = [target.hidden(ids[:, p : p + 1], states=states, start=p)[0] for p in range(length // 2, length)]
    stepped = target.logits(torch.cat(steps, 1)).float()
    prompt = text_ids(folder, length).to(device)
    ours = target.greedy(prompt, tokens)[0][0, length:]
    theirs = other.generate(prompt, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens)[0, length:]
    return {
        "largest_logit": round(logits.abs().max().item(), 3),
        "logit_difference": (logits - out.logits.float()).abs().max().item(),
        "tap_difference": (taps.float() - others.float()).abs().max().item(),
        "argmax_agreement": (logits.argmax(-1) == out.logits.argmax(-1)).float().mean().item(),
        "step_by_step_difference": (logits[:, length // 2 :] - stepped).abs().max().item(),
        "equal_greedy_tokens": f"{(ours == theirs).long().cumprod(0).sum().item()} of {tokens}",
    }


@torch.no_grad()
def compare_draft(target_folder, folder, dtype, device, length=1200, blocks=24):
    """Blocks at anchors spread over a bundled prompt, so that windows are reached."""
    from dflash.model import DFlash2DraftModel, DFlashDraftModel

    target, draft = target_as(target_folder, dtype, device), load_draft(folder, device).to(dtype)
    kind = DFlash2DraftModel if draft.candidate_selector else DFlashDraftModel
    other = kind.from_pretrained(folder, dtype=dtype).to(device).eval()
    ids = text_ids(target_folder, length).to(device)
    _, taps = target.hidden(ids, draft.config.target_layer_ids)
    embedding, block = target.model.embed_tokens.weight, draft.config.block_size
    anchors = torch.linspace(8, length - block, blocks, device=device).long()[None]
    rows = draft.rows(ids, taps, anchors, embedding)[0]
    drafts = draft.propose(ids, taps, anchors, embedding)[0][0]
    difference, largest, equal = 0.0, 0.0, 0
    for index, anchor in enumerate(anchors[0].tolist()):
        tokens = torch.full((1, block), draft.config.mask_token_id, device=device)
        tokens[0, 0] = ids[0, anchor]
        hidden = other(
            position_ids=torch.arange(anchor + block, device=device)[None],
            noise_embedding=F.embedding(tokens, embedding),
            target_hidden=taps[:, :anchor],
        )[:, 1:]
        if draft.candidate_selector:
            theirs = other.propose(hidden, tokens[:, 0], lambda x: F.linear(x, embedding), 0.0)[0][0]
        else:
            theirs = other.compute_logits(hidden, lambda x: F.linear(x, embedding)).argmax(-1)[0]
        difference = max(difference, (hidden[0] - rows[index]).abs().max().item())
        largest = max(largest, hidden.abs().max().item())
        equal += (theirs == drafts[index]).sum().item()
    return {
        "largest_hidden": round(largest, 3),
        "hidden_difference": difference,
        "equal_proposals": f"{equal} of {blocks * (block - 1)}",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--draft", type=pathlib.Path, action="append", default=[], help="may be given several times")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64, help="of the greedy continuation that is compared")
    arguments = parser.parse_args()
    for dtype in DTYPES:
        result = compare_target(arguments.target, dtype, arguments.device, arguments.length, arguments.tokens)
        print(arguments.target.name, dtype, json.dumps(result), flush=True)
        for folder in arguments.draft:
            result = compare_draft(arguments.target, folder, dtype, arguments.device)
            print(folder.name, dtype, json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
