"""Convolutional capsules: at every position the same layer on the patch there; under EM, positions compete."""

import itertools
import math

import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleConv2d, CapsuleGlobal2d, FastRouter, make_router
from tests.layers.filled import ROUTINGS, filled, indices, numbers, scores_for
from tests.routing import oracles

ONE_POSITION = [name for name in ROUTINGS if not make_router(name).competes_over_positions]


def layer_of(routing, stride=2, padding=0, **options):
    layer = CapsuleConv2d(
        2, 3, (2, 3), (2, 4), kernel_size=3, stride=stride, padding=padding, routing=routing, **options
    )
    return filled(layer)


def patch(maps, y, x, stride=2):
    """The 3x3 patch of a map [b, n, ..., h, w] for position (y, x), as a list of (capsule, row, column)."""
    cut = maps[..., y * stride : y * stride + 3, x * stride : x * stride + 3]
    return torch.stack([cut[:, n, ..., r, c] for n in range(maps.shape[1]) for r in range(3) for c in range(3)], 1)


@pytest.mark.parametrize("routing", ONE_POSITION)
def test_it_is_the_routing_of_each_patch_by_itself(routing):
    layer, poses = layer_of(routing), numbers(2, 2, 2, 3, 7, 5)
    scores = scores_for(layer, 2, 2, 7, 5)
    routed = layer(poses, scores, return_coefficients=True)
    assert routed.poses.shape == (2, 3, 2, 4, 3, 2)
    for y, x in itertools.product(range(3), range(2)):
        votes = cr.LinearVotes(patch(poses, y, x), layer.W)
        alone = layer.routing(votes, None if scores is None else patch(scores, y, x))
        torch.testing.assert_close(routed.poses[..., y, x], alone.poses, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(routed.coefficients[:, y, x], alone.coefficients, rtol=1e-9, atol=1e-10)
        if alone.scores is not None:
            torch.testing.assert_close(routed.scores[..., y, x], alone.scores, rtol=1e-9, atol=1e-10)


def test_pose_and_position_do_not_mix():
    # Coefficients that pick one child, and transforms that pass it on: the parents are the children themselves.
    layer = CapsuleConv2d(2, 1, (2, 3), (2, 3), kernel_size=3, stride=2, routing=FastRouter(activation=None)).double()
    poses = indices(2, 2, 2, 3, 7, 9)
    with torch.no_grad():
        layer.W.copy_(torch.eye(3).expand_as(layer.W))
    for child, (n, row, column) in enumerate(itertools.product(range(2), range(3), range(3))):
        layer.routing.coefficients.zero_()[child] = 1
        expected = poses[:, n : n + 1, :, :, row : row + 5 : 2, column : column + 7 : 2]
        assert torch.equal(layer(poses).poses, expected)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_asking_for_coefficients_changes_nothing_else(routing):
    layer, poses = layer_of(routing), numbers(2, 2, 2, 3, 5, 5)
    scores = scores_for(layer, 2, 2, 5, 5)
    plain, asked = layer(poses, scores), layer(poses, scores, return_coefficients=True)
    assert plain.coefficients is None
    assert asked.coefficients.shape == (2, 2, 2, 18, 3)
    assert torch.equal(plain.poses, asked.poses)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_batch_of_one_is_a_row_of_a_batch(routing):
    layer, poses = layer_of(routing).eval(), numbers(3, 2, 2, 3, 5, 7)
    scores = scores_for(layer, 3, 2, 5, 7)
    row = layer(poses[2:], None if scores is None else scores[2:])
    torch.testing.assert_close(row.poses[0], layer(poses, scores).poses[2], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("routing", ["em", "heinsen"])
@pytest.mark.parametrize("given", [True, False])
def test_padding_is_no_child(routing, given):
    layer, poses = layer_of(routing, stride=2, padding=1), numbers(2, 2, 2, 3, 3, 3)
    scores = scores_for(layer, 2, 2, 3, 3) if given else None
    absent = -math.inf if routing == "heinsen" else 0.0
    present = math.inf if routing == "heinsen" else 1.0
    inner = torch.full((2, 2, 3, 3), present, dtype=torch.float64) if scores is None else scores
    padded_scores = torch.nn.functional.pad(inner, [1] * 4, value=absent)
    # Whatever stands in the padding must not matter.
    padded_poses = torch.nn.functional.pad(poses, [1] * 4, value=7.0)
    layer.padding = 0
    expected = layer(padded_poses, padded_scores)
    layer.padding = 1
    routed = layer(poses, scores)
    torch.testing.assert_close(routed.poses, expected.poses, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(routed.scores, expected.scores, rtol=1e-9, atol=1e-10)


def test_a_map_smaller_than_the_kernel_says_the_smallest_that_fits():
    with pytest.raises(ValueError, match="at least 3 x 3 positions, got 2 x 9"):
        layer_of("dynamic")(numbers(1, 2, 2, 3, 2, 9))
    with pytest.raises(ValueError, match=r"poses: expected \[b,2,a,k,h,w\]"):
        layer_of("dynamic")(numbers(1, 3, 2, 3, 9, 9))


def test_a_step_is_a_step_of_each_patch():
    layer, poses = layer_of("inverted_attention"), numbers(2, 2, 2, 3, 5, 5)
    parents = numbers(2, 3, 2, 4, 2, 2, seed=3)
    stepped = layer.step(poses, None, parents)
    for y, x in itertools.product(range(2), range(2)):
        votes = cr.LinearVotes(patch(poses, y, x), layer.W)
        alone = cr.inverted_attention_routing(votes, parents[..., y, x].contiguous())
        torch.testing.assert_close(stepped.poses[..., y, x], alone.poses, rtol=1e-10, atol=1e-11)


def brute_force_em(poses, activations, W, beta_use, beta_activate, iterations, floor):
    """EM over one sample's whole map: every (position, parent) that sees a child competes for it, number by number."""
    (types, _, _, height, width), parents = poses.shape, W.shape[1]
    places = [(y, x) for y in range((height - 3) // 2 + 1) for x in range((width - 3) // 2 + 1)]
    edges = []  # (child, parent, vote, activation)
    for (y, x), n, r, c, j in itertools.product(places, range(types), range(3), range(3), range(parents)):
        at = (y * 2 + r, x * 2 + c)
        vote = poses[n, :, :, at[0], at[1]] @ W[(n * 3 + r) * 3 + c, j]
        edges.append(((n, *at), (y, x, j), vote, activations[n, at[0], at[1]]))
    children = {edge[0] for edge in edges}
    of_child = {child: [e for e, edge in enumerate(edges) if edge[0] == child] for child in children}
    of_parent = {parent: [e for e, edge in enumerate(edges) if edge[1] == parent] for parent in {e[1] for e in edges}}
    R = np.zeros(len(edges))
    for mine in of_child.values():
        R[mine] = 1 / len(mine)
    mean, variance, active = {}, {}, {}
    for t in range(iterations):
        if t > 0:
            for mine in of_child.values():
                R[mine] = oracles.softmax([log_share(edges[e], mean, variance, active) for e in mine])
        for parent, mine in of_parent.items():
            weights = [R[e] * edges[e][3] for e in mine]
            mean[parent] = sum(w * edges[e][2] for w, e in zip(weights, mine)) / sum(weights)
            spread = sum(w * (edges[e][2] - mean[parent]) ** 2 for w, e in zip(weights, mine)) / sum(weights)
            variance[parent] = np.maximum(spread, floor)
            j = parent[2]
            cost = sum((beta_use[j] + 0.5 * math.log(v)) * sum(weights) for v in variance[parent].flat)
            active[parent] = oracles.logistic(oracles.hinton_schedule(t) * (beta_activate[j] - cost))
    return mean, active


def log_share(edge, mean, variance, active):
    _, parent, vote, _ = edge
    squares = ((vote - mean[parent]) ** 2 / (2 * variance[parent]) + 0.5 * np.log(2 * math.pi * variance[parent])).sum()
    return math.log(active[parent]) - squares


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_under_em_parents_of_all_positions_compete_for_a_child(iterations):
    layer = layer_of({"name": "em", "iterations": iterations})
    poses, activations = numbers(2, 2, 2, 3, 7, 5), numbers(2, 2, 7, 5).sigmoid()
    routed = layer(poses, activations, return_coefficients=True)
    parameters = [tensor.detach().numpy() for tensor in (layer.W, layer.routing.beta_use, layer.routing.beta_activate)]
    for b in range(2):
        expected = brute_force_em(poses[b].numpy(), activations[b].numpy(), *parameters, iterations, 1e-4)
        for y, x, j in itertools.product(range(3), range(2), range(3)):
            mean, active = expected[0][y, x, j], expected[1][y, x, j]
            torch.testing.assert_close(routed.poses[b, j, :, :, y, x].detach().numpy(), mean, rtol=1e-7, atol=1e-8)
            assert routed.scores[b, j, y, x].item() == pytest.approx(active, rel=1e-8)
    # What a child gives to all the parents that see it is one child.
    given = {}
    for y, x, n, r, c in itertools.product(range(3), range(2), range(2), range(3), range(3)):
        child = (n, 2 * y + r, 2 * x + c)
        given[child] = given.get(child, 0) + routed.coefficients[0, y, x, (n * 3 + r) * 3 + c].sum().item()
    assert list(given.values()) == pytest.approx([1.0] * len(given))


def test_under_em_children_of_float64_start_with_shares_of_float64():
    layer = CapsuleConv2d(2, 3, (2, 2), (2, 2), kernel_size=3, routing={"name": "em", "iterations": 1}).double()
    poses = torch.randn(1, 2, 2, 2, 5, 5, dtype=torch.float64)
    shares = layer(poses, return_coefficients=True).coefficients  # [b,h',w',i,j]
    assert shares[0, 0, 1, 1, 0].item() == 1 / (3 * 3)  # column 2 of row 0: in three patches, each of three parents


def test_under_em_no_samples_give_no_parents():
    layer = CapsuleConv2d(2, 3, (2, 2), (2, 2), kernel_size=3, routing="em")
    assert layer(torch.randn(0, 2, 2, 2, 5, 5)).poses.shape == (0, 3, 2, 2, 3, 3)


@pytest.mark.parametrize(
    "routing", [{"name": "pooling", "sharpness": 2.0}, {"name": "uniform", "competes_over": "children"}]
)
def test_padding_is_no_child_where_children_compete(routing):
    layer, poses = layer_of(routing, stride=1, padding=1), numbers(2, 2, 2, 3, 4, 4)
    routed = layer(poses, return_coefficients=True)
    # The first position sees the four children of a corner, of each of two types.
    inside = [n * 9 + row * 3 + column for n in range(2) for row in (1, 2) for column in (1, 2)]
    children = torch.stack([poses[:, n, :, :, row, column] for n in range(2) for row in (0, 1) for column in (0, 1)], 1)
    alone = layer.routing(cr.LinearVotes(children, layer.W[inside]))
    torch.testing.assert_close(routed.poses[..., 0, 0], alone.poses, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(routed.coefficients.sum(3), torch.ones_like(routed.coefficients[:, :, :, 0]))


# Self-routing reads the children, not their votes.
FREE = [routing for routing in ROUTINGS if routing not in ("fast", "self_routing")]


def global_layer_of(routing="em", **options):
    return filled(CapsuleGlobal2d(2, 3, (2, 4), (2, 5), routing=routing, **options))


@pytest.mark.parametrize("coordinates", [True, False])
@pytest.mark.parametrize("routing", FREE)
def test_it_is_the_routing_of_every_vote(routing, coordinates):
    layer, poses = global_layer_of(routing, coordinates=coordinates), numbers(2, 2, 2, 4, 3, 5)
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
    layer = global_layer_of("heinsen")
    assert layer.W.shape == (2, 3, 4, 5)
    assert layer.routing.beta_use.shape == (1, 3)
    for size in [(1, 1), (4, 2)]:
        assert layer(indices(1, 2, 2, 4, *size) / 50, numbers(1, 2, *size)).poses.shape == (1, 3, 2, 5)


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="coordinates: need a pose of at least two numbers"):
        CapsuleGlobal2d(2, 3, 4, 1)
    with pytest.raises(ValueError, match="routing: 'fast' needs one coefficient per child"):
        global_layer_of("fast")
    with pytest.raises(ValueError, match=r"poses: expected \[b,2,a,k,h,w\]"):
        global_layer_of()(numbers(2, 6, 2, 4))


@pytest.mark.parametrize("shape", [(2, 6, 5, 2), (2, 2, 6, 4), (2, 2, 5, 6), (2, 2, 30), (2, 1, 6, 5)])
@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_scores_that_do_not_fit_the_map_are_named(shape, routing):
    with pytest.raises(ValueError, match=r"scores: expected shape \(2, 2, 6, 5\) \[b,n,h,w\], as the poses have, got"):
        layer_of(routing)(torch.zeros(2, 2, 2, 3, 6, 5, dtype=torch.float64), torch.full(shape, 0.5).double())
