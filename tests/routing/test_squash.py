"""Squash, unit and lengths: right values, and finite ones with finite gradients at zero, at 1e-20, at huge values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import capsroute as cr
from capsroute.routing import lengths, squash, unit
from tests.routing import oracles
from tests.routing.cases import MAGNITUDES

FUNCTIONS = {"squash": lambda x: squash(x, (-2, -1)), "unit": lambda x: unit(x, (-2, -1)), "lengths": lengths}


def pose(magnitude: float, dtype: torch.dtype) -> torch.Tensor:
    return (torch.tensor([[0.36, -0.48], [0.0, 0.8]], dtype=torch.float64) * magnitude).to(dtype)  # of this length


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_values_are_right_at_every_magnitude(magnitude, dtype):
    x = pose(magnitude, dtype)
    if not x.isfinite().all() or not torch.tensor(magnitude, dtype=dtype).isfinite():
        pytest.skip("this dtype does not go so far")
    exact = x.double().norm().item()  # of the rounded pose, in an arithmetic with room to spare
    exact = exact if exact > 0 else float(x.abs().max())
    eps = torch.finfo(dtype).eps
    squashed, direction, length = (FUNCTIONS[name](x).double() for name in FUNCTIONS)
    scale = exact / (1 + exact**2) if exact < 1 else 1 / (exact + 1 / exact)
    tiny = torch.finfo(dtype).smallest_normal
    torch.testing.assert_close(squashed, x.double() * scale, rtol=4 * eps, atol=tiny)
    torch.testing.assert_close(length.item(), exact, rtol=4 * eps, atol=tiny)
    if exact > 0:
        torch.testing.assert_close(direction, x.double() / exact, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("name", ["squash", "lengths"])
def test_gradients_are_finite_and_right_at_every_magnitude(name, magnitude, dtype):
    x = pose(magnitude, dtype)
    if not x.isfinite().all():
        pytest.skip("this dtype does not go so far")
    x.requires_grad_()
    weights = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=dtype)
    out = FUNCTIONS[name](x)
    (grad,) = torch.autograd.grad((out * (weights if out.dim() else 1)).sum(), x)
    assert grad.isfinite().all()
    n, flat = float(x.detach().double().norm()), x.detach().double()
    if magnitude == 0:
        assert (grad == 0).all()
    if not 1e-19 < n < 1e19:
        return  # products of two such numbers leave float32: finite is all that is asked
    if name == "lengths":
        exact = flat / n
    else:
        # d(f(n) x)/dx = f I + f' x x^T / n with f = n / (1 + n^2)
        f, slope = 1 / (n + 1 / n), (1 / n**2 - 1) / (n + 1 / n) ** 2
        exact = f * weights.double() + slope * flat * (flat * weights.double()).sum() / n
    largest = exact.abs().max().item()
    torch.testing.assert_close(
        grad.double(), exact, rtol=0.02, atol=0.02 * largest + torch.finfo(dtype).smallest_normal
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_among_others_is_zero_with_finite_derivatives_of_both_orders(name):
    x = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 1] = 0
    x.requires_grad_()
    out = FUNCTIONS[name](x)
    assert (out[0, 1] == 0).all()
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert first.isfinite().all()
    assert second.isfinite().all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivative(name):
    x = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([x, x * 0.1, x * 10]).requires_grad_()  # below, about and above length one
    assert torch.autograd.gradcheck(FUNCTIONS[name], x)
    assert torch.autograd.gradgradcheck(FUNCTIONS[name], x)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_squash_equals_the_loops_and_shortens_to_below_one(numbers):
    x = torch.tensor(numbers, dtype=torch.float64)
    ours, theirs = squash(x, -1), torch.from_numpy(oracles.squash(x.numpy()))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert ours.norm() <= 1 + 1e-12


def test_dims_choose_what_a_capsule_is():
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    assert torch.equal(cr.squash(x), cr.squash(x, -1))
    by_hand = torch.stack([cr.squash(x[:, i].flatten(1), -1).view(2, 4, 5) for i in range(3)], 1)
    torch.testing.assert_close(cr.squash(x, (2, 3)), by_hand, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(cr.squash(x, (2, 3)), cr.squash(x, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtype_is_kept(dtype):
    x = torch.ones(2, 3, 1, 4, dtype=dtype)
    assert {FUNCTIONS[name](x).dtype for name in FUNCTIONS} == {dtype}
    assert math.isclose(lengths(x)[0, 0].item(), 2.0)


@pytest.mark.parametrize("function", [cr.squash, cr.exponential_squash, unit, lengths])
def test_whole_numbers_which_would_become_zeros_are_refused(function):
    with pytest.raises(ValueError, match=r"expected a floating-point tensor, got torch\.int64 tensor"):
        function(torch.ones(2, 3, 1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"expected a floating-point tensor, got \[\[3.0, 4.0"):
        function([[3.0, 4.0]])


@pytest.mark.parametrize("function", [cr.squash, cr.exponential_squash, unit])
@pytest.mark.parametrize("bad", [2, -3, (0, 2), (), (0, 0), (0, -2), None, 1.0, "0", True])
def test_dims_that_are_none_are_refused_by_name(function, bad):
    with pytest.raises(ValueError, match=r"dims: expected one or several of 2 axes, each once, got"):
        function(torch.ones(2, 3), bad)


@pytest.mark.parametrize("function", [cr.squash, cr.exponential_squash, unit])
def test_dims_may_be_a_list(function):
    x = torch.randn(2, 3, 4)
    assert torch.equal(function(x, [1, -1]), function(x, (1, 2)))


@pytest.mark.parametrize("function", [cr.squash, cr.exponential_squash, unit])
def test_dims_may_be_numpys_numbers(function):
    x = torch.randn(2, 3, 4)
    assert torch.equal(function(x, np.int64(1)), function(x, 1))
    assert torch.equal(function(x, (np.int64(1), 2)), function(x, (1, 2)))
