"""What tests of kernels share: where they run, and how far off they may be."""

import os
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
needs_kernels = pytest.mark.skipif(
    not INTERPRETED and DEVICE == "cpu",
    reason="needs CUDA or TRITON_INTERPRET=1, which `make test` sets once for tests/form",
)

ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
HALF = (torch.bfloat16, torch.float16)


class Sizes(NamedTuple):
    why: str
    b: int
    i: int
    j: int
    a: int
    k: int
    o: int


def surrounded(tensor: Tensor) -> Tensor:
    """The same numbers with NaN before and after them in memory: a kernel that reads past the end shows it."""
    storage = torch.full((tensor.numel() + 64,), torch.nan, dtype=tensor.dtype, device=tensor.device)
    storage[32:-32] = tensor.flatten()
    return storage[32:-32].view(tensor.shape)


def error(ours: Tensor, exact: Tensor) -> float:
    assert torch.isfinite(ours).all()
    return ((ours.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30)).item()


def assert_within_budget(ours: list, theirs: list, exact: list, dtype: torch.dtype) -> None:
    """Poses within twice, gradients by children and transforms within three times the textbook's distance from float64.

    Each list is poses, coefficients (not compared), gradients. The textbook form of max-min leaves the range of
    float16; then there is nothing to compare with.
    """
    for index, times in ((0, 2), (2, 3), (3, 3)):
        found = error(ours[index], exact[index])
        if torch.isfinite(theirs[index]).all():
            assert found <= times * error(theirs[index], exact[index])
        else:
            assert found < 10 * ROUNDING[dtype]
