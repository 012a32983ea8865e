import math

import pytest
import torch

from capsroute.data import ImageSet
from capsroute.data.generated.placing import AffnistLike, ExpandedMNIST, RotatedMNIST, ShiftedMNIST, to_bytes
from capsroute.data.warp import warp
from tests.data.generated.conftest import HEIGHT, LEFT, TOP, WIDTH, corners

ROWS = torch.arange(100).repeat(20)


def _seeded():
    return torch.Generator().manual_seed(5)


def _check_block_moved_whole(images, numbers, first_rows, first_columns):
    """Each picture is its digit's block, unchanged, and over all pictures it starts at exactly these places."""
    found = corners(images[:, 0])
    assert set(found[:, 0].tolist()) == set(first_rows)
    assert set(found[:, 2].tolist()) == set(first_columns)
    assert (found[:, 1] - found[:, 0] == HEIGHT - 1).all()
    assert (found[:, 3] - found[:, 2] == WIDTH - 1).all()
    assert torch.equal(images.flatten(1).amax(dim=1).long(), numbers + 1)
    assert torch.equal(images.flatten(1).long().sum(dim=1), (numbers + 1) * HEIGHT * WIDTH)


def test_shifted_by_up_to_two_pixels(digits):
    drawn = ShiftedMNIST(digits)(ROWS, _seeded())
    assert drawn.images.shape == (2000, 1, 28, 28)
    _check_block_moved_whole(drawn.images, ROWS, range(TOP - 2, TOP + 3), range(LEFT - 2, LEFT + 3))
    assert torch.equal(drawn.labels, ROWS % 10)


def test_expanded_anywhere_on_forty_pixels(digits):
    drawn = ExpandedMNIST(digits)(ROWS, _seeded())
    assert drawn.images.shape == (2000, 1, 40, 40)
    _check_block_moved_whole(drawn.images, ROWS, range(TOP, TOP + 13), range(LEFT, LEFT + 13))
    assert torch.equal(drawn.labels, ROWS % 10)


def test_affnist_like_keeps_all_ink_inside_and_goes_to_every_edge(digits):
    bright = ImageSet(digits.images.clamp(max=1) * 200, digits.labels, digits.classes)
    rule = AffnistLike(bright)
    images = rule(ROWS, _seeded()).images
    assert images.shape == (2000, 1, 40, 40)
    # The same maps and shifts on a larger picture: no ink where the 40 pixels end.
    draw = _seeded()
    maps = rule.affine.draw_maps(2000, draw)
    low, high = rule._room(bright.images[ROWS], maps)
    shifts = low + (high - low) * torch.rand(2000, 2, generator=draw, dtype=torch.float64)
    larger = to_bytes(warp(bright.images[ROWS].float() / 255, maps, shifts, (50, 50)))
    torch.testing.assert_close(larger[:, :, 5:-5, 5:-5].int(), images.int(), atol=1, rtol=0)
    larger[:, :, 5:-5, 5:-5] = 0
    assert not larger.any()
    found = corners(images[:, 0])
    assert found.amin(dim=0)[[0, 2]].tolist() == [0, 0]
    assert found.amax(dim=0)[[1, 3]].tolist() == [39, 39]
    # What is left of the ink is the block's area times both scales: between 0.64 and 1.44 times.
    area = images.float().sum(dim=(1, 2, 3)) / 200 / (HEIGHT * WIDTH)
    assert 0.6 < float(area.min()) < 0.7
    assert 1.35 < float(area.max()) < 1.5


def test_affnist_like_centres_a_digit_too_large_to_fit_and_takes_an_empty_one(digits):
    full = torch.full((2, 1, 40, 40), 255, dtype=torch.uint8)
    full[1] = 0
    images = AffnistLike(ImageSet(full, torch.tensor([0, 1]), digits.classes))(torch.tensor([0, 1]), _seeded()).images
    assert int(images[0, 0, 15:25, 15:25].min()) == 255
    assert not images[1].any()


def test_rotated_turns_by_the_angle_it_says(digits):
    drawn = RotatedMNIST(digits)(ROWS, _seeded())
    angle = drawn.metadata["angle"]
    assert drawn.images.shape == (2000, 1, 28, 28)
    assert 0 <= float(angle.min()) < 0.02
    assert 2 * math.pi - 0.02 < float(angle.max()) < 2 * math.pi
    # The middle of the block, seen from the centre of the picture, turns counter-clockwise.
    middle = torch.tensor([LEFT + (WIDTH - 1) / 2 - 13.5, TOP + (HEIGHT - 1) / 2 - 13.5])
    weights = drawn.images[:, 0].float()
    total = weights.sum(dim=(1, 2))
    line = torch.arange(28) - 13.5
    x, y = (weights * line).sum(dim=(1, 2)) / total, (weights * line[:, None]).sum(dim=(1, 2)) / total
    grey = ROWS >= 20  # faint digits lose too much to rounding
    expected_x = middle[0] * angle.cos() + middle[1] * angle.sin()
    expected_y = -middle[0] * angle.sin() + middle[1] * angle.cos()
    torch.testing.assert_close(x[grey], expected_x[grey], atol=0.05, rtol=0)
    torch.testing.assert_close(y[grey], expected_y[grey], atol=0.05, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [ShiftedMNIST, ExpandedMNIST, AffnistLike, RotatedMNIST])
def test_cpu_and_gpu_draw_the_same(digits, rule):
    here, there = (rule(digits.to(device))(ROWS, _seeded()) for device in ("cpu", "cuda"))
    assert int((here.images.int() - there.images.cpu().int()).abs().max()) <= (
        0 if rule in (ShiftedMNIST, ExpandedMNIST) else 1
    )
    assert torch.equal(here.labels, there.labels.cpu())
