"""How convolutions shrink a map, forwards and backwards."""

import itertools

import pytest
import torch
from torch import nn

from capsroute.models.map_sizes import Window, map_size, smallest_side

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
