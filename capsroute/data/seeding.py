"""Random numbers that depend only on a seed and a place in the work, so that resuming needs no saved state."""

import hashlib
import operator
from typing import SupportsIndex

import numpy as np
import torch


def whole_seed(seed: SupportsIndex) -> int:
    """A seed as Python's own number: from those of numpy other generators would follow than from equal ones."""
    try:
        if not isinstance(seed, bool):
            return operator.index(seed)
    except TypeError:
        pass
    raise ValueError(f"seed: expected a whole number, got {seed!r}")


def generator_at(seed: int, *place: int | str) -> torch.Generator:
    """A CPU generator for one place, such as `(seed, "augment", epoch, step)`; other places get unrelated ones.

    It lives on the CPU even when images are on a GPU: what is drawn is small, and both devices then draw the same.
    """
    digest = hashlib.blake2b(repr((whole_seed(seed), *place)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def splitmix64(values: np.ndarray, seed: int) -> np.ndarray:
    """A fixed hash of 64-bit numbers: unlike a library's shuffle, no new version of anything will change it."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
