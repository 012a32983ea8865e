import math

import torch

from capsroute.data.warp import linear_maps, warp


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
