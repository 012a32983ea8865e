"""Self-routing: equal to the loops of Hahn et al. 2019, and its own claims."""

from typing import ClassVar

import pytest
import torch

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_routed, assert_same

INF = float("inf")
S = Sizes(2, 5, 3, 2, 3, 4)


class TestSelfRouting(Contract):
    function = cr.self_routing
    oracle = oracles.self_routing
    letters: ClassVar = {"activations": "bi", "logits": "bij"}
    coefficients_sum_over = "j"

    def draw(self, name, normal):
        return normal.sigmoid() if name == "activations" else normal

    def test_activations_of_parents_sum_to_one(self):
        scores = self.route(cr.DenseVotes(*KINDS["dense"].leaves(S)), self.arguments(S)).scores
        assert_same(scores.sum(1), torch.ones(2, dtype=torch.float64), 1e-14)

    def test_no_active_child_gives_zero_poses_and_scores_and_no_nan(self, kind):
        leaves, arguments = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(S)], self.arguments(S)
        arguments["activations"][0] = 0
        arguments = {name: value.requires_grad_() for name, value in arguments.items()}
        routed = self.route(KINDS[kind].votes(S.j, *leaves), arguments)
        assert (routed.poses[0] == 0).all()
        assert (routed.scores[0] == 0).all()
        total = sum(part.sum() for part in routed if part is not None)
        grads = torch.autograd.grad(total, (*leaves, *arguments.values()))
        assert all(grad.isfinite().all() for grad in grads)

    def test_infinite_logits_are_never_and_always(self):
        (V,), arguments = KINDS["dense"].leaves(S), self.arguments(S)
        arguments["logits"][:, 0, 1] = INF
        arguments["logits"][:, 1, 2] = -INF
        arguments["logits"][0, 2] = -INF  # a child that goes nowhere is a child that is not there
        logits = arguments["logits"].requires_grad_()
        routed = self.route(cr.DenseVotes(V), arguments)
        assert routed.coefficients[:, 0].tolist() == [[0.0, 1.0, 0.0]] * 2
        assert (routed.coefficients[:, 1, 2] == 0).all()
        assert torch.autograd.grad(routed.poses.sum() + routed.scores.square().sum(), logits)[0].isfinite().all()
        rest = [0, 1, 3, 4]
        fewer = {name: value[:1, rest] for name, value in arguments.items()}
        removed = self.route(cr.DenseVotes(V[:1, rest]), fewer)
        assert_same(routed.poses[:1], removed.poses)

    def test_tiny_activations_weigh_like_large_ones(self):
        (V,), arguments = KINDS["dense"].leaves(S, dtype=torch.float32), self.arguments(S)
        arguments = {name: value.float() for name, value in arguments.items()}
        tiny = {**arguments, "activations": arguments["activations"] * 1e-30}
        ours, theirs = (self.route(cr.DenseVotes(V), each) for each in (tiny, arguments))
        assert_routed(ours, theirs, 1e-5)

    def test_activations_that_are_no_probabilities_are_refused(self):
        arguments = self.arguments(S)
        arguments["activations"][1, 2] = 1.5
        with pytest.raises(ValueError, match=r"activations: expected probabilities in \[0, 1\], got 1.5 at \[1, 2\]"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(S)), arguments)
