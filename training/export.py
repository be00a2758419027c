"""Write the model folders: Hugging Face BF16, MLX affine 4-bit, and the draft.

As a program: write the MLX folder of a BF16 folder.
"""

import argparse
import json
import pathlib
import shutil

import torch
from draft import draft_tensors
from quantise import BITS, GROUP, pack, quantise
from safetensors.torch import load_file, save_file

from model import PREFIX, hf_tensors, is_quantised

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def added_ids(folder):
    added = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())["added_tokens"]
    return {token["content"]: token["id"] for token in added}


def export_target(target, tokenizer, out):
    """The Hugging Face folder: model.safetensors, config.json, generation_config.json and the tokenizer."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    ids = added_ids(tokenizer)
    save_file(hf_tensors(target), out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", target.config.hf_config(ids))
    generation = {"do_sample": False, "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}
    generation["pad_token_id"] = ids["<|endoftext|>"]
    write_json(out / "generation_config.json", generation)
    for name in TOKENIZER_FILES:
        shutil.copyfile(pathlib.Path(tokenizer) / name, out / name)


def mlx_tensors(source):
    """Renames, shifts, transposes and quantises the tensors of a Hugging Face export."""
    tensors = {}
    for name, value in source.items():
        path = "language_model.model." + name.removeprefix(PREFIX)
        if is_quantised(name, value):
            codes, scales, biases = quantise(value)
            module = path.removesuffix(".weight")
            tensors.update({f"{module}.weight": pack(codes), f"{module}.scales": scales, f"{module}.biases": biases})
        elif name.endswith("conv1d.weight"):
            tensors[path] = value.transpose(1, 2).contiguous()
        elif name.endswith("norm.weight") and ".linear_attn." not in name:
            tensors[path] = value + 1.0
        else:
            tensors[path] = value
    return tensors


def export_mlx(source, out):
    source, out = pathlib.Path(source), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tensors = mlx_tensors(load_file(source / "model.safetensors"))
    assert all(
        value.dtype in (torch.uint32, torch.bfloat16) or name.endswith("A_log") for name, value in tensors.items()
    )
    save_file(tensors, out / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((source / "config.json").read_text())
    config["quantization"] = {"group_size": GROUP, "bits": BITS, "mode": "affine"}
    config["quantization_config"] = config["quantization"]
    write_json(out / "config.json", dict(sorted(config.items())))
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        shutil.copyfile(source / name, out / name)


def export_draft(draft, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    save_file(draft_tensors(draft), out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", draft.config.hf_config())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=pathlib.Path, help="folder of the BF16 export")
    parser.add_argument("out", type=pathlib.Path, help="folder of the MLX export")
    arguments = parser.parse_args()
    export_mlx(arguments.source, arguments.out)


if __name__ == "__main__":
    main()
