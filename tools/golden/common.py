"""Shared parts of the golden scripts: seeded draws, a canonical safetensors writer, versions, digests.

Nothing here depends on an installed reference; only numpy and torch are used. Files are written so that equal
tensors give equal bytes: header keys sorted, metadata sorted, tensors ordered by item size (descending) and name.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.uint8: "U8",
}


def setup_torch() -> None:
    """One thread and deterministic kernels, so that a rerun on the same machine gives the same bits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)


def generator(seed: int, name: str) -> np.random.Generator:
    """A stream that depends on the set's seed and the tensor's name alone, never on the order of the draws."""
    return np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))


def normal(seed: int, name: str, shape, std: float, mean: float = 0.0, dtype=torch.bfloat16) -> torch.Tensor:
    values = generator(seed, name).standard_normal(tuple(shape)) * std + mean
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def versions(*packages: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name).split("+")[0] for name in packages}


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def save_safetensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    blobs = []
    for name in order:
        tensor = tensors[name].detach()
        blob = _raw(tensor)
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(str(path))


def load_checkpoint(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint directory, with or without an index."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("model*.safetensors")):
        tensors.update(load_safetensors(path))
    return tensors


def save_json(path: Path, value, indent: int | None = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=True) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def relative_l2(actual: torch.Tensor, expected: torch.Tensor) -> float:
    a, b = actual.double(), expected.double()
    scale = float(torch.linalg.vector_norm(b))
    error = float(torch.linalg.vector_norm(a - b))
    return error / scale if scale > 0 else error


def stage_metadata(what: str, reference: str, package_versions: dict[str, str]) -> dict[str, str]:
    return {
        "format": "pt",
        "arithmetic": "float32",
        "reference": reference,
        "versions": json.dumps(package_versions, sort_keys=True),
        "what": what,
    }
