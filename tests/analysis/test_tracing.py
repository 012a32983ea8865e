"""A trace shows the iterations of the run itself, and leaves the model as it was."""

import pytest
import torch

from capsroute.analysis import trace_routing
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
