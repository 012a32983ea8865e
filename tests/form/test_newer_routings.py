"""Self-attention, self-routing, uniform and variational Bayes routing through kernels, against float64.

Each is put together of operators that others have, or is a kind of one. What ran is named.
"""

import pytest
import torch

import capsroute as cr
from tests.form.gaussian.cases import TINY, draw, outputs_and_gradients, voters
from tests.form.kernels import DEVICE, Sizes, needs_kernels

FEW = Sizes("a few", 2, 6, 3, 1, 2, 3)

# name -> (further arguments for sizes s, the call, kernels that must have run)
ROUTINGS = {
    "uniform": (lambda s: [], lambda votes: cr.uniform_routing(votes), set()),
    "self_attention": (lambda s: [], cr.self_attention_routing, {"resident_loop"}),
    "self_attention, prior": (
        lambda s: [draw(s.i, s.j)],
        cr.self_attention_routing,
        {"resident_loop_backward"},
    ),
    "self_routing": (
        lambda s: [draw(s.b, s.i), draw(s.b, s.i, s.j)],
        lambda votes, a, logits: cr.self_routing(votes, a.sigmoid(), logits),
        {"aggregate_plane"},
    ),
    "vb": (
        lambda s: [draw(s.b, s.i), draw(s.j, seed=1), draw(s.j, seed=2)],
        lambda votes, a, use, activate: cr.vb_routing(votes, a.sigmoid(), use, activate, iterations=2),
        {"whole_forward", "whole_backward"},
    ),
}


@needs_kernels
@pytest.mark.parametrize("name", ROUTINGS)
def test_kernels_equal_float64(name, launched):
    arguments, call, kernels = ROUTINGS[name]

    def function(u, W, *rest):
        backend = "torch" if u.dtype == torch.float64 else "triton"
        routed = call(cr.LinearVotes(u, W, backend=backend), *rest)
        return tuple(part for part in (routed.poses, routed.scores, routed.variances) if part is not None)

    given = [*voters(FEW, "per child")[:2], *arguments(FEW)]
    exact = outputs_and_gradients(function, given, torch.float64)
    assert not launched
    ours = outputs_and_gradients(function, given, torch.float32)
    assert kernels <= set(launched), launched
    for index, (mine, wanted) in enumerate(zip(ours, exact, strict=True)):
        distance = (mine.double() - wanted).norm() / wanted.norm().clamp_min(1e-2)
        assert distance < 2 * TINY, f"output or gradient {index}: {distance:.1e}"


@needs_kernels
def test_who_competes_in_variational_bayes_and_first_shares_are_those_asked_for(launched):
    u, W, a, use, activate = (
        t.to(DEVICE) for t in (*voters(FEW, "per child")[:2], draw(2, 6).sigmoid(), draw(3), draw(3, seed=1))
    )
    votes = cr.LinearVotes(u, W)
    usual = cr.vb_routing(votes, a, use, activate)
    assert launched.count("whole_forward") == 1
    same = cr.vb_routing(votes, a, use, activate, normalise=lambda logits: logits.softmax(2))
    sharper = cr.vb_routing(votes, a, use, activate, normalise=lambda logits: (2 * logits).softmax(2))
    for wanted, mine, other in zip(usual, same, sharper):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
        assert (other - wanted).norm() > 1e-3 * wanted.norm()
    first = draw(2, 6, 3).sigmoid().to(DEVICE)
    assert torch.equal(cr.vb_routing(votes, a, use, activate, 1, first=first).coefficients, first)
    assert launched.count("whole_forward") == 1
