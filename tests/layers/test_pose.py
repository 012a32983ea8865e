"""Poses as arguments, and maps of capsules as lists."""

import pytest
import torch

import capsroute as cr
from capsroute.inference.folding import FoldedCapsuleLinear
from capsroute.layers import (
    CapsuleConv2d,
    CapsuleGlobal2d,
    CapsuleLinear,
    CapsuleStack,
    PoseLayerNorm,
    flatten_positions,
    parse_pose,
)
from capsroute.routing import pose_layer_norm
from tests.layers.filled import filled, indices, numbers, scores_for


def test_a_map_becomes_a_list_without_mixing_pose_and_position():
    poses, scores = indices(2, 3, 4, 5, 6, 7), indices(2, 3, 6, 7)
    flat = flatten_positions(poses, scores)
    assert flat.poses.shape == (2, 3 * 6 * 7, 4, 5)
    for n, y, x in [(0, 0, 0), (2, 5, 6), (1, 3, 2)]:
        child = (n * 6 + y) * 7 + x
        assert torch.equal(flat.poses[:, child], poses[:, n, :, :, y, x])
        assert torch.equal(flat.scores[:, child], scores[:, n, y, x])


def test_a_list_passes_through():
    poses, scores = indices(2, 3, 4, 5), indices(2, 3)
    flat = flatten_positions(poses, scores)
    assert flat.poses is poses
    assert flat.scores is scores


@pytest.mark.parametrize("pose", [0, -1, (0, 4), (4, 0)])
def test_a_pose_without_numbers_is_an_error(pose):
    with pytest.raises(ValueError, match="in_pose: expected positive sizes"):
        parse_pose("in_pose", pose)


def test_a_list_from_json_is_a_pose():
    assert parse_pose("pose", [4, 4]) == (4, 4)


