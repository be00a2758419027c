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

from model import PREFIX, hf_tensors, quantised_bits, shifted_norm

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


def unstacked(source):
    """The tensors under MLX's names: experts as three stacks instead of two."""
    for name, value in source.items():
        path = "language_model.model." + name.removeprefix(PREFIX)
        module = path.removesuffix(".weight")
        if name.endswith(".experts.gate_up_proj"):
            stem = module.removesuffix("experts.gate_up_proj") + "switch_mlp."
            for part, rows in zip(("gate_proj", "up_proj"), value.chunk(2, 1), strict=True):
                yield stem + part, quantised_bits(name, value), rows.contiguous()
        elif name.endswith(".experts.down_proj"):
            yield module.removesuffix("experts.down_proj") + "switch_mlp.down_proj", quantised_bits(name, value), value
        elif bits := quantised_bits(name, value):
            yield module, bits, value
        elif name.endswith("conv1d.weight"):
            yield path, 0, value.transpose(1, 2).contiguous()
        else:
            yield path, 0, value + 1.0 if shifted_norm(name) else value


def mlx_tensors(source):
    """Renames, shifts, transposes and quantises the tensors of a Hugging Face export: the tensors, and the modules that
    do not have the usual number of bits."""
    tensors, overrides = {}, {}
    for path, bits, value in unstacked(source):
        if not bits:
            tensors[path] = value
            continue
        codes, scales, biases = quantise(value, bits)
        tensors.update({f"{path}.weight": pack(codes, bits), f"{path}.scales": scales, f"{path}.biases": biases})
        if bits != BITS:
            overrides[path] = {"group_size": GROUP, "bits": bits}
    return tensors, overrides


def export_mlx(source, out):
    source, out = pathlib.Path(source), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tensors, overrides = mlx_tensors(load_file(source / "model.safetensors"))
    assert all(
        value.dtype in (torch.uint32, torch.bfloat16) or name.endswith("A_log") for name, value in tensors.items()
    )
    save_file(tensors, out / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((source / "config.json").read_text())
    config["quantization"] = {"group_size": GROUP, "bits": BITS, "mode": "affine", **overrides}
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
