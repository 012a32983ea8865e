"""Random generators that depend only on a seed and a place in the work, so that resuming needs no saved state."""

import hashlib

import torch


def generator_at(seed: int, *place: int | str) -> torch.Generator:
    """A CPU generator for one place, such as `(seed, "augment", epoch, step)`; other places get unrelated ones.

    It lives on the CPU even when images are on a GPU: what is drawn is small, and both devices then draw the same.
    """
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
