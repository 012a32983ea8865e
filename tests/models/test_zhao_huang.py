"""Routing as pooling, and capsules on ResNet-20."""

import pytest
import torch

import capsroute as cr
from capsroute.routing import lengths
from tests.layers.filled import ROUTINGS
from tests.models.inputs import inputs, settled, small


@pytest.mark.parametrize("name", ["zhao_huang_conv", "zhao_huang_resnet20"])
def test_without_sharpness_routing_is_average_pooling(name):
    routed, average = (settled(small(name, **options)) for options in ({"sharpness": 0.0}, {"pooling": "average"}))
    torch.testing.assert_close(routed(inputs(routed)).scores, average(inputs(average)).scores, rtol=1e-4, atol=1e-5)
    sharp = settled(small(name, sharpness=50.0))
    assert not torch.allclose(sharp(inputs(sharp)).scores, average(inputs(average)).scores, rtol=1e-4, atol=1e-5)


def test_maximum_pooling_is_the_maximum():
    model = settled(small("zhao_huang_conv", pooling="max"))
    images = inputs(model)
    torch.testing.assert_close(model(images).scores, model.classifier(model.features(images).amax((2, 3))))


def test_coefficients_are_positions_by_groups_of_channels():
    model = settled(small("zhao_huang_conv"))
    images = inputs(model)
    coefficients = model(images, return_coefficients=True).coefficients["pool"]
    _, coupling = model.pool(model.features(images), return_coefficients=True)  # [b, groups, h, w]
    width = coupling.shape[3]
    assert torch.equal(coefficients[1, 1 * width + 0, 1], coupling[1, 1, 1, 0])
    torch.testing.assert_close(coefficients.sum(1), torch.ones(3, 2))


def test_depth_counts_the_layers_with_weights():
    for depth in (20, 32, 44, 56):
        features = cr.create_model(f"zhao_huang_resnet{depth}").features
        convolutions = [module for module in features.modules() if isinstance(module, torch.nn.Conv2d)]
        assert len(convolutions) + 1 == depth
    with pytest.raises(ValueError, match=r"depth: expected 6 n \+ 2 .*, got 21"):
        cr.create_model("zhao_huang_resnet20", depth=21)


def test_an_unknown_pooling_is_named():
    with pytest.raises(ValueError, match="pooling: expected one of routing, average, max, got 'sum'"):
        cr.create_model("zhao_huang_conv", pooling="sum")


class TestResidualCapsNet:
    def test_a_capsule_is_neighbouring_channels_at_one_position(self):
        model = settled(small("zhao_huang_capsnet_affnist"))
        images = inputs(model)
        features = model.features(images)
        size = model.capsule_size
        children = [
            features[:, size * n : size * (n + 1), y, x]
            for n in range(features.shape[1] // size)
            for y in range(features.shape[2])
            for x in range(features.shape[3])
        ]
        routed = model.class_capsules(torch.stack(children, 1).unsqueeze(2))
        torch.testing.assert_close(model(images).poses, routed.poses)
        torch.testing.assert_close(model(images).scores, lengths(routed.poses))

    @pytest.mark.parametrize("routing", ROUTINGS)
    def test_every_routing_but_one_runs(self, routing):
        if routing == "fast":
            with pytest.raises(ValueError, match="the number of children must be fixed"):
                small("zhao_huang_capsnet_affnist", routing=routing)
            return
        model = small("zhao_huang_capsnet_affnist", routing=routing)
        assert model(inputs(model)).scores.isfinite().all()

    def test_the_variants_of_the_paper_are_options(self):
        sharp = {"name": "pooling", "sharpness": 10.0, "activation": "squash"}
        model = small("zhao_huang_capsnet_affnist", routing=sharp, capsule_size=2)
        assert model.class_capsules.routing.sharpness == 10
        assert model.class_capsules.W.shape[2] == 2
        with pytest.raises(ValueError, match="capsule_size: expected a divisor of 64 channels, got 48"):
            cr.create_model("zhao_huang_capsnet_affnist", capsule_size=48)
