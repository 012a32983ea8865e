"""Variational Bayes routing: equal to the loops of Ribeiro et al. 2020, and its own claims."""

from typing import ClassVar

import pytest
import torch

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_same

S = Sizes(2, 5, 3, 2, 3, 4)


class TestVariationalBayes(Contract):
    function = cr.vb_routing
    oracle = oracles.variational_bayes
    options = ({}, {"iterations": 1}, {"iterations": 2})
    letters: ClassVar = {"activations": "bi", "beta_use": "j", "beta_activate": "j"}
    coefficients_sum_over = "j"

    def draw(self, name, normal):
        return normal.sigmoid() if name == "activations" else normal

    def test_coefficients_of_far_votes_sum_to_one_in_float32(self):
        # Densities of such votes are below 1e-30: divided by max(their sum, 1e-11) they would vanish.
        (V,), arguments = KINDS["dense"].leaves(S, dtype=torch.float32), self.arguments(S)
        arguments = {name: value.float() for name, value in arguments.items()}
        V = (V * 1e3).requires_grad_()
        routed = self.route(cr.DenseVotes(V), arguments)
        torch.testing.assert_close(routed.coefficients.sum(2), torch.ones(2, 5))
        assert torch.autograd.grad(routed.scores.sum() + routed.poses.sum(), V)[0].isfinite().all()

    def test_no_active_child_leaves_the_prior_and_no_nan(self, kind):
        leaves, arguments = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(S)], self.arguments(S)
        arguments["activations"][0] = 0
        arguments = {name: value.requires_grad_() for name, value in arguments.items()}
        routed = self.route(KINDS[kind].votes(S.j, *leaves), arguments)
        pose = S.a * S.o
        assert (routed.poses[0] == 0).all()
        assert_same(routed.variances[0], torch.full((3, 2, 4), 1 / (pose + 1), dtype=torch.float64), 1e-12)
        assert all(part.isfinite().all() for part in routed)
        grads = torch.autograd.grad(sum(part.sum() for part in routed), (*leaves, *arguments.values()))
        assert all(grad.isfinite().all() for grad in grads)

    def test_a_child_with_activation_zero_is_not_there(self):
        (V,), arguments = KINDS["dense"].leaves(S), self.arguments(S)
        without = {**arguments, "activations": arguments["activations"][:, 1:]}
        arguments["activations"][:, 0] = 0
        masked, removed = self.route(cr.DenseVotes(V), arguments), self.route(cr.DenseVotes(V[:, 1:]), without)
        for part in ("poses", "scores", "variances"):
            assert_same(getattr(masked, part), getattr(removed, part), 1e-10, part)

    def test_children_go_to_the_parent_on_which_they_agree(self):
        (V,) = KINDS["dense"].leaves(Sizes(1, 8, 3, 1, 4, 4))
        V = V * 3
        V[:, :, 0] = 1 + 1e-2 * V[:, :, 0]
        zeros, ones = torch.zeros(3, dtype=torch.float64), torch.ones(1, 8, dtype=torch.float64)
        routed = cr.vb_routing(cr.DenseVotes(V), ones, zeros, zeros)
        assert routed.coefficients[0, :, 0].mean() > 0.9

    def test_who_competes_can_be_changed(self):
        (V,), arguments = KINDS["dense"].leaves(S), self.arguments(S)
        first = torch.rand(2, 5, 3, dtype=torch.float64)
        routed = self.route(cr.DenseVotes(V), arguments, iterations=1, first=first)
        assert_same(routed.coefficients, first, 0.0)
        same = self.route(cr.DenseVotes(V), arguments, normalise=lambda logits: logits.softmax(2))
        for part, other in zip(same, self.route(cr.DenseVotes(V), arguments)):
            assert_same(part, other, 1e-12)

    def test_activations_that_are_no_probabilities_are_refused(self):
        arguments = self.arguments(S)
        arguments["activations"][1, 2] = -0.25
        with pytest.raises(ValueError, match=r"activations: expected probabilities in \[0, 1\], got -0.25 at \[1, 2\]"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(S)), arguments)

    @pytest.mark.parametrize("bad", [torch.ones(7, 7), torch.ones(2, 4, 3), torch.ones(1, 2, 5, 3), float("nan"), "1"])
    def test_first_shares_that_are_none_are_refused(self, bad):
        with pytest.raises(ValueError, match=r"first: expected"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(S)), self.arguments(S), first=bad)

    @pytest.mark.parametrize("iterations", [1, 3])
    def test_what_does_not_normalise_is_refused(self, iterations):
        votes, arguments = cr.DenseVotes(*KINDS["dense"].leaves(S)), self.arguments(S)
        with pytest.raises(ValueError, match=r"normalise: expected a function of logits \[b,i,j\], or None"):
            self.route(votes, arguments, normalise=3, iterations=iterations)
