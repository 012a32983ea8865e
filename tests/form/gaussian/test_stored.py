"""Gaussian passes over stored votes, against float64, and when they are taken; under the interpreter or on a GPU."""

import pytest
import torch

from capsroute.form.cost import register_pass, stored_pass, stores_votes
from capsroute.form.plan import Sizes as Plain
from tests.form.gaussian.cases import SCORES, routed_values
from tests.form.kernels import ROUNDING, Sizes, error, needs_kernels

VECTORS = Sizes("vector poses", 2, 3, 5, 1, 3, 4)
WIDE = Sizes("poses in two groups", 1, 3, 2, 3, 2, 6)


@needs_kernels
@pytest.mark.parametrize(
    ("algorithm", "s", "whose"),
    [("heinsen", VECTORS, "per child+bias"), ("em", VECTORS, "shared"), ("em", WIDE, "per child")],
    ids=str,
)
def test_stored_votes_route_like_float64(algorithm, s, whose, launched, monkeypatch):
    monkeypatch.setattr("capsroute.form.gaussian.calls.reads_votes", lambda *_: True)
    scores = SCORES["ordinary"](s)
    exact = routed_values(algorithm, s, whose, scores, torch.float64)
    launched.clear()
    for ours, wanted in zip(routed_values(algorithm, s, whose, scores, torch.float32), exact):
        assert error(ours, wanted) < 20 * ROUNDING[torch.float32]
    assert launched.count("stored_gradients") == 3
    assert "vote_gradients" not in launched


def test_votes_are_stored_where_making_them_costs_more():
    vectors, matrices = Plain(128, 1152, 100, 1, 8, 16), Plain(20, 5184, 64, 4, 4, 4)
    assert stores_votes(vectors, shared=False, fits=True)
    assert not stores_votes(matrices, shared=True, fits=True)
    assert register_pass(vectors, shared=False) > 10 * stored_pass(vectors)
    assert stores_votes(matrices, shared=True, fits=False)  # what cannot be made in registers
    assert not stores_votes(Plain(1, 4, 3, 1, 4, 4), shared=False, fits=True)  # a launch more costs more than it saves
