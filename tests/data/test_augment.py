"""Each augmentation against a slow version that works image by image with the same random numbers."""

import math

import numpy as np
import pytest
import torch

from capsroute.data import multi_hot
from capsroute.data.augment import (
    Affine,
    Compose,
    Cutout,
    Elastic,
    Flip,
    Mixup,
    PadCrop,
    Shift,
    crop_windows,
    linear_maps,
    warp,
)

B = 7


def _images(channels=3, height=6, width=5):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, 256, (B, channels, height, width), dtype=torch.uint8, generator=generator)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 1])


def _seeded():
    return torch.Generator().manual_seed(11)


def _slow_pad_crop(images, pad, corners, height, width):
    result = []
    for image, (top, left) in zip(images, corners.tolist()):
        canvas = torch.zeros(image.shape[0], image.shape[1] + 2 * pad, image.shape[2] + 2 * pad, dtype=image.dtype)
        canvas[:, pad : pad + image.shape[1], pad : pad + image.shape[2]] = image
        result.append(canvas[:, top : top + height, left : left + width])
    return torch.stack(result)


@pytest.mark.parametrize(("pad", "size"), [(0, None), (2, None), (16, None), (0, 4), (1, 5)])
def test_pad_crop_against_one_image_at_a_time(pad, size):
    images = _images()
    height, width = (6, 5) if size is None else (size, size)
    draw = _seeded()
    corners = [torch.randint(room + 1, (B,), generator=draw) for room in (6 + 2 * pad - height, 5 + 2 * pad - width)]
    found, labels = PadCrop(pad, size)(images, LABELS, _seeded())
    assert found.dtype == torch.uint8
    assert torch.equal(found, _slow_pad_crop(images, pad, torch.stack(corners, dim=1), height, width))
    assert labels is LABELS


def test_pad_crop_reaches_every_window_and_no_other():
    images = torch.zeros(2000, 1, 1, 1, dtype=torch.uint8)
    images[:] = 9
    found, _ = PadCrop(2)(images, LABELS, _seeded())
    share = (found == 9).float().mean()
    assert abs(float(share) - 1 / 25) < 0.02  # one of 25 windows shows the pixel
    wide = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5).expand(2000, 1, 5, 5)
    assert len(PadCrop(0, size=3)(wide, LABELS, _seeded())[0][:, 0, 0, 0].unique()) == 9


def test_windows_of_a_non_contiguous_batch():
    images = _images().transpose(2, 3)
    corners = torch.tensor([[0, 1], [1, 0], [2, 3], [0, 0], [1, 2], [2, 1], [0, 3]])
    assert torch.equal(crop_windows(images, corners, (3, 3)), _slow_pad_crop(images, 0, corners, 3, 3))


def test_shift_is_a_pad_and_crop_of_the_same_size():
    found, _ = Shift(2)(_images(), LABELS, _seeded())
    assert torch.equal(found, PadCrop(2)(_images(), LABELS, _seeded())[0])


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_flip_against_one_image_at_a_time(p):
    images = _images()
    chosen = torch.rand(B, generator=_seeded()) < p
    expected = torch.stack([image.flip(2) if flip else image for image, flip in zip(images, chosen)])
    assert torch.equal(Flip(p)(images, LABELS, _seeded())[0], expected)
    assert 0 < int(chosen.sum()) < B or p in (0.0, 1.0)


def test_affine_draws_within_its_ranges_and_uses_all_of_them():
    maps = Affine(degrees=20, shear=0.2, scale=(0.8, 1.2)).draw_maps(4000, _seeded())
    angle = torch.atan2(-maps[:, 1, 0], maps[:, 0, 0])  # the first column is the turned x axis, times scale x
    scale_x = maps[:, :, 0].norm(dim=1)
    scale_y = torch.linalg.det(maps) / scale_x
    shear = (maps[:, :, 0] * maps[:, :, 1]).sum(dim=1) / scale_x / scale_y
    for values, low, high in ((angle.rad2deg(), -20, 20), (scale_x, 0.8, 1.2), (scale_y, 0.8, 1.2), (shear, -0.2, 0.2)):
        slack = 0.01 * (high - low)
        assert low <= float(values.min()) < low + slack
        assert high - slack < float(values.max()) <= high
        assert abs(float(values.mean()) - (low + high) / 2) < 3 * slack


def test_affine_moves_all_channels_of_an_image_alike_and_images_each_in_its_own_way():
    images = _images(channels=1).expand(B, 3, 6, 5)
    augment = Affine(degrees=30, shift=1)
    found, _ = augment(images, LABELS, _seeded())
    assert torch.equal(found[:, 0], found[:, 2])
    draw = _seeded()
    maps = augment.draw_maps(B, draw)
    shifts = -1 + 2 * torch.rand(B, 2, generator=draw, dtype=torch.float64)
    for index in range(B):
        one = warp(images[index : index + 1].float() / 255, maps[index : index + 1], shifts[index : index + 1])
        torch.testing.assert_close(found[index], one[0])


def test_affine_that_does_nothing():
    found, _ = Affine()(_images(), LABELS, _seeded())
    torch.testing.assert_close(found, _images().float() / 255)


