"""Routing pooling: equal to the loops of Zhao & Huang 2019, algorithm 1, and its own claims."""

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_same, property_test, sizes


class TestPooling(Contract):
    function = cr.pooling_routing
    oracle = oracles.pooling
    options = ({}, {"iterations": 3}, {"sharpness": 5.0}, {"iterations": 2, "sharpness": -1.5})
    coefficients_sum_over = "i"
    # Norms without votes come from squares, whose rounding is that of |u|^2 |W|^2: short votes keep half the digits.
    looser: ClassVar = {kind: 1e-8 for kind in KINDS if kind.startswith("per-child") and kind.endswith("never-stored")}

    @given(s=sizes, seed=st.integers(0, 999), iterations=st.integers(1, 3))
    @property_test
    def test_sharpness_zero_is_average_pooling(self, s, seed, iterations):
        (u,) = KINDS["identity"].leaves(s, seed)
        poses = cr.pooling_routing(cr.IdentityVotes(u, s.j), iterations, sharpness=0.0).poses
        assert_same(poses, u.mean(1, keepdim=True).expand(-1, s.j, -1, -1), 1e-14)

    @given(s=sizes, seed=st.integers(0, 999))
    @property_test
    def test_large_sharpness_picks_the_child_that_agrees_with_the_mean(self, s, seed):
        (u,) = KINDS["identity"].leaves(s._replace(i=5, o=4), seed)
        mean = u.mean(1, keepdim=True)
        cosine = torch.nn.functional.cosine_similarity(u.flatten(2), mean.flatten(2), dim=2)  # [b, i]
        routed = cr.pooling_routing(cr.IdentityVotes(u), sharpness=1e9)
        chosen = u[torch.arange(s.b), cosine.argmax(1)]
        assert_same(routed.poses[:, 0], chosen, 1e-12)

    def test_agreement_looks_at_directions_and_the_sum_at_raw_votes(self):
        # Three children point east. One of them is long, which must not earn it more weight, only more of the sum.
        u = torch.tensor([[1.0, 0], [1.0, 0], [5.0, 0], [0, 1.0]], dtype=torch.float64).view(1, 4, 1, 2)
        routed = cr.pooling_routing(cr.IdentityVotes(u), sharpness=20.0)
        east = routed.coefficients[0, :3, 0]
        assert_same(east, torch.full((3,), 1 / 3, dtype=torch.float64), 1e-6)
        assert_same(routed.poses.flatten(), torch.tensor([7 / 3, 0.0], dtype=torch.float64), 1e-6)

    @pytest.mark.parametrize("iterations", [1, 3])
    def test_a_child_of_weight_zero_is_not_there_and_one_of_a_half_is_half(self, kind, iterations):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes = cr.DenseVotes(KINDS[kind].votes(s.j, *KINDS[kind].leaves(s)).dense())
        options = {"iterations": iterations, "sharpness": 3.0}
        weights = torch.tensor([[1.0, 1, 1, 0, 0], [1, 1, 1, 0, 0]], dtype=torch.float64)
        masked = cr.pooling_routing(votes, **options, weights=weights)
        removed = cr.pooling_routing(cr.DenseVotes(votes.V[:, :3]), **options)
        assert_same(masked.poses, removed.poses)
        assert not masked.coefficients[:, 3:].any()
        plain = self.route(votes, **options).poses
        assert_same(cr.pooling_routing(votes, **options, weights=torch.ones(2, 5)).poses, plain)
        twice = cr.DenseVotes(votes.V[:, [0, 0, 1, 2, 3, 4]])
        halves = torch.tensor([[0.5, 0.5, 1, 1, 1, 1]] * 2, dtype=torch.float64)
        assert_same(cr.pooling_routing(twice, **options, weights=halves).poses, plain)

    def test_where_nobody_counts_poses_are_zero_and_gradients_finite(self):
        u = torch.randn(2, 5, 1, 4, requires_grad=True)
        weights = torch.tensor([[0.0] * 5, [1.0] * 5], requires_grad=True)
        routed = cr.pooling_routing(cr.IdentityVotes(u), iterations=2, weights=weights)
        assert not routed.poses[0].any()
        for gradient in torch.autograd.grad(100 * routed.poses.sum(), (u, weights)):
            assert gradient.isfinite().all()

    def test_weights_that_are_no_probabilities_are_refused(self):
        with pytest.raises(ValueError, match="weights: expected probabilities in"):
            cr.pooling_routing(cr.IdentityVotes(torch.ones(1, 2, 4)), weights=torch.tensor([[1.0, 3.0]]))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", None])
    def test_sharpness_that_is_no_number_is_refused(self, bad):
        with pytest.raises(ValueError, match=rf"sharpness: expected a finite number, got {bad!r}"):
            cr.pooling_routing(cr.IdentityVotes(torch.ones(2, 5, 4)), sharpness=bad)

    def test_more_parents_of_identity_votes_are_copies(self):
        (u,) = KINDS["identity"].leaves(Sizes(2, 6, 3, 1, 4, 4))
        three, one = (cr.pooling_routing(cr.IdentityVotes(u, parents), iterations=2) for parents in (3, 1))
        assert_same(three.poses, one.poses.expand(-1, 3, -1, -1), 1e-14)


class TestStopGradient:
    """`stop_gradient` changes no value; what is differentiated then is one sum with constant coefficients."""

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_values_are_the_same_and_gradients_those_of_a_weighted_sum(self, kind):
        leaves = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(Sizes(2, 5, 3, 2, 3, 4))]
        full = cr.pooling_routing(KINDS[kind].votes(3, *leaves), 2, 3.0)
        stopped = cr.pooling_routing(KINDS[kind].votes(3, *leaves), 2, 3.0, stop_gradient=True)
        assert_same(stopped.poses, full.poses, 1e-12)
        assert not stopped.coefficients.requires_grad
        direction = torch.randn(stopped.poses.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        weighted = KINDS[kind].votes(3, *leaves).aggregate(full.coefficients.detach())
        expected = torch.autograd.grad((weighted * direction).sum(), leaves, allow_unused=True)
        got = torch.autograd.grad((stopped.poses * direction).sum(), leaves, allow_unused=True)
        for ours, theirs in zip(got, expected, strict=True):
            assert_same(ours, theirs, 1e-12)

    def test_short_votes_have_gradients_no_larger_than_their_weight(self):
        u = torch.randn(1, 6, 1, 4, generator=torch.Generator().manual_seed(0))
        u[:, 0] *= 1e-6
        sizes = []
        for stop in (False, True):
            leaf = u.clone().requires_grad_()
            cr.pooling_routing(cr.IdentityVotes(leaf), 1, 5.0, stop).poses.sum().backward()
            sizes.append(leaf.grad[:, 0].abs().max().item())
        assert sizes[0] > 10
        assert sizes[1] <= 1
