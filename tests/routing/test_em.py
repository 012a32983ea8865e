"""EM routing: equal to the loops of Hinton et al. 2018, and its own claims."""

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import capsroute as cr
from capsroute.routing import hinton_temperature
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_routed, assert_same, property_test, sizes


def rising_temperature(iteration: int) -> float:
    return 0.3 + 0.2 * iteration


class TestEM(Contract):
    function = cr.em_routing
    oracle = oracles.em
    options = (
        {},
        {"iterations": 1},
        {"iterations": 2, "inverse_temperature": rising_temperature},
        {"variance_floor": 0.5},
    )
    letters: ClassVar = {"activations": "bi", "beta_use": "j", "beta_activate": "j"}
    coefficients_sum_over = "j"

    def draw(self, name, normal):
        return normal.sigmoid() if name == "activations" else normal

    def test_inverse_temperature_may_be_a_number(self):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes, arguments = cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s)
        number = self.route(votes, arguments, inverse_temperature=0.4)
        assert_routed(number, self.route(votes, arguments, inverse_temperature=lambda t: 0.4), 0.0)

    def test_the_default_schedule_is_the_papers(self):
        assert [hinton_temperature(t) for t in range(3)] == [0.01 * (1 - 0.95 ** (t + 1)) for t in range(3)]

    def test_a_single_child_has_the_floor_for_a_variance_and_finite_gradients(self):
        s = Sizes(2, 1, 3, 2, 3, 4)
        u, W = (leaf.requires_grad_() for leaf in KINDS["shared"].leaves(s))
        for votes in (cr.LinearVotes(u, W), cr.DenseVotes(cr.LinearVotes(u, W).dense())):
            routed = self.route(votes, self.arguments(s), variance_floor=1e-4)
            assert (routed.variances == 1e-4).all()
            for grad in torch.autograd.grad(routed.poses.sum() + routed.scores.sum(), (u, W)):
                assert grad.isfinite().all()

    def test_a_single_child_that_is_huge_is_the_pose_of_every_parent_in_float32(self):
        # A mean that is off by one rounding, 1e3 here, would be many deviations away: one parent would take the child.
        s = Sizes(2, 1, 3, 2, 3, 4)
        u, W = KINDS["shared"].leaves(s, dtype=torch.float32)
        arguments = {name: value.float() for name, value in self.arguments(s).items()}
        V = cr.LinearVotes(1e10 * u, W).dense()
        for votes in (cr.LinearVotes(1e10 * u, W), cr.DenseVotes(V)):
            routed = self.route(votes, arguments)
            assert_same(routed.poses, V[:, 0], 1e-6)
            assert (routed.variances == 1e-6).all()

    @given(s=sizes, seed=st.integers(0, 999), data=st.data())
    @property_test
    def test_a_child_with_activation_zero_is_not_there(self, s, seed, data):
        s = s._replace(i=s.i + 1)
        child = data.draw(st.integers(0, s.i - 1))
        rest = [i for i in range(s.i) if i != child]
        (V,), arguments = KINDS["dense"].leaves(s, seed), self.arguments(s, seed)
        without = {**arguments, "activations": arguments["activations"][:, rest]}
        arguments["activations"][:, child] = 0
        masked, removed = self.route(cr.DenseVotes(V), arguments), self.route(cr.DenseVotes(V[:, rest]), without)
        assert_routed(masked._replace(coefficients=masked.coefficients[:, rest]), removed)

    def test_no_active_child_gives_zero_poses_and_no_nan(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(s)]
        arguments = self.arguments(s)
        arguments["activations"][0] = 0
        activations = arguments["activations"].requires_grad_()
        routed = self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        assert (routed.poses[0] == 0).all()
        assert all(part.isfinite().all() for part in routed)
        total = sum(part.sum() for part in routed)
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(total, (*leaves, activations)))

    def test_scores_are_probabilities(self):
        s = Sizes(2, 5, 3, 2, 3, 4)
        scores = self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s), inverse_temperature=5.0).scores
        assert ((scores >= 0) & (scores <= 1)).all()
        assert scores.std() > 0

    def test_cheap_parents_are_active(self):
        # Parent 0 gets agreeing votes: little variance, little cost, more activation than its rivals.
        (V,) = KINDS["dense"].leaves(Sizes(1, 8, 3, 1, 4, 4))
        V[:, :, 0] = 1 + 1e-2 * V[:, :, 0]
        zeros, ones = torch.zeros(3, dtype=torch.float64), torch.ones(1, 8, dtype=torch.float64)
        routed = cr.em_routing(cr.DenseVotes(V), ones, zeros, zeros, inverse_temperature=0.1)
        assert routed.scores.argmax() == 0
        assert routed.coefficients[0, :, 0].mean() > 0.9

    def test_who_competes_can_be_changed(self):
        # With sigmoid in place of softmax nobody competes, and the first shares are what they are said to be.
        s = Sizes(2, 5, 3, 2, 3, 4)
        (V,), arguments = KINDS["dense"].leaves(s), self.arguments(s)
        first = torch.rand(2, 5, 3, dtype=torch.float64)
        assert_same(self.route(cr.DenseVotes(V), arguments, iterations=1, first=first).coefficients, first, 0.0)
        weights = first * arguments["activations"].unsqueeze(2)
        mean = torch.einsum("bij,bijao->bjao", weights, V) / weights.sum(1)[:, :, None, None]
        assert_same(self.route(cr.DenseVotes(V), arguments, iterations=1, first=first).poses, mean)
        seen = []
        self.route(cr.DenseVotes(V), arguments, normalise=lambda logits: seen.append(logits) or logits.sigmoid())
        assert [tuple(logits.shape) for logits in seen] == [(2, 5, 3)] * 2

    @pytest.mark.parametrize("bad", [0.0, -1e-6, float("nan"), None])
    def test_a_floor_that_is_no_floor_is_refused(self, bad):
        s = Sizes(2, 5, 3, 2, 3, 4)
        with pytest.raises(ValueError, match=rf"variance_floor: expected .*, got {bad!r}"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s), variance_floor=bad)

    @pytest.mark.parametrize("bad", [float("nan"), "warm", None])
    def test_a_temperature_that_is_none_is_refused(self, bad):
        s = Sizes(2, 5, 3, 2, 3, 4)
        with pytest.raises(ValueError, match=rf"inverse_temperature: expected .*, got {bad!r}"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s), inverse_temperature=bad)

    @pytest.mark.parametrize("bad", [-0.25, 1.5])
    def test_activations_that_are_no_probabilities_are_refused(self, bad):
        s = Sizes(2, 5, 3, 2, 3, 4)
        arguments = self.arguments(s)
        arguments["activations"][1, 2] = bad
        with pytest.raises(
            ValueError, match=rf"activations: expected probabilities in \[0, 1\], got {bad} at \[1, 2\]"
        ):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), arguments)

    @pytest.mark.parametrize("bad", [torch.ones(7, 7), torch.ones(2, 4, 3), torch.ones(1, 2, 5, 3), float("nan"), "1"])
    def test_first_shares_that_are_none_are_refused(self, bad):
        s = Sizes(2, 5, 3, 2, 3, 4)
        with pytest.raises(ValueError, match=r"first: expected"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s), first=bad)

    @pytest.mark.parametrize("iterations", [1, 3])
    def test_what_does_not_normalise_is_refused(self, iterations):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes, arguments = cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s)
        with pytest.raises(ValueError, match=r"normalise: expected a function of logits \[b,i,j\], or None"):
            self.route(votes, arguments, normalise=3, iterations=iterations)
