"""A trace shows the iterations of the run itself and leaves the model as it was; maps lie where their capsules look."""

import numpy as np
import pytest
import torch
from torch import nn

import capsroute as cr
from capsroute.analysis import Places, child_places, spread, trace_routing
from capsroute.layers import Router
from tests.analysis.small import Stacked, images, small


@pytest.mark.parametrize("routing", ["dynamic", "max_min", "inverted_attention", "em", "heinsen", "pooling"])
def test_step_t_is_the_model_with_t_iterations(routing):
    model = small({"name": routing, "iterations": 3})
    steps = trace_routing(model, images(2)).layers["class_capsules"].steps
    assert len(steps) == 3
    for count, step in enumerate(steps, 1):
        model.class_capsules.routing.iterations = count
        expected = model(images(2), return_coefficients=True)
        torch.testing.assert_close(step.routed.coefficients, expected.coefficients["class_capsules"])
        torch.testing.assert_close(step.routed.poses, expected.poses)


def test_layers_that_step_together_are_watched_step_by_step():
    model, x = Stacked("concurrent"), images(2, 7)
    traced = trace_routing(model, x)
    assert [len(trace.steps) for trace in traced.layers.values()] == [3, 3]
    for count in (1, 2, 3):
        model.stack.iterations = count
        *_, last = traced.layers.values()
        torch.testing.assert_close(last.steps[count - 1].routed.poses, model(x).poses)


def test_layers_that_follow_each_other_keep_their_own_votes():
    model, x = Stacked("sequential", routing="dynamic"), images(2, 7)
    traced = trace_routing(model, x)
    conv, linear = traced.layers.values()
    # The second layer's votes come from the finished first layer, in all of its iterations.
    finished = conv.layer(model.primary(x).poses).poses.permute(0, 1, 4, 5, 2, 3).flatten(1, 3)
    for step in linear.steps:
        torch.testing.assert_close(step.votes.u, finished)


def test_more_iterations_than_the_model_has():
    steps = trace_routing(small(), images(1), iterations=6).layers["class_capsules"].steps
    assert len(steps) == 6


def test_the_model_is_left_as_it_was():
    model = Stacked("concurrent").train()
    before = model(images(2, 7)).poses
    trace_routing(model, images(2, 7), iterations=5)
    assert model.training
    assert model.stack.iterations == 3
    torch.testing.assert_close(model(images(2, 7)).poses, before, rtol=0, atol=0)
    routers = [module for module in model.modules() if isinstance(module, Router)]
    assert all("step" not in vars(router) and not router._forward_hooks for router in routers)


@pytest.mark.parametrize("iterations", [0, -1, 1.5, True])
def test_iterations_that_are_none(iterations):
    with pytest.raises(ValueError, match="iterations: expected a whole number >= 1"):
        trace_routing(small(), images(1), iterations)


def test_places_are_the_middles_of_what_changes_a_capsule():
    model = small(kernel_size=2, primary_stride=2)  # children on a 3 x 3 map
    x = images(1)

    def children(image):
        return model.primary_capsules(model.convolution(image).relu()).poses  # [1, n, a, k, h, w]

    base, seen = children(x), torch.zeros(3, 3, 8, 8, dtype=torch.bool)
    for row in range(8):
        for column in range(8):
            changed = x.clone()
            changed[0, 0, row, column] += 0.37
            seen[:, :, row, column] = (children(changed) != base).any(dim=3).any(dim=2).any(dim=1)[0]
    places = child_places(model)
    for y in range(3):
        for x_ in range(3):
            rows, columns = torch.nonzero(seen[y, x_], as_tuple=True)
            assert float(places.rows[y]) == (rows.min() + rows.max()).item() / 2
            assert float(places.columns[x_]) == (columns.min() + columns.max()).item() / 2


def test_a_padded_map_covers_the_image_evenly():
    model = small()
    model.convolution = nn.Conv2d(1, 32, 5, padding=2).double()
    model.primary_capsules.poses = nn.Conv2d(32, 64, 4, stride=4).double()
    assert child_places(model).rows.tolist() == [1.5, 5.5]


def test_a_list_of_children_has_no_places():
    model = Stacked()
    model.stack.layers.append(cr.layers.CapsuleLinear(3, 3, (2, 2), (2, 2), "inverted_attention").double())
    with pytest.raises(ValueError, match=r"layer: the children of 'stack.layers.2' are a list, not a map"):
        child_places(model, "stack.layers.2")


def test_spread_is_linear_interpolation():
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64)
    rows, columns = torch.tensor([1.5, 3.5, 5.5]), torch.tensor([0.0, 1.5, 3.0, 4.5])
    pictures = spread(maps, Places(rows, columns), (9, 8))
    for picture, one in zip(pictures.numpy(), maps.numpy()):
        across = np.stack([np.interp(np.arange(8), columns, line) for line in one])
        expected = np.stack([np.interp(np.arange(9), rows, line) for line in across.T], axis=1)
        expected[:1] = expected[7:] = np.nan  # rows 0.5 to 6.5 are within half a step
        expected[:, 6:] = np.nan
        np.testing.assert_allclose(picture, expected, atol=1e-12)


def test_spread_of_one_place_is_constant():
    picture = spread(torch.tensor([[3.0]]), Places(torch.tensor([2.0]), torch.tensor([5.0])), (4, 6))
    assert torch.equal(picture, torch.full((4, 6), 3.0))


def test_spread_needs_as_many_places_as_the_map_has():
    with pytest.raises(ValueError, match="maps: expected"):
        spread(torch.zeros(2, 3), Places(torch.tensor([0.0]), torch.tensor([0.0])), (4, 4))


def test_models_without_routing_and_layers_that_are_not_there_are_named():
    plain = cr.create_model("tsai_cnn", **cr.models.small_options("tsai_cnn"))
    x = torch.rand(1, *plain.input_shape)
    for ask in (
        lambda: cr.analysis.routing_convergence(plain, x),
        lambda: cr.analysis.parse_tree(plain, x[0]),
        lambda: cr.analysis.child_places(plain),
    ):
        with pytest.raises(ValueError, match="model: expected one with a routed layer, 'tsai_cnn' has none"):
            ask()
    with pytest.raises(ValueError, match="layer: expected one of class_capsules, or a routing pooling, got 'nowhere'"):
        cr.analysis.child_places(cr.create_model("capsnet_small", image_size=8), "nowhere")
