"""What all routers share."""

import pytest
import torch

import capsroute as cr
from tests.layers.filled import ROUTINGS


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name not in ("inverted_attention", "fast")])
def test_algorithms_with_state_of_their_own_say_why_they_cannot_be_stepped(routing):
    layer = cr.layers.CapsuleLinear(6, 3, 4, 4, routing=routing)
    assert not layer.routing.can_step()
    with pytest.raises(ValueError, match=f"routing: '{routing}' keeps state over its own iterations"):
        layer.step(torch.zeros(1, 6, 1, 4), None, None)


def test_all_active_children_weigh_one():
    votes = cr.DenseVotes(torch.zeros(2, 3, 4, 1, 5, dtype=torch.float16))
    active = cr.layers.router.all_active(votes)
    assert torch.equal(active, torch.ones(2, 3))
