"""Feature extractors under capsules."""

import itertools

import pytest
import torch
from torch import nn

from capsroute.models.backbones import ResidualBlock, Window, make_backbone, map_size, smallest_side


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


STACKS = [
    [Window(9), Window(9, 2)],
    [Window(3, 2, 1), Window(1), Window(3, 2), Window(3)],
    [Window(2, 2), Window(3, 1, 1), Window(5, 3, 2)],
    [Window(3, 2, 1)],
    [],
]


@pytest.mark.parametrize("windows", STACKS)
def test_sizes_are_those_that_convolutions_give(windows):
    layers = nn.Sequential(*(nn.MaxPool2d(w.kernel, w.stride, w.padding) for w in windows))
    smallest = smallest_side(windows)
    for height, width in itertools.product(range(smallest, smallest + 9), repeat=2):
        assert map_size((height, width), windows) == tuple(layers(torch.zeros(1, 1, height, width)).shape[2:])


@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("windows", STACKS)
def test_the_smallest_side_is_the_smallest(windows, least):
    smallest = smallest_side(windows, least)

    def after(side):
        for window in windows:
            side = (side + 2 * window.padding - window.kernel) // window.stride + 1
        return side

    assert after(smallest) >= least
    assert smallest == 1 or after(smallest - 1) < least


def test_a_side_that_is_too_small_is_an_error_that_says_which_is_not():
    with pytest.raises(ValueError, match="image_size: expected at least 17 x 17 for these kernels, got 40 x 16"):
        map_size((40, 16), STACKS[0])
