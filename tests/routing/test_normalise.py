"""From logits to coefficients: the right axis, the right bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import capsroute as cr
from capsroute.form.pooling.operators import over_children
from capsroute.routing.normalise import max_min, over_parents
from tests.routing import oracles

shapes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(0, 999))
property_test = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def logits(shape):
    *sizes, seed = shape
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(shapes)
@property_test
def test_softmax_over_parents_and_over_children(shape):
    b = logits(shape)
    for sample, parents, children in zip(b, over_parents(b), over_children(b)):
        for i in range(b.shape[1]):
            torch.testing.assert_close(parents[i], torch.tensor(oracles.softmax(sample[i].tolist())).double())
        for j in range(b.shape[2]):
            torch.testing.assert_close(children[:, j], torch.tensor(oracles.softmax(sample[:, j].tolist())).double())


@given(shapes, st.floats(-2, 2), st.floats(0.1, 3))
@property_test
def test_max_min_is_equation_2(shape, lower, width):
    b = logits(shape)
    for sample, ours in zip(b, max_min(b, lower, lower + width)):
        for i in range(b.shape[1]):
            theirs = oracles.max_min(sample[i].tolist(), lower, lower + width)
            torch.testing.assert_close(ours[i], torch.tensor(theirs, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_large_logits_do_not_overflow():
    b = torch.tensor([[[1e4, -1e4, 0.0]]])
    assert over_parents(b).tolist() == [[[1.0, 0.0, 0.0]]]
    assert max_min(b).tolist() == [[[1.0, 0.0, 0.5]]]


def test_max_min_derivatives_on_distinct_logits():
    b = torch.tensor([[[0.3, -1.0, 2.0], [5.0, 5.0, 5.0]]], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(max_min(b)[0, 0, 0], b)
    # c = (b0 - b1) / (b2 - b1): by hand
    expected = torch.tensor([1 / 3, -1 / 3 + 1.3 / 9, -1.3 / 9], dtype=torch.float64)
    torch.testing.assert_close(grad[0, 0], expected)
    assert (grad[0, 1] == 0).all()


def test_max_min_of_a_range_whose_inverse_overflows():
    """One over a range of 1e-39 is not a number of float32; a gradient that was scaled by 1e-20 is."""
    b = torch.tensor([[[0.0, 4e-40, 1e-39]]], requires_grad=True)
    (grad,) = torch.autograd.grad(max_min(b)[0, 0, 1] * 1e-20, b)
    torch.testing.assert_close(grad[0, 0], torch.tensor([-0.6e19, 1e19, -0.4e19]), rtol=1e-4, atol=0.0)


def test_a_child_without_preference_gives_upper_but_one_before_there_are_logits():
    assert max_min(torch.full((1, 1, 3), 5.0), 0.1, 0.8).tolist() == [[[pytest.approx(0.8)] * 3]]
    votes = cr.DenseVotes(torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)))
    assert cr.max_min_routing(votes, 1, 0.1, 0.8).coefficients.tolist() == [[[1.0] * 3] * 2]
