"""Fully connected capsules: the routing functions with parameters, and nothing more."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleLinear
from tests.layers.filled import ROUTINGS, filled, indices, numbers, scores_for


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"children": 0}, "children: expected a whole number >= 1, got 0"),
        ({"children": 2.5}, "children: expected a whole number >= 1, got 2.5"),
        ({"parents": True}, "parents: expected a whole number >= 1, got True"),
        ({"in_pose": "4"}, "in_pose: expected positive sizes, a whole number or two .*, got '4'"),
        ({"out_pose": (1, 2, 3)}, r"out_pose: expected positive sizes, .*, got \(1, 2, 3\)"),
        ({"out_pose": True}, "out_pose: expected positive sizes, .*, got True"),
        ({"out_pose": 2.5}, "out_pose: expected positive sizes, .*, got 2.5"),
        ({"std": float("nan")}, "std: expected a finite number, got nan"),
        ({"std": -0.1}, "std: expected a number >= 0, got -0.1"),
    ],
)
def test_sizes_that_are_none_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        cr.layers.CapsuleLinear(**{"children": 6, "parents": 3, "in_pose": 4, "out_pose": 5, **arguments})


@pytest.mark.parametrize("name", ["in_capsules", "out_capsules", "kernel_size", "stride", "padding"])
def test_sizes_of_a_convolution_that_are_none_are_refused_by_name(name):
    sizes = {"in_capsules": 2, "out_capsules": 3, "in_pose": 4, "out_pose": 5, name: -1}
    with pytest.raises(ValueError, match=f"{name}: expected a whole number >= ., got -1"):
        cr.layers.CapsuleConv2d(**sizes)


def test_scores_with_other_axes_in_front_than_the_poses_are_refused_by_name():
    layer = cr.layers.CapsuleLinear(6, 3, 4, 5, routing="em")
    with pytest.raises(ValueError, match=r"scores: expected \(1, 2\) in front, as the poses have, got \(2, 6\)"):
        layer(torch.randn(1, 2, 6, 1, 4), torch.rand(2, 6))


def layer_of(routing, children=6, **options):
    return filled(CapsuleLinear(children, 3, (2, 4), (2, 5), routing=routing, **options))


def by_function(layer, poses, scores):
    """The routing function itself, called on the layer's parameters."""
    votes, router = cr.LinearVotes(poses, layer.W, layer.bias), layer.routing
    if router.name == "em":
        floor = {"variance_floor": router.variance_floor}
        return cr.em_routing(votes, scores, router.beta_use, router.beta_activate, router.iterations, **floor)
    if router.name == "heinsen":
        return cr.heinsen_routing(votes, scores, router.beta_use, router.beta_ignore, router.iterations, router.eps)
    if router.name == "fast":
        return cr.fast_routing(votes, router.coefficients)
    if router.name == "inverted_attention":
        return cr.inverted_attention_routing(votes, cr.inverted_attention_routing(votes).poses)
    if router.name == "self_attention":
        return cr.self_attention_routing(votes, router.prior)
    if router.name == "self_routing":
        logits = torch.einsum("bid,ijd->bij", poses.flatten(2), router.w) + router.b
        return cr.self_routing(votes, scores, logits)
    if router.name == "vb":
        found = cr.vb_routing(votes, scores, router.beta_use, router.beta_activate, router.iterations)
        return found._replace(
            poses=torch.stack([normed(found.poses[:, j]) for j in range(3)], 1),
            scores=torch.stack([normed(found.scores[:, j]) for j in range(3)], 1).sigmoid(),
        )
    return getattr(cr, f"{router.name}_routing")(votes)


