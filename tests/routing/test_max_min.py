"""Max-min routing: equal to the loops of Zhao 2019, section 3, and its own claims."""

import pytest
import torch

import capsroute as cr
from capsroute.routing.normalise import max_min
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_same


class TestMaxMin(Contract):
    function = cr.max_min_routing
    oracle = oracles.max_min_routing
    options = ({}, {"iterations": 1}, {"iterations": 2}, {"iterations": 4, "lower": 0.1, "upper": 0.7})
    # Identity votes are the same for every parent, so their logits differ by rounding alone, which max-min stretches.
    kinds = tuple(kind for kind in KINDS if kind != "identity")
    shortest = 1e-12  # logits are products of three votes

    def test_first_coefficients_are_one(self):
        (V,) = KINDS["dense"].leaves(Sizes(2, 5, 3, 2, 3, 4))
        routed = cr.max_min_routing(cr.DenseVotes(V), iterations=1, lower=0.2, upper=0.8)
        assert (routed.coefficients == 1).all()
        assert_same(routed.poses, cr.squash(V.sum(1), (2, 3)), 1e-12)

    def test_every_child_reaches_both_bounds(self):
        (V,) = KINDS["dense"].leaves(Sizes(2, 5, 3, 2, 3, 4))
        c = cr.max_min_routing(cr.DenseVotes(V), lower=0.2, upper=0.8).coefficients
        assert_same(c.amin(2), torch.full((2, 5), 0.2, dtype=torch.float64), 1e-15)
        assert_same(c.amax(2), torch.full((2, 5), 0.8, dtype=torch.float64), 1e-15)

    def test_a_child_without_preference_gives_upper_and_has_no_gradient(self):
        logits = torch.zeros(1, 2, 3, dtype=torch.float64)
        logits[0, 1] = torch.tensor([1.0, 2.0, 4.0])
        logits.requires_grad_()
        c = max_min(logits, 0.1, 0.7)
        assert (c[0, 0] == 0.7).all()
        (grad,) = torch.autograd.grad((c * torch.randn(1, 2, 3, dtype=torch.float64)).sum(), logits)
        assert (grad[0, 0] == 0).all()
        assert (grad[0, 1] != 0).any()

    @pytest.mark.parametrize(("lower", "upper"), [(0.5, 0.5), (1.0, 0.0)])
    def test_bounds_out_of_order_are_refused(self, lower, upper):
        votes = cr.DenseVotes(torch.ones(2, 5, 3, 4))
        with pytest.raises(ValueError, match=rf"lower: expected less than upper, got lower={lower} and upper={upper}"):
            cr.max_min_routing(votes, lower=lower, upper=upper)

    @pytest.mark.parametrize("name", ["lower", "upper"])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", None])
    def test_bounds_that_are_no_numbers_are_refused(self, name, bad):
        with pytest.raises(ValueError, match=rf"{name}: expected a finite number, got {bad!r}"):
            cr.max_min_routing(cr.DenseVotes(torch.ones(2, 5, 3, 4)), **{name: bad})