def test_elastic_moves_points_of_its_grid_as_drawn_and_what_lies_between_along():
    rows, columns = torch.meshgrid(torch.arange(15.0), torch.arange(22.0), indexing="ij")
    ramps = torch.stack([columns, rows]).expand(B, 2, 15, 22)  # a pixel says where it came from
    moves = 0.8 * torch.randn(B, 2, 3, 4, generator=_seeded())
    found, _ = Elastic(0.8, spacing=7)(ramps, LABELS, _seeded())
    came = found - ramps
    torch.testing.assert_close(came[:, :, 7, 7:15:7], moves[:, :, 1, 1:3], atol=2e-5, rtol=0)
    steps = came[:, :, 4:11, 4:18].diff(dim=3).abs()
    assert float(steps.max()) < 0.6  # of moves that differ by up to 3 pixels in 7: bent, not torn
    assert float(moves[:, :, 1].diff(dim=2).abs().max()) > 1.5


def test_elastic_that_does_nothing():
    torch.testing.assert_close(Elastic(0.0)(_images(), LABELS, _seeded())[0], _images().float() / 255)


def test_mixup_against_one_image_at_a_time():
    images, targets = _images(), multi_hot(LABELS, 3)
    draw = _seeded()
    weights = np.random.default_rng(int(torch.randint(2**62, (), generator=draw))).beta(0.2, 0.2, B)
    partners = torch.randperm(B, generator=draw)
    found, soft = Mixup(0.2)(images, targets, _seeded())
    for index, (weight, partner) in enumerate(zip(weights.tolist(), partners.tolist())):
        image = weight * images[index].double() / 255 + (1 - weight) * images[partner].double() / 255
        torch.testing.assert_close(found[index].double(), image, atol=1e-6, rtol=0)
        target = weight * targets[index].double() + (1 - weight) * targets[partner].double()
        torch.testing.assert_close(soft[index].double(), target, atol=1e-6, rtol=0)


def test_mixup_weights_follow_beta():
    images, targets = torch.zeros(20000, 1, 1, 1), torch.eye(2)[torch.arange(20000) % 2]
    images[::2] = 1
    mixed, _ = Mixup(0.2)(images, targets, _seeded())
    # Beta(0.2, 0.2) has variance 1 / (4 (2 * 0.2 + 1)); a mixed pixel that had an unlike partner shows the weight.
    weight = mixed[(mixed > 0) & (mixed < 1)]
    assert abs(float(weight.var()) - 1 / 5.6) < 0.005


def test_mixup_refuses_labels_that_are_numbers():
    with pytest.raises(ValueError, match="labels: expected float targets"):
        Mixup(0.2)(_images(), LABELS, _seeded())


def test_compose_applies_in_order_with_one_stream_of_numbers():
    draw = _seeded()
    expected, _ = Flip(0.5)(*PadCrop(2)(_images(), LABELS, draw), draw)
    found, _ = Compose([PadCrop(2), Flip(0.5)])(_images(), LABELS, _seeded())
    assert torch.equal(found, expected)
    assert not Compose([PadCrop(2), Flip(0.5)]).soft_targets
    assert Compose([PadCrop(2), Compose([Mixup(0.2)])]).soft_targets


@pytest.mark.parametrize(
    "augment", [PadCrop(1), Flip(1.0), Affine(degrees=5), Elastic(1.0), Compose([Shift(1), Flip(1.0)])]
)
def test_the_given_images_are_not_changed(augment):
    images = _images()
    augment(images, LABELS, _seeded())
    assert torch.equal(images, _images())


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: PadCrop(-1), "pad: expected a whole number >= 0, got -1"),
        (lambda: Flip(1.5), "p: expected a probability"),
        (lambda: Affine(scale=(0, 1)), "scale: expected 0 < smallest"),
        (lambda: Affine(scale=(1.2, 0.8)), "scale: expected 0 < smallest"),
        (lambda: PadCrop(2.5), "pad: expected a whole number >= 0, got 2.5"),
        (lambda: Shift("2"), "pixels: expected a whole number >= 0, got '2'"),
        (lambda: Affine(degrees=float("nan")), "degrees: expected a finite number, got nan"),
        (lambda: Affine(shift=float("inf")), "shift: expected a finite number, got inf"),
        (lambda: Affine(scale=(1.0,)), "scale: expected .smallest, largest., got"),
        (lambda: Elastic(float("inf")), "pixels: expected a finite number, got inf"),
        (lambda: Cutout(float("nan")), "size: expected a whole number >= 1, got nan"),
        (lambda: Elastic(-1), "pixels: expected 0 or more"),
        (lambda: Elastic(1, spacing=0), "spacing: expected a whole number >= 1"),
        (lambda: Mixup(0), "alpha: expected a number > 0"),
        (lambda: Cutout(0), "size: expected a whole number >= 1"),
        (lambda: PadCrop(1, size=9)(_images(), LABELS, _seeded()), "size: expected at most 7, got 9"),
    ],
)
def test_what_is_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_what_it_is_can_be_read():
    assert repr(Compose([Shift(2), Flip(0.5)])) == "Compose([Shift(pixels=2), Flip(p=0.5)])"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "augment",
    [PadCrop(2), Flip(0.5), Affine(degrees=20, shear=0.2, shift=2), Elastic(1.0, spacing=2), Cutout(5), Mixup(0.2)],
)
def test_cpu_and_gpu_do_the_same(augment):
    targets = multi_hot(LABELS, 3)
    on_cpu, soft = augment(_images(), targets, _seeded())
    on_gpu, soft_gpu = augment(_images().cuda(), targets.cuda(), _seeded())
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=2e-5, rtol=0)
    torch.testing.assert_close(soft_gpu.cpu(), soft)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("size", [1, 4, 5, 40])
