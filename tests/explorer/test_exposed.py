"""What is laid open is what the network did: votes, recorded iterations, pictures."""

import pytest
import torch

import capsroute as cr
from capsroute.explorer.exposed import Exposed, Painter
from tests.explorer.conftest import network


def named(exposed, images):
    with torch.no_grad():
        return dict(zip(exposed.output_names, exposed(images)))


@pytest.mark.parametrize("routing", ["max_min", "dynamic"])
def test_routing_the_votes_gives_the_networks_own_answer(routing):
    shown = network(routing=routing)
    answer = named(Exposed(shown), torch.rand(3, 1, 8, 8))
    votes = cr.DenseVotes(answer["votes"].unsqueeze(3))
    routed = cr.max_min_routing(votes) if routing == "max_min" else cr.dynamic_routing(votes)
    torch.testing.assert_close(routed.poses.flatten(2), answer["poses"])
    torch.testing.assert_close(routed.poses.flatten(2).norm(dim=2), answer["scores"])


def test_an_algorithm_of_another_kind_is_recorded_iteration_by_iteration():
    shown = network(routing="heinsen", std=None)
    exposed, images = Exposed(shown), torch.rand(2, 1, 8, 8)
    assert not exposed.in_browser
    answer = named(exposed, images)
    traced = cr.analysis.trace_routing(shown.model, images).layers["class_capsules"].steps
    assert answer["capsules"].shape[1] == answer["coefficients"].shape[1] == len(traced) > 1
    for at, step in enumerate(traced):
        torch.testing.assert_close(answer["capsules"][:, at], step.routed.poses.flatten(2))
    torch.testing.assert_close(answer["capsules"][:, -1], answer["poses"])
    torch.testing.assert_close(answer["scores"], shown.model(images).scores.softmax(1).detach())


def test_several_layers_are_recorded():
    model = cr.create_model("tsai_simple_cifar10", **cr.models.small_options("tsai_simple_cifar10")).eval()
    shown = type(network())("stack", model, None, ("a", "b", "c"), torch.zeros(0, *model.input_shape), ())
    answer = named(Exposed(shown), torch.rand(1, *model.input_shape))
    assert answer["capsules"].shape[1] == 2
    torch.testing.assert_close(answer["capsules"][:, -1], answer["poses"])
    assert float(answer["scores"].sum()) == pytest.approx(1, abs=1e-5)


def test_a_network_that_routes_nothing_to_its_classes_gives_probabilities_alone():
    model = cr.create_model("zhao_huang_resnet20", **cr.models.small_options("zhao_huang_resnet20")).eval()
    shown = type(network())("pooled", model, None, ("a", "b", "c"), torch.zeros(0, *model.input_shape), ())
    exposed = Exposed(shown)
    assert exposed.output_names == ["scores"]
    assert exposed.algorithm is None


def test_the_shown_model_itself_is_left_alone():
    shown = network()
    Exposed(shown), Painter(shown.model)
    assert shown.model.decoder is not None
    assert not shown.model.class_capsules._forward_pre_hooks


def test_one_capsule_is_painted_as_the_model_reconstructs_it():
    shown = network()
    output = shown.model(torch.rand(1, 1, 8, 8), labels=torch.tensor([4]))
    alone = torch.zeros_like(output.poses)
    alone[:, 4] = output.poses[:, 4]
    painted = Painter(shown.model)(alone.transpose(1, 2))
    torch.testing.assert_close(painted, output.reconstruction)


def test_a_router_of_ones_own_that_accumulates_like_ours_is_routed_in_the_browser():
    @cr.layers.register_routing("five_iterations")
    class FiveIterations(cr.layers.DynamicRouter):
        def __init__(self, iterations: int = 5):
            super().__init__(iterations)

    exposed = Exposed(network(routing="five_iterations"))
    assert exposed.in_browser
    assert exposed.algorithm == {"name": "dynamic", "iterations": 5}