LAYERS = {
    "list": (lambda: CapsuleLinear(5, 3, (2, 4), (2, 3), "em"), (5, 2, 4), (5,)),
    "list of shared": (lambda: CapsuleLinear(None, 3, (2, 4), (2, 3), "heinsen"), (5, 2, 4), (5,)),
    "free parents": (lambda: cr.layers.HeinsenRouting(5, 3, (2, 4), (2, 3)), (5, 2, 4), (5,)),
    "map as a list": (lambda: CapsuleLinear(30, 3, (2, 4), (2, 3), "em"), (5, 2, 4, 3, 2), (5, 3, 2)),
    "convolution": (lambda: CapsuleConv2d(5, 3, (2, 4), (2, 3), 2, routing="em"), (5, 2, 4, 3, 2), (5, 3, 2)),
    "all positions": (lambda: CapsuleGlobal2d(5, 3, (2, 4), (2, 3), "em"), (5, 2, 4, 3, 2), (5, 3, 2)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("leading", [(), (2, 3), (2, 1, 3), (0, 2)], ids=str)
def test_any_axes_in_front_are_those_of_a_batch(kind, leading):
    make, shape, scored = LAYERS[kind]
    layer, count = filled(make()), int(torch.tensor(leading).prod())
    poses, scores = numbers(count, *shape), scores_for(layer, count, *scored)
    batched = layer(poses, scores, return_coefficients=True)
    routed = layer(poses.view(*leading, *shape), scores.view(*leading, *scored), return_coefficients=True)
    for given, expected in zip(routed, batched):
        assert given.shape == (*leading, *expected.shape[1:])
        assert torch.equal(given.view(expected.shape), expected)


@pytest.mark.parametrize("children", [None, 1])
@pytest.mark.parametrize("layer", [CapsuleLinear, cr.layers.HeinsenRouting])
def test_samples_of_one_vector_are_not_taken_for_one_sample(layer, children):
    layer = filled(layer(children, 3, 8, 4))
    with pytest.raises(ValueError, match=r"poses: \(2, 1, 8\) can be vectors .* give it as \[b,i,1,8\]"):
        layer(numbers(2, 1, 8))
    assert layer(numbers(2, 1, 1, 8)).poses.shape == (2, 3, 1, 4)
    assert children or layer(numbers(2, 5, 8)).poses.shape == (2, 3, 1, 4)


def test_one_sample_of_as_many_vectors_as_there_are_transforms_needs_no_batch():
    assert filled(CapsuleLinear(5, 3, 8, 4))(numbers(5, 1, 8)).poses.shape == (3, 1, 4)


def test_a_stack_steps_whatever_stands_in_front():
    layers = [CapsuleConv2d(5, 3, (2, 4), (2, 4), 2), CapsuleLinear(18, 3, (2, 4), (2, 3), "inverted_attention")]
    stack = filled(CapsuleStack(layers, schedule="concurrent", iterations=3))
    poses = numbers(6, 5, 2, 4, 4, 3)
    assert torch.equal(stack(poses.view(3, 2, 5, 2, 4, 4, 3)).poses.flatten(0, 1), stack(poses).poses)
    torch.testing.assert_close(stack(poses[0]).poses, stack(poses[:1]).poses[0])


def test_primary_capsules_and_pooling_take_them_too():
    features = torch.randn(6, 8, 4, 4)
    primary = cr.layers.PrimaryCapsules(8, 3, 4, scores="logit")
    for given, expected in zip(primary(features.view(2, 3, 8, 4, 4)), primary(features)):
        torch.testing.assert_close(given.flatten(0, 1), expected)
    pool = cr.layers.RoutingPool2d(4)
    for given, expected in zip(pool(features.view(3, 2, 8, 4, 4), True), pool(features, True)):
        assert torch.equal(given.flatten(0, 1), expected)
    assert torch.equal(pool(features[0]), pool(features[:1])[0])
    assert pool(features[:0]).shape == (0, 8, 1, 1)


def test_what_can_be_a_list_and_a_map_is_refused():
    layer = CapsuleLinear(None, 3, (2, 4), (2, 3))
    with pytest.raises(ValueError, match=r"can be a list .* or a map"):
        layer(torch.zeros(5, 2, 4, 2, 4))
    assert layer(torch.zeros(1, 5, 2, 4, 2, 4)).poses.shape == (1, 3, 2, 3)  # six axes are a map, as ever


@pytest.mark.parametrize("folded", [False, True])
def test_matrices_are_read_as_vectors_where_parents_are_vectors(folded):
    linear, vectors = (filled(CapsuleLinear(5, 3, pose, 6)) for pose in ((2, 4), 8))
    conv, rows = (filled(CapsuleConv2d(5, 3, pose, 6, 2, routing="dynamic")) for pose in ((2, 4), 8))
    poses, maps = numbers(2, 5, 2, 4), numbers(2, 5, 2, 4, 3, 3)
    assert torch.equal(linear(poses).poses, vectors(poses.reshape(2, 5, 1, 8)).poses)
    assert torch.equal(conv(maps).poses, rows(maps.reshape(2, 5, 1, 8, 3, 3)).poses)
    if folded:
        for layer, given in ((linear, poses), (conv, maps)):
            holder = torch.nn.Module()
            holder.layer, holder.routed_layers = layer, lambda layer=layer: {"layer": layer}
            layer.set_routing("fast")
            flat = cr.inference.fold(holder).layer
            torch.testing.assert_close(flat(given).poses, layer(given).poses)
            torch.testing.assert_close(flat(given[0]).poses, layer(given[0]).poses)


def test_other_numbers_of_rows_are_refused():
    with pytest.raises(ValueError, match="out_pose: expected 2 rows as in_pose has, or one"):
        CapsuleLinear(5, 3, (2, 4), (3, 4))


def test_fresh_it_is_the_plain_layer_norm():
    poses = numbers(2, 3, 4, 5)
    assert torch.equal(PoseLayerNorm(4, 5).double()(poses), pose_layer_norm(poses))


def test_scale_and_shift_belong_to_numbers_of_the_pose():
    norm, poses = filled(PoseLayerNorm(2, 3)), numbers(4, 5, 2, 3)
    pose = poses[1, 2]
    whitened = (pose - pose.mean()) / (pose.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(norm(poses)[1, 2], whitened * norm.weight + norm.bias, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("poses", "message"),
    [
        (
            torch.zeros(2, 5, 1, 6),
            r"poses: expected \[...,i,1,4\] or a map \[...,n,1,4,h,w\], got shape \(2, 5, 1, 6\)",
        ),
        (torch.zeros(2, 5), r"poses: expected \[...,i,1,4\] or a map \[...,n,1,4,h,w\], got shape \(2, 5\)"),
        (torch.zeros(2, 5, 1, 4).double(), "poses: expected torch.float32 on cpu, as the layer is, got torch.float64"),
        (torch.zeros(2, 5, 1, 4).long(), "poses: expected torch.float32 on cpu, as the layer is, got torch.int64"),
        (torch.zeros(2, 5, 1, 4, device="meta"), "poses: expected torch.float32 on cpu, .* got torch.float32 on meta"),
        (torch.zeros(2, 5, 1, 4).numpy(), r"poses: expected a tensor \[...,i,1,4\].*, got ndarray$"),
        (cr.layers.Capsules(torch.zeros(2, 5, 1, 4)), r"poses: expected a tensor .*, got Capsules; give its poses"),
    ],
)
@pytest.mark.parametrize("folded", [False, True])
def test_what_a_layer_cannot_take_is_named(poses, message, folded):
    layer = CapsuleLinear(5, 3, 4, 3, "fast")
    layer = FoldedCapsuleLinear(layer) if folded else layer
    with pytest.raises(ValueError, match=message):
        layer(poses)


def test_a_folded_layer_takes_vectors_without_their_row_too():
    layer, poses = CapsuleLinear(5, 3, 4, 3, "fast"), torch.randn(2, 5, 4)
    torch.testing.assert_close(FoldedCapsuleLinear(layer)(poses).poses, layer(poses).poses)


@pytest.mark.parametrize(
    ("poses", "scores", "expected"),
    [
        ((2, 3, 2, 2, 4, 5), (2, 4, 5, 3), r"\(2, 3, 4, 5\) \[b,n,h,w\]"),  # as many, of other capsules
        ((2, 3, 2, 2, 4, 5), (2, 3, 4, 4), r"\(2, 3, 4, 5\) \[b,n,h,w\]"),
        ((2, 3, 2, 2, 4, 5), (2, 59), r"\(2, 60\) \[b,i\]"),
        ((2, 60, 2, 2), (2, 59), r"\(2, 60\) \[b,i\]"),
        ((2, 60, 2, 2), (2, 60, 1), r"\(2, 60\) \[b,i\]"),
    ],
)
def test_scores_that_do_not_fit_their_capsules_are_named(poses, scores, expected):
    layer = CapsuleLinear(60, 3, (2, 2), (2, 2), routing="em")
    with pytest.raises(ValueError, match=rf"scores: expected shape {expected}, as the poses have, got"):
        layer(torch.zeros(poses), torch.full(scores, 0.5))