def normed(x):
    """Batch norm without affine map."""
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_it_is_the_routing_function_on_its_parameters(routing, bias):
    layer, poses = layer_of(routing, bias=bias), numbers(4, 6, 2, 4)
    scores = scores_for(layer, 4, 6)
    routed, expected = layer(poses, scores, return_coefficients=True), by_function(layer, poses, scores)
    torch.testing.assert_close(routed.poses, expected.poses, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(routed.coefficients, expected.coefficients, rtol=1e-9, atol=1e-10)
    if expected.scores is not None:
        torch.testing.assert_close(routed.scores, expected.scores, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_asking_for_coefficients_changes_nothing_else(routing):
    layer, poses = layer_of(routing), numbers(4, 6, 2, 4)
    scores = scores_for(layer, 4, 6)
    plain, asked = layer(poses, scores), layer(poses, scores, return_coefficients=True)
    assert plain.coefficients is None
    assert torch.equal(plain.poses, asked.poses)
    assert (plain.scores is None and asked.scores is None) or torch.equal(plain.scores, asked.scores)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_batch_of_one_is_a_row_of_a_batch(routing):
    layer, poses = layer_of(routing).eval(), numbers(5, 6, 2, 4)
    scores = scores_for(layer, 5, 6)
    row = layer(poses[3:4], None if scores is None else scores[3:4], return_coefficients=True)
    batch = layer(poses, scores, return_coefficients=True)
    assert row.poses.shape == (1, 3, 2, 5)
    torch.testing.assert_close(row.poses[0], batch.poses[3], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(row.coefficients[0], batch.coefficients[3], rtol=1e-10, atol=1e-11)


def test_a_map_is_the_list_of_its_capsules():
    layer = filled(CapsuleLinear(3 * 2 * 5, 4, (2, 3), (2, 3)))
    poses = indices(2, 3, 2, 3, 2, 5) / 100
    children = torch.stack([poses[:, n, :, :, y, x] for n in range(3) for y in range(2) for x in range(5)], 1)
    torch.testing.assert_close(layer(poses).poses, layer(children).poses, rtol=0, atol=1e-14)


@pytest.mark.parametrize("children", [1, 7, 40])
def test_shared_transforms_take_any_number_of_children(children):
    layer = layer_of("dynamic", children=None)
    assert layer.W.shape == (1, 3, 4, 5)
    assert layer(numbers(2, children, 2, 4)).poses.shape == (2, 3, 2, 5)


def test_a_wrong_number_of_children_is_named():
    with pytest.raises(ValueError, match="poses: expected 6 children, got 7"):
        layer_of("dynamic")(numbers(2, 7, 2, 4))


def test_rows_of_children_and_parents_must_agree():
    with pytest.raises(ValueError, match="out_pose: expected 2 rows"):
        CapsuleLinear(6, 3, (2, 4), (3, 4))


QUICK = ("dynamic", "heinsen")  # to compile
FREE = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ROUTINGS if name != "fast"]


@pytest.mark.parametrize("routing", FREE)
def test_one_compiled_layer_serves_any_number_of_children(routing):
    torch.compiler.reset()
    layer = filled(CapsuleLinear(None, 3, (2, 4), (2, 5), routing, bias=True)).eval()
    compiled = torch.compile(lambda poses: layer(poses).poses, fullgraph=True, dynamic=True, backend="aot_eager")
    for children in (6, 11, 17):
        poses = numbers(2, children, 2, 4)
        torch.testing.assert_close(compiled(poses), layer(poses).poses, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_a_routing_that_is_set_trains_or_not_as_the_layer_does(training):
    layer = filled(CapsuleLinear(6, 3, 4, 4)).train(training)
    layer.set_routing("vb")
    together, alone = layer(numbers(2, 6, 1, 4)).poses[:1], layer(numbers(2, 6, 1, 4)[:1]).poses
    assert torch.allclose(together, alone) != training  # batch norms of evaluation do not see the batch


def test_set_routing_keeps_the_transforms_and_makes_fresh_betas():
    layer = layer_of("dynamic")
    before = layer.W.clone()
    layer.set_routing({"name": "heinsen", "iterations": 1})
    assert torch.equal(layer.W, before)
    assert layer.routing.beta_use.shape == (6, 3)
    assert layer.routing.beta_use.dtype == torch.float64
    assert layer(numbers(2, 6, 2, 4), numbers(2, 6)).scores.shape == (2, 3)


@pytest.mark.parametrize(
    ("routing", "std"),
    [
        ("dynamic", 0.1),  # the first authors' code
        ("max_min", (400 * 16) ** -0.5),  # fan-in
        ("inverted_attention", (10 / (400 * 8)) ** 0.5),  # the released code of Tsai et al. 2020
        ("heinsen", 1 / 8),  # Heinsen 2019, section 3.2
        ("em", 1 / 8),
    ],
)
def test_fresh_transforms_have_the_scale_of_their_paper(routing, std):
    torch.manual_seed(0)
    W = CapsuleLinear(400, 10, 8, 16, routing=routing).W
    # A normal that is cut at two standard deviations keeps 0.88 of its own.
    expected = std * (0.8796 if routing in ("dynamic", "max_min") else 1)
    assert W.std().item() == pytest.approx(expected, rel=0.01)
    assert W.mean().abs() < 0.01 * std


def test_std_overrides_the_default():
    torch.manual_seed(0)
    assert CapsuleLinear(400, 10, 8, 16, routing="heinsen", std=0.5).W.std().item() == pytest.approx(0.5, rel=0.01)
