"""Feature extractors under capsules."""

import pytest
import torch

from capsroute.models.backbones import ResidualBlock, make_backbone
from capsroute.models.map_sizes import map_size


@pytest.mark.parametrize(
    "backbone", ["simple", "resnet", {"name": "simple", "kernel_size": 9, "stride": 1, "padding": 0}]
)
@pytest.mark.parametrize("size", [(9, 9), (12, 15), (17, 10)])
def test_the_map_has_the_size_and_channels_that_it_says(backbone, size):
    extractor = make_backbone(2, backbone).eval()
    features = extractor(torch.rand(2, 2, *size))
    assert features.shape == (2, extractor.out_channels, *map_size(size, extractor.windows))


def test_the_residual_backbone_is_that_of_the_appendix():
    features = make_backbone(3, "resnet").eval()(torch.rand(1, 3, 32, 32))
    assert features.shape == (1, 128, 16, 16)


def test_batch_normalisation_comes_before_the_rectifier():
    kinds = [type(layer).__name__ for layer in make_backbone(3, {"name": "simple", "batch_norm": True})]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU"]


@pytest.mark.parametrize("shortcut", ["projection", "padding"])
def test_a_block_is_its_convolutions_plus_the_way_around_them(shortcut):
    torch.manual_seed(0)
    block, x = ResidualBlock(3, 8, stride=2, shortcut=shortcut).eval(), torch.randn(2, 3, 5, 7)
    way = torch.zeros(2, 8, 3, 4)
    way[:, 2:5] = x[:, :, ::2, ::2]
    way = way if shortcut == "padding" else block.shortcut(x)
    torch.testing.assert_close(block(x), (block.second(block.first(x)) + way).relu())


def test_a_block_that_changes_no_size_goes_straight_around():
    block, x = ResidualBlock(4, 4), torch.randn(2, 4, 5, 5)
    assert torch.equal(block.shortcut(x), x)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("vgg", "backbone: expected one of simple, resnet, got 'vgg'"),
        (
            {"name": "resnet", "kernel_size": 3},
            "backbone: 'resnet' has options channels, stride, base_channels, blocks",
        ),
    ],
)
def test_an_unknown_backbone_is_named(backbone, message):
    with pytest.raises(ValueError, match=message):
        make_backbone(3, backbone)
