"""The random states of a process, as plain data that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["random_state", "restore_random_state", "seeded"]


def random_state(device: torch.device) -> dict[str, Any]:
    """States of the generators of torch (CPU and `device`), numpy and Python.

    >>> import torch
    >>> from capsroute.training.random_state import random_state, restore_random_state
    >>> before = random_state(torch.device("cpu"))
    >>> first = torch.rand(3)
    >>> restore_random_state(before, torch.device("cpu"))
    >>> torch.equal(first, torch.rand(3))
    True
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": (kind, [int(key) for key in keys], int(position), int(has_gauss), float(gauss)),  # type: ignore[union-attr]
        "python": random.getstate(),
    }


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    if state["device"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    random.setstate(state["python"])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Generators seeded inside, and as they were outside."""
    before = random_state(device)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        restore_random_state(before, device)
