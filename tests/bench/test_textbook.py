"""The textbook forms that we measure against are correct: in float64 they equal the library."""

import dataclasses

import pytest
import torch

from capsroute.bench.cases import CONV_CASES, PAPER_CASES, SMALL_CASES, Case
from capsroute.bench.grid import COUNTS, points

TINY = [
    dataclasses.replace(case, batch=2, children=6, parents=1 if case.algorithm == "pooling" else 3, k=4, o=4)
    for case in {
        (case.algorithm, case.shared): case for case in (*PAPER_CASES, *SMALL_CASES, *(p.case for p in points()))
    }.values()
]
TINY += [dataclasses.replace(case, rows=3) for case in TINY if case.rows == 1]
TINY += [dataclasses.replace(case, batch=2, children=2 * 9, parents=3, k=4, o=4, side=5) for case in CONV_CASES]


@pytest.mark.parametrize(
    ("case", "way"), [(case, way) for case in TINY for way in case.ways], ids=lambda x: getattr(x, "name", x)
)
def test_both_forms_are_equal_in_float64(case: Case, way: str):
    tensors = [t.requires_grad_() for t in case.tensors(torch.float64, "cpu").values()]
    ours, theirs = case.ours()(*tensors), case.textbook(way)(*tensors)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    gradient = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for mine, other in zip(*(torch.autograd.grad(out, tensors, gradient, allow_unused=True) for out in (ours, theirs))):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-8)


def test_every_algorithm_is_measured():
    from capsroute.bench.textbook import TEXTBOOK

    assert {case.algorithm for case in PAPER_CASES} == {case.algorithm for case in SMALL_CASES}
    assert set(COUNTS) == set(TEXTBOOK)
