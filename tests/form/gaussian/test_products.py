"""Gradients of stored votes by children and transforms, against float64."""

import pytest
import torch

from capsroute.form.gaussian.stored import StoredVotes
from capsroute.form.launches.gaussian_votes import product_launches, samples_at_once
from capsroute.form.sizes import Sizes
from tests.form.gaussian.cases import TINY, draw
from tests.form.kernels import DEVICE, needs_kernels

CASES = {  # sizes, whether transforms are shared, splits of the columns, whether rows are few
    "few rows of odd sizes": (Sizes(1, 5, 3, 3, 5, 3), False, 1, True),
    "few rows of more than one sample": (Sizes(3, 2, 3, 2, 2, 4), False, 1, True),
    "few rows, columns split": (Sizes(1, 2, 600, 1, 7, 16), False, 4, True),
    "rows of a matrix unit": (Sizes(9, 2, 3, 1, 3, 5), False, 1, False),
    "shared transforms, rows split": (Sizes(1, 1030, 2, 1, 2, 2), True, 1, False),
    "shared transforms, columns split": (Sizes(3, 5, 140, 1, 4, 15), True, 4, False),
}


@needs_kernels
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products(case, dtype):
    s, shared, splits, few = CASES[case]
    launch = product_launches(s, shared)[1]
    assert (launch.splits, launch.options["FEW"]) == (splits, few)
    u = draw(s.b, s.i, s.a, s.k).to(DEVICE, dtype)
    W = draw(1 if shared else s.i, s.j, s.k, s.o, seed=1).to(DEVICE, dtype)
    g = draw(s.b, s.i, s.j, s.a * s.o, seed=2).to(DEVICE)
    stored = StoredVotes(u, W, None, (g,), "test")
    stored.go_back(0, s, g)
    wide, whole = g.double().unflatten(3, (s.a, s.o)), W.double().expand(s.i, -1, -1, -1)
    by_u = torch.einsum("bijao,ijko->biak", wide, whole)
    by_W = torch.einsum("bijao,biak->ijko", wide, u.double())
    by_W = by_W.sum(0, keepdim=True) if shared else by_W
    for mine, wanted in zip(stored.gradients(), (by_u, by_W)):
        assert mine.dtype == dtype
        rounding = TINY if dtype == torch.float32 else 2**-7  # the interpreter cuts digits off
        assert (mine.double() - wanted).norm() / wanted.norm() < rounding


@needs_kernels
@pytest.mark.parametrize(
    ("s", "shared"),
    [
        (Sizes(3000, 512, 2, 2, 2, 2), True),
        (Sizes(5000, 512, 2, 1, 2, 2), True),
        (Sizes(1, 1_048_560, 2, 1, 2, 2), True),
        (Sizes(1 << 23, 1, 2, 1, 2, 2), False),
        (Sizes(270_000, 1, 1, 2, 1, 1), False),
        (Sizes(1, 2, 65_535, 1, 2, 32), False),
    ],
    ids=str,
)
def test_rows_and_columns_fit_a_grid(s, shared):
    """Votes of more samples than a grid has tiles for are made in groups."""
    part = s._replace(b=samples_at_once(s, shared))
    assert max(size for launch in product_launches(part, shared) for size in launch.grid[1:]) <= 65_535
