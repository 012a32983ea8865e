"""What tests of kernels share: where they run, and how far off they may be."""

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import capsroute as cr

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


def survives_another_order(loss: Callable, *tensors: Tensor) -> None:
    """What is kept for gradients may come back in another order, as from `torch.autograd.graph.save_on_cpu`."""

    def gradients() -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        return torch.autograd.grad(loss(*leaves), leaves)

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        found = gradients()
    for ours, wanted in zip(found, gradients()):
        assert torch.equal(ours, wanted)


def keeps_promises(operator, given: tuple) -> None:
    """What torch.library asks of an operator."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, given, test_utils=checks)


def says_why(why: str, operation: str, *operands) -> None:
    """That, and nothing else."""
    reasons = cr.form.explain(operation, *operands)
    assert [why in reason for reason in reasons] == [True], reasons


def differentiable_twice(loss: Callable, *tensors: Tensor, limit: float = 1e-5, exact: Callable | None = None) -> None:
    """Derivatives of a number, and of the sum of their squares, are those of float64 (of the `exact` function)."""

    def both(loss: Callable, *tensors: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)]

    wide = both(exact or loss, *(t.double() for t in tensors))
    for ours, wanted in zip(both(loss, *tensors), wide):
        assert error(ours, wanted) < limit


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
