"""Makes the golden sets under tests/golden: small checkpoints and what public reference implementations compute.

Usage: python tools/golden/make.py [SET ...] --out DIR      (no SET: all, in the order of their dependencies)

See tests/golden/README.md for the packages and versions that are needed, and for what each file holds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

SETS = (
    "target-r2",
    "draft-w64",
    "draft-b16",
    "draft-v1-mixed",
    "tokenizer",
    "target-r2-mlx4",
    "target-r3",
    "moe-hf",
    "moe-mlx4",
    "sampling",
)


def make(name: str, out: Path) -> dict:
    if name == "target-r2":
        from target import make_r2 as maker
    elif name == "target-r3":
        from target import make_r3 as maker
    elif name.startswith("draft-"):
        from draft import make_draft

        return make_draft(out, name)
    elif name == "sampling":
        from sampling import make_sampling as maker
    elif name == "target-r2-mlx4":
        from mlx_target import make_mlx as maker
    elif name == "moe-hf":
        from moe_target import make_moe_hf as maker
    elif name == "moe-mlx4":
        from moe_target import make_moe_mlx as maker
    else:
        from tokenizer_cases import make_tokenizer as maker
    return maker(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help="one of: " + ", ".join(SETS))
    parser.add_argument("--out", type=Path, required=True, help="directory that holds the sets")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sets if name not in SETS]
    if unknown:
        parser.error(f"unknown set {unknown[0]!r}; known: {', '.join(SETS)}")
    for name in SETS:
        if not arguments.sets or name in arguments.sets:
            print(name, json.dumps(make(name, arguments.out), sort_keys=True))


if __name__ == "__main__":
    main()
