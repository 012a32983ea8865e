"""Several routed layers: one after the other, or all at once as in procedure 2 of Tsai et al. 2020."""

import numpy as np
import pytest
import torch

from capsroute.layers import CapsuleConv2d, CapsuleLinear, CapsuleStack, RoutedLayer
from capsroute.layers.attention_routers import InvertedAttentionRouter
from tests.layers.filled import filled, numbers
from tests.routing import oracles


def layers_of(routing="inverted_attention"):
    conv = CapsuleConv2d(2, 3, (2, 2), (2, 2), kernel_size=2, routing=routing)
    return [
        conv,
        CapsuleLinear(3 * 2 * 2, 4, (2, 2), (2, 2), routing=routing),
        CapsuleLinear(4, 3, (2, 2), (2, 2), routing=routing),
    ]


def linear_layers(routing="inverted_attention"):
    sizes = [(6, 5), (5, 4), (4, 3)]
    return [CapsuleLinear(i, j, (2, 2), (2, 2), routing=routing) for i, j in sizes]


def literal_procedure_2(primary, transforms, iterations):
    """Tsai 2020, procedure 2, line by line, with procedure 1 as loops: P[L] are poses [b, n, a, o] as numpy arrays."""

    def route(children, parents, W):
        return oracles.inverted_attention(oracles.votes(children, W), parents).poses

    batch = len(primary)
    P = [primary] + [np.zeros((batch, W.shape[1], 2, 2)) for W in transforms]  # line 4
    for L, W in enumerate(transforms):  # lines 5 and 6
        P[L + 1] = route(P[L], P[L + 1], W)
    for _ in range(iterations - 1):  # line 7
        new = [route(P[L], P[L + 1], W) for L, W in enumerate(transforms)]  # line 8
        P = [primary, *new]  # line 9
    return P[1:]


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_the_concurrent_schedule_is_procedure_2(iterations):
    stack = filled(CapsuleStack(linear_layers(), "concurrent", iterations))
    poses = numbers(2, 6, 2, 2)
    transforms = [layer.W.detach().numpy() for layer in stack.layers]
    expected = literal_procedure_2(poses.numpy(), transforms, iterations)
    for routed, wanted in zip(stack.route(poses), expected):
        torch.testing.assert_close(routed.poses.detach().numpy(), wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("routing", ["dynamic", "em", "heinsen", "inverted_attention"])
def test_the_sequential_schedule_ends_one_layer_before_the_next(routing):
    stack = filled(CapsuleStack(layers_of(routing), "sequential"))
    poses = numbers(2, 2, 2, 2, 3, 3)
    routed = None
    for layer, given in zip(stack.layers, stack.route(poses)):
        routed = layer(poses, None) if routed is None else layer(routed.poses, routed.scores)
        torch.testing.assert_close(given.poses, routed.poses)


def test_schedules_differ_once_there_is_something_to_iterate():
    poses = numbers(2, 2, 2, 2, 3, 3)
    results = [filled(CapsuleStack(layers_of(), schedule))(poses).poses for schedule in ("sequential", "concurrent")]
    assert not torch.allclose(*results)
    one = {"name": "inverted_attention", "iterations": 1}
    results = [filled(CapsuleStack(layers_of(one), schedule))(poses).poses for schedule in ("sequential", "concurrent")]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_asking_for_coefficients_changes_nothing_else(schedule):
    stack, poses = filled(CapsuleStack(layers_of(), schedule)), numbers(2, 2, 2, 2, 3, 3)
    plain, asked = stack.route(poses), stack.route(poses, return_coefficients=True)
    assert [routed.coefficients for routed in plain] == [None] * 3
    assert [tuple(routed.coefficients.shape) for routed in asked] == [(2, 2, 2, 8, 3), (2, 12, 4), (2, 4, 3)]
    for first, second in zip(plain, asked):
        assert torch.equal(first.poses, second.poses)


def test_iterations_are_those_of_the_router_unless_said():
    five = {"name": "inverted_attention", "iterations": 5}
    assert CapsuleStack(linear_layers(five), "concurrent").iterations == 5
    assert CapsuleStack(linear_layers(five), "concurrent", iterations=1).iterations == 1
    assert CapsuleStack(linear_layers(five), "sequential", iterations=5).iterations == 5


def test_a_number_of_iterations_that_the_sequential_schedule_passes_over_is_said():
    # Its layers ask their own routers: a comparison of schedules with this number would be of two numbers.
    with pytest.warns(UserWarning, match=r"iterations: got 3, but .* which route \[2, 2, 2\] times"):
        CapsuleStack(linear_layers(), "sequential", iterations=3)


def test_routers_that_disagree_on_the_steps_they_take_together_are_named():
    layers = [*linear_layers(), *linear_layers({"name": "inverted_attention", "iterations": 4})]
    with pytest.warns(UserWarning, match=r"iterations: .* routers say \[2, 2, 2, 4, 4, 4\], .* all take 2"):
        assert CapsuleStack(layers, "concurrent").iterations == 2
    assert CapsuleStack(layers, "concurrent", iterations=3).iterations == 3
    assert CapsuleStack(layers, "sequential")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "layers: expected at least one routed layer"),
        (([*linear_layers(), torch.nn.Linear(4, 4)],), "layers: expected routed layers, .*, got Linear as layer 3"),
        ((3 * [None],), "layers: expected routed layers, .*, got NoneType as layer 0"),
        ((linear_layers(), "parallel"), "schedule: expected one of sequential, concurrent, got 'parallel'"),
        ((linear_layers(), "concurrent", 0), "iterations: expected a whole number >= 1, got 0"),
        ((linear_layers("dynamic"), "concurrent"), "'dynamic' keeps state .* use schedule='sequential'"),
        ((linear_layers("em")[:1] + linear_layers("heinsen")[1:],), "layer 0 gives scores of kind 'probability'"),
        ((linear_layers({"name": "vb", "logits": True}),), "layer 0 gives scores of kind 'logit', and layer 1 takes"),
    ],
)
def test_what_cannot_be_stacked_says_why(arguments, message):
    with pytest.raises(ValueError, match=message):
        CapsuleStack(*arguments)


