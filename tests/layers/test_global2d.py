"""All positions vote for one set of parents, through transforms that belong to a capsule type."""

import itertools

import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleGlobal2d
from tests.layers.filled import ROUTINGS, filled, indices, numbers, scores_for

# Self-routing reads the children, not their votes.
FREE = [routing for routing in ROUTINGS if routing not in ("fast", "self_routing")]


def layer_of(routing="em", **options):
    return filled(CapsuleGlobal2d(2, 3, (2, 4), (2, 5), routing=routing, **options))


@pytest.mark.parametrize("coordinates", [True, False])
@pytest.mark.parametrize("routing", FREE)
def test_it_is_the_routing_of_every_vote(routing, coordinates):
    layer, poses = layer_of(routing, coordinates=coordinates), numbers(2, 2, 2, 4, 3, 5)
    scores = scores_for(layer, 2, 2, 3, 5)
    V = []
    for n, y, x in itertools.product(range(2), range(3), range(5)):
        vote = torch.einsum("bak,jko->bjao", poses[:, n, :, :, y, x], layer.W[n])
        if coordinates:
            vote = vote.clone()
            vote[:, :, 0, 4] += (y + 0.5) / 3
            vote[:, :, 1, 4] += (x + 0.5) / 5
        V.append(vote)
    expected = layer.routing(cr.DenseVotes(torch.stack(V, 1)), None if scores is None else scores.flatten(1))
    routed = layer(poses, scores, return_coefficients=True)
    torch.testing.assert_close(routed.poses, expected.poses, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(routed.coefficients, expected.coefficients, rtol=1e-8, atol=1e-9)


def test_a_vector_pose_has_the_coordinates_in_its_first_two_numbers():
    layer = CapsuleGlobal2d(1, 2, 4, 3, routing="dynamic").double()
    votes = layer.votes(torch.zeros(1, 6, 1, 4, dtype=torch.float64), (2, 3)).dense()  # [b, i, j, 1, o]
    for child, (y, x) in enumerate(itertools.product(range(2), range(3))):
        expected = torch.tensor([(y + 0.5) / 2, (x + 0.5) / 3, 0.0], dtype=torch.float64)
        torch.testing.assert_close(votes[0, child, 1, 0], expected)


def test_parameters_do_not_grow_with_the_map():
    layer = layer_of("heinsen")
    assert layer.W.shape == (2, 3, 4, 5)
    assert layer.routing.beta_use.shape == (1, 3)
    for size in [(1, 1), (4, 2)]:
        assert layer(indices(1, 2, 2, 4, *size) / 50, numbers(1, 2, *size)).poses.shape == (1, 3, 2, 5)


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="coordinates: need a pose of at least two numbers"):
        CapsuleGlobal2d(2, 3, 4, 1)
    with pytest.raises(ValueError, match="routing: 'fast' needs one coefficient per child"):
        layer_of("fast")
    with pytest.raises(ValueError, match=r"poses: expected \[b,2,a,k,h,w\]"):
        layer_of()(numbers(2, 6, 2, 4))