def test_cutout_covers_one_square_with_the_mean_and_nothing_else(dtype, size):
    images = torch.randint(256, (64, 3, 12, 9), generator=_seeded()).to(dtype)
    found, _ = Cutout(size)(images, torch.zeros(64), _seeded())
    mean = images.double().mean((2, 3), keepdim=True)
    if dtype == torch.uint8:
        mean = mean.round()
    painted = ((found.double() - mean).abs() < 1e-3).all(1)  # [b, h, w]
    assert torch.equal(found[~painted[:, None].expand_as(found)], images[~painted[:, None].expand_as(images)])
    rows, columns = painted.any(2).sum(1), painted.any(1).sum(1)
    assert torch.equal(painted.sum((1, 2)), rows * columns)  # a whole rectangle
    assert int(rows.max()) == min(size, 12)
    assert int(columns.max()) == min(size, 9)


def test_cutout_reaches_every_pixel_equally_often_but_for_the_edge():
    images = torch.arange(100.0).view(1, 1, 10, 10).expand(20_000, 1, 10, 10)
    found, _ = Cutout(3)(images, torch.zeros(20_000), _seeded())
    often = (found != images).float().mean(0)[0]  # [h, w]
    middle = often[1:-1, 1:-1]
    assert middle.min() > 0.08  # 9 of 100 places cover a pixel
    assert middle.max() < 0.10
    assert often[0, 0] == pytest.approx(0.04, abs=0.01)


def _slow_warp(image, matrix, shift, height, width):
    """One image `[h, w]`, pixel by pixel: look back through the inverse map and interpolate by hand."""
    h, w = image.shape
    inverse = torch.linalg.inv(matrix)
    result = torch.zeros(height, width, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            target = torch.tensor([column - (width - 1) / 2, row - (height - 1) / 2], dtype=torch.float64)
            x, y = (inverse @ (target - shift)).tolist()
            x, y = x + (w - 1) / 2, y + (h - 1) / 2
            left, top = math.floor(x), math.floor(y)
            for r in (top, top + 1):
                for c in (left, left + 1):
                    if 0 <= r < h and 0 <= c < w:
                        result[row, column] += (1 - abs(x - c)) * (1 - abs(y - r)) * float(image[r, c])
    return result


def _maps(angle=0.0, shear=0.0, scale_x=1.0, scale_y=1.0):
    return linear_maps(*(torch.tensor([value], dtype=torch.float64) for value in (angle, shear, scale_x, scale_y)))


def test_against_a_slow_warp_of_each_pixel():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(5, 1, 9, 7, generator=generator, dtype=torch.float64)
    maps = torch.eye(2, dtype=torch.float64) + 0.4 * torch.randn(5, 2, 2, generator=generator, dtype=torch.float64)
    shifts = 2 * torch.randn(5, 2, generator=generator, dtype=torch.float64)
    warped = warp(images, maps, shifts, (11, 12))
    for index in range(5):
        slow = _slow_warp(images[index, 0], maps[index], shifts[index], 11, 12)
        torch.testing.assert_close(warped[index, 0], slow, atol=1e-12, rtol=0)


def test_a_quarter_turn_is_counter_clockwise():
    picture = torch.zeros(1, 1, 5, 5)
    picture[0, 0, 2, 4] = 1  # right of the centre
    turned = warp(picture, _maps(angle=math.pi / 2), torch.zeros(1, 2))
    assert turned[0, 0].round().nonzero().tolist() == [[0, 2]]  # above it


def test_shear_pushes_lower_rows_to_the_right_and_scale_is_per_axis():
    assert torch.allclose(_maps(shear=0.5)[0] @ torch.tensor([0.0, 2.0]).double(), torch.tensor([1.0, 2.0]).double())
    scaled = _maps(scale_x=2.0, scale_y=3.0)[0] @ torch.tensor([1.0, 1.0]).double()
    assert scaled.tolist() == [2.0, 3.0]


def test_a_shift_of_whole_pixels_moves_right_and_down():
    picture = torch.arange(16.0).view(1, 1, 4, 4)
    moved = warp(picture, _maps(), torch.tensor([[1.0, 2.0]]))
    assert moved[0, 0, 2:, 1:].tolist() == picture[0, 0, :2, :3].tolist()
    assert float(moved[0, 0, :2].abs().sum() + moved[0, 0, :, 0].abs().sum()) == 0
