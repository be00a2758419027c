"""Packed token ids: random training windows and per-domain validation documents."""

import lzma
import pathlib

import numpy as np
import torch


class Windows:
    """Random windows of the packed training ids, drawn with a seeded generator."""

    def __init__(self, folder, device, seed):
        packed = pathlib.Path(folder) / "train.u16"
        if not packed.exists():
            packed.write_bytes(lzma.decompress(pathlib.Path(f"{packed}.xz").read_bytes()))
        self.ids = torch.from_numpy(np.fromfile(packed, dtype=np.uint16).astype(np.int32)).to(device)
        self.random = torch.Generator().manual_seed(seed)

    def draw(self, count, length):
        starts = torch.randint(len(self.ids) - length, (count, 1), generator=self.random).to(self.ids.device)
        return self.ids[starts + torch.arange(length, device=self.ids.device)].long()


class Validation:
    def __init__(self, folder, device):
        self.arrays = dict(np.load(pathlib.Path(folder) / "valid.npz"))
        self.domains = sorted(name.removesuffix("_ids") for name in self.arrays if name.endswith("_ids"))
        self.device = device

    def windows(self, domain, length, count):
        """Up to count adjoining windows of the concatenated documents of a domain."""
        ids = self.arrays[f"{domain}_ids"]
        count = min(count, len(ids) // length)
        return torch.from_numpy(ids[: count * length].reshape(count, length).astype(np.int64)).to(self.device)

    def prompts(self, domain, length, count, seed):
        """Prompts of a fixed length, each inside one document (several per document if there are few long enough), or
        any windows of the domain where its documents are short."""
        ids, starts = self.arrays[f"{domain}_ids"].astype(np.int64), self.arrays[f"{domain}_starts"]
        random = np.random.default_rng(seed)
        whole = [(a, b) for a, b in zip(starts[:-1], starts[1:], strict=True) if b - a >= length + 64]
        if len(whole) >= 8:
            order = np.concatenate([random.permutation(len(whole)) for _ in range(1 + min(count // len(whole), 3))])
            picks = [whole[i] for i in order[:count]]
            begins = [int(a + random.integers(0, b - a - length - 63)) for a, b in picks]
        else:
            begins = [int(x) for x in random.integers(0, len(ids) - length, count)]
        return torch.from_numpy(np.stack([ids[b : b + length] for b in begins])).to(self.device)