def test_compiled_layers_are_stacked():
    layers = [filled(layer) for layer in linear_layers()]
    plain = CapsuleStack(layers)
    compiled = CapsuleStack([torch.compile(layer, backend="eager") for layer in layers])
    poses = numbers(2, 6, 2, 2)
    assert torch.equal(compiled(poses).poses, plain(poses).poses)


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_layers_with_compiled_routers_are_stacked(schedule):
    layers = [filled(layer) for layer in linear_layers()]
    poses = numbers(2, 6, 2, 2)
    plain = CapsuleStack(layers, schedule)(poses).poses
    for layer in layers:
        layer.routing = torch.compile(layer.routing, backend="eager")
    assert torch.equal(CapsuleStack(layers, schedule)(poses).poses, plain)


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_steps_that_cannot_reach_the_last_layer_are_not_taken(iterations, monkeypatch):
    stack = CapsuleStack([filled(layer) for layer in layers_of()], "concurrent", iterations)
    poses = numbers(2, 2, 2, 2, 3, 3)
    everything = stack.route(poses)[-1].poses
    taken = []
    step = InvertedAttentionRouter.step
    monkeypatch.setattr(InvertedAttentionRouter, "step", lambda *a, **k: taken.append(a[0]) or step(*a, **k))
    assert torch.equal(stack(poses).poses, everything)
    steps = [sum(router is layer.routing for router in taken) for layer in stack.routed_layers()]
    assert steps == [max(1, iterations - 2), max(1, iterations - 1), iterations]


@pytest.mark.parametrize(("iterations", "expected"), [(1, [1, 1, 1]), (2, [1, 1, 1]), (3, [1, 2, 2]), (4, [1, 3, 3])])
def test_votes_of_children_that_stay_are_made_once(iterations, expected, monkeypatch):
    stack, asked = CapsuleStack(linear_layers(), "concurrent", iterations), []
    votes = CapsuleLinear.votes
    monkeypatch.setattr(CapsuleLinear, "votes", lambda layer, *a: asked.append(layer) or votes(layer, *a))
    stack.route(torch.randn(2, 6, 2, 2))
    assert [asked.count(layer) for layer in stack.layers] == expected


def test_a_step_does_not_take_votes_of_other_children():
    routing = {"name": "inverted_attention", "activations": True}
    layer, made = filled(CapsuleLinear(6, 3, (2, 2), (2, 2), routing=routing)), {}
    parents = numbers(2, 3, 2, 2)
    one, other = numbers(2, 6, 2, 2), numbers(2, 6, 2, 2, seed=3)
    scores, others = numbers(2, 6, seed=4).sigmoid(), numbers(2, 6, seed=5).sigmoid()
    before = None
    for given in ((one, scores), (one, scores), (one, others), (one, None), (other, None)):
        kept = made.get("votes")
        found, expected = layer.step(*given, parents, False, made), layer.step(*given, parents)
        torch.testing.assert_close(found[:1] + found[2:], expected[:1] + expected[2:], rtol=1e-12, atol=1e-12)
        assert (made["votes"] is kept) == (before is not None and all(a is b for a, b in zip(given, before)))
        before = given


@pytest.mark.parametrize("layers", [layers_of, linear_layers])
def test_gradients_through_votes_that_are_made_once_are_the_same(layers, monkeypatch):
    stack = filled(CapsuleStack(layers(), "concurrent", 3))
    poses = (numbers(2, 6, 2, 2) if layers is linear_layers else numbers(2, 2, 2, 2, 3, 3)).requires_grad_()
    leaves = [poses, *stack.parameters()]
    ours = torch.autograd.grad(stack(poses).poses.square().sum(), leaves)
    step = RoutedLayer.step
    monkeypatch.setattr(RoutedLayer, "step", lambda layer, *given: step(layer, *given[:4]))
    theirs = torch.autograd.grad(stack(poses).poses.square().sum(), leaves)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
