"""The contractions in plain torch: equal to the loops, however they are cut, and wide enough."""

import pytest
import torch

from capsroute.form.contractions import plain as reference
from tests.form.contractions.cases import NAMES, SIZES, arguments, by_loops, operands
from tests.kinds import Sizes


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("why", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_loops(name, why, shared):
    s = SIZES[why]
    parts = operands(s, shared)
    close(getattr(reference, name)(*arguments(name, parts, shared)), by_loops(name, parts, s, shared))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("why", ["primes: narrower on the child's side", "primes: narrower on the parent's side"])
@pytest.mark.parametrize("name", NAMES)
def test_a_few_children_at_a_time_give_the_same(name, why, chunk):
    args = arguments(name, operands(SIZES[why], shared=False), False)
    close(getattr(reference, name)(*args, chunk=chunk), getattr(reference, name)(*args))


@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("name", ["aggregate", "grad_children", "grad_transforms"])
def test_coefficients_that_all_samples_share_give_the_same(name, shared):
    parts = operands(SIZES["primes: narrower on the child's side"], shared)
    for c in (parts["c"][:1].expand_as(parts["c"]), torch.tensor(0.3, dtype=torch.float64).expand_as(parts["c"])):
        expanded, copied = ({**parts, "c": each} for each in (c, c.clone()))
        ours, theirs = (getattr(reference, name)(*arguments(name, each, shared)) for each in (expanded, copied))
        close(ours, theirs)


@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_summed_in_float32(name, dtype, shared):
    # 4096 children of about one: a half-precision sum would stick at 2048 (float16) or 256 (bfloat16).
    parts = operands(Sizes(1, 4096, 2, 1, 2, 3), shared, dtype=dtype)
    half = getattr(reference, name)(*arguments(name, parts, shared))
    wide = {letter: part.double() for letter, part in parts.items()}
    assert half.dtype == torch.float32
    close(half.double(), getattr(reference, name)(*arguments(name, wide, shared)), 1e-4)


def test_statistics_are_float32_or_wider():
    dtypes = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32}
    for given, kept in {**dtypes, torch.float64: torch.float64}.items():
        assert reference.statistics_dtype(torch.ones(1, dtype=given)) == kept
    assert (
        reference.statistics_dtype(torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.float64))
        == torch.float64
    )
