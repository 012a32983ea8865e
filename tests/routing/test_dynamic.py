"""Dynamic routing: equal to the loops of Sabour 2017, and its own claims."""

import pytest
import torch

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_routed, assert_same


class TestDynamic(Contract):
    function = cr.dynamic_routing
    oracle = oracles.dynamic
    options = ({}, {"iterations": 1}, {"iterations": 2}, {"iterations": 5})
    coefficients_sum_over = "j"

    def test_first_coefficients_are_uniform(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        c = cr.dynamic_routing(KINDS[kind].votes(s.j, *KINDS[kind].leaves(s)), iterations=1).coefficients
        assert_same(c, torch.full((2, 5, 3), 1 / 3, dtype=torch.float64), 1e-15)

    def test_coefficients_are_those_that_made_the_poses(self, kind, option):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s))
        routed = cr.dynamic_routing(votes, **option)
        assert_same(cr.squash(votes.aggregate(routed.coefficients), (2, 3)), routed.poses, 1e-12)

    def test_agreement_grows_with_iterations(self):
        # Nine children agree on parent 0 and contradict each other on parent 1.
        V = torch.randn(1, 9, 2, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        V[:, :, 0] = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
        to_first = [cr.dynamic_routing(cr.DenseVotes(V), t).coefficients[0, :, 0].mean() for t in (1, 2, 3, 4)]
        assert to_first == sorted(to_first)
        assert to_first[-1] > 0.8


class StoppedGradient:
    """`stop_gradient` changes no value; what is differentiated then is one pass with constant coefficients."""

    function = None

    def routes(self, kind):
        s = Sizes(2, 3, 4, 1, 2, 3)
        leaves = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(s)]
        return leaves, lambda *tensors, **option: type(self).function(KINDS[kind].votes(s.j, *tensors), **option)

    @pytest.mark.parametrize("kind", KINDS)
    def test_values_are_the_same(self, kind):
        leaves, route = self.routes(kind)
        assert_routed(route(*leaves, stop_gradient=True), route(*leaves), 1e-15)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "identity"])  # whose coefficients never move
    def test_gradient_is_that_of_constant_coefficients(self, kind):
        leaves, route = self.routes(kind)
        stopped = route(*leaves, stop_gradient=True)
        votes = KINDS[kind].votes(stopped.poses.shape[1], *leaves)
        fixed = cr.squash(votes.aggregate(stopped.coefficients.detach()), (2, 3))
        weights = torch.randn(fixed.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        ours = torch.autograd.grad((stopped.poses * weights).sum(), leaves)
        theirs = torch.autograd.grad((fixed * weights).sum(), leaves)
        through = torch.autograd.grad((route(*leaves).poses * weights).sum(), leaves)
        for mine, other, full in zip(ours, theirs, through):
            assert_same(mine, other, 1e-12)
            assert not torch.allclose(mine, full), (
                "the gradient through the iterations is missing when it is not stopped"
            )


class TestDynamicStopped(StoppedGradient):
    function = cr.dynamic_routing


class TestMaxMinStopped(StoppedGradient):
    function = cr.max_min_routing
