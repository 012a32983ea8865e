"""Capsules on a backbone, and the ablations of Tsai 2020."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleGlobal2d, CapsuleLinear
from tests.layers.filled import ROUTINGS
from tests.models.inputs import inputs, settled, small

INVERTED = cr.models.tsai.INVERTED_ATTENTION


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", ["tsai_simple_cifar100", "tsai_dynamic_simple", "tsai_multimnist_vector"])
def test_every_routing_runs_where_children_are_fixed(name, routing):
    model = small(name, routing=routing)
    output = model(inputs(model), return_coefficients=True)
    assert output.scores.isfinite().all()
    assert list(output.coefficients) == list(model.routed_layers())
    output.scores.sum().backward()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_but_one_runs_with_shared_transforms(routing):
    if routing == "fast":
        with pytest.raises(ValueError, match="the number of children must be fixed"):
            small("tsai_em_simple", routing=routing)
        return
    model = small("tsai_em_simple", routing=routing)
    assert model(inputs(model)).scores.isfinite().all()


def test_the_schedule_is_concurrent_where_that_makes_sense():
    assert small("tsai_simple_cifar10").capsules.schedule == "concurrent"
    assert small("tsai_simple_cifar10", routing="dynamic").capsules.schedule == "sequential"
    with pytest.raises(ValueError, match="schedule='sequential'"):
        small("tsai_simple_cifar10", routing="dynamic", schedule="concurrent")


@pytest.mark.parametrize(
    "ablation",
    [
        {"routing": {**INVERTED, "norm": "none"}},
        {"schedule": "sequential"},
        {"routing": {**INVERTED, "activations": True}},
    ],
    ids="ABC",
)
def test_an_ablation_is_another_network(ablation):
    whole, ablated = settled(small("tsai_simple_cifar10")), small("tsai_simple_cifar10", **ablation)
    missing = ablated.load_state_dict(whole.state_dict(), strict=False).missing_keys
    assert all("beta" in key or "primary_capsules.scores" in key for key in missing)
    images = inputs(whole)
    assert not torch.allclose(ablated.eval()(images).scores, whole(images).scores)


def test_without_layer_norm_poses_are_plain_sums():
    model = settled(small("tsai_simple_cifar10", routing={**INVERTED, "norm": "none"}))
    poses = model(inputs(model)).poses
    assert poses.flatten(2).mean(2).abs().max() > 0.01
    normed = settled(small("tsai_simple_cifar10"))
    assert normed(inputs(normed)).poses.flatten(2).mean(2).abs().max() < 1e-5


def test_activations_of_capsules_go_from_layer_to_layer():
    model = settled(small("tsai_simple_cifar10", routing={**INVERTED, "activations": True}))
    features = model.backbone(inputs(model))
    capsules = model.primary_capsules(features)
    assert 0 < capsules.scores.min() < capsules.scores.max() < 1
    routed = model.capsules.route(capsules.poses, capsules.scores)
    assert [layer.scores.dim() for layer in routed] == [4, 4, 2]
    silenced = model.capsules.route(capsules.poses, torch.zeros_like(capsules.scores))
    assert silenced[0].poses.abs().max() < routed[0].poses.abs().max()


def test_more_iterations_change_the_result():
    images = inputs(small("tsai_simple_cifar10"))
    scores = [
        settled(small("tsai_simple_cifar10", routing={**INVERTED, "iterations": n}))(images).scores for n in (1, 2, 3)
    ]
    assert not torch.allclose(scores[0], scores[1])
    assert not torch.allclose(scores[1], scores[2])


def test_the_class_layer_of_em_shares_its_transforms_over_positions():
    assert isinstance(small("tsai_em_simple").capsules.layers[-1], CapsuleGlobal2d)
    assert isinstance(small("tsai_simple_cifar10").capsules.layers[-1], CapsuleLinear)
    with pytest.raises(ValueError, match="shared: class capsules must come right after a map"):
        small("tsai_em_simple", hidden=(4,))


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("tsai_simple_cifar10", [(288, 32, 4, 4), (288, 32, 4, 4), (800, 10, 4, 4)]),  # table 8
        ("tsai_resnet_cifar100", [(288, 32, 6, 6), (288, 32, 6, 6), (800, 20, 6, 6), (20, 100, 6, 6)]),  # table 9
        ("tsai_em_simple", [(288, 32, 4, 4), (288, 32, 4, 4), (32, 10, 4, 4)]),  # table 6
        ("tsai_dynamic_simple", [(2048, 10, 8, 16)]),  # table 4
        ("tsai_dynamic_resnet", [(2048, 10, 8, 16)]),
        ("tsai_multimnist_matrix", [(144, 16, 8, 8), (576, 10, 8, 8)]),  # table 10
        ("tsai_multimnist_vector", [(144, 16, 64, 64), (576, 10, 64, 64)]),  # table 11
    ],
)
def test_transforms_are_those_of_the_table(name, shapes):
    with torch.device("meta"):
        model = cr.create_model(name)
    assert [tuple(layer.W.shape) for layer in model.routed_layers().values()] == shapes


def test_several_digits_are_several_labels():
    assert small("tsai_multimnist_matrix").default_loss == "binary_cross_entropy"
    assert small("tsai_multimnist_vector", routing="dynamic").default_loss == "margin"
    assert small("tsai_simple_cifar10").default_loss == "cross_entropy"
