"""Digamma and trigamma of the kernels of variational Bayes routing, against float64: interpreted or on a GPU."""

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from capsroute.form.gaussian.bayes import _digamma_over, _trigamma  # noqa: E402
from tests.form.kernels import DEVICE, INTERPRETED, needs_kernels  # noqa: E402


@triton.jit
def _both(x, unit, digamma, trigamma, N: tl.constexpr):
    n = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(digamma + n, _digamma_over(tl.load(x + n), tl.load(unit + n)))
    tl.store(trigamma + n, _trigamma(tl.load(x + n)))


@needs_kernels
@pytest.mark.parametrize(("least", "most"), [(0, 1), (1, 4), (4, 30)])
def test_they_are_off_by_a_few_last_digits(least, most):
    """Between powers of ten. Of many children gradients are what two slopes, all but alike, differ by."""
    x = torch.logspace(least, most, 1 << 12)
    for unit in (torch.ones_like(x), 0.5 * x):
        found = torch.empty(2, *x.shape, device=DEVICE)
        _both[(4,)](x.to(DEVICE), unit.to(DEVICE), *found, N=1 << 10)
        digamma, trigamma = x.double().digamma() - unit.double().log(), torch.polygamma(1, x.double())
        off = (found.cpu().double() - torch.stack([digamma, trigamma])).abs()
        digits = 2**-23 if INTERPRETED else 2**-21  # quotients and logarithms of a chip are off by more
        assert (off[0] < 6 * digits * digamma.abs().clamp_min(1)).all()
        assert (off[1] < 2 * digits * trigamma).all()
