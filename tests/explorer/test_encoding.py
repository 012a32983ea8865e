"""Bytes of images and poses: exact where they are whole, refused with a message where they are not."""

import numpy as np
import pytest
import torch

from capsroute.explorer.encoding import MOST_ROWS, Refused, as_message, images_of, poses_of


def test_images_are_read_channel_by_channel():
    images = torch.arange(2 * 3 * 2 * 4, dtype=torch.uint8).view(2, 3, 2, 4)
    assert torch.equal(images_of(images.numpy().tobytes(), (3, 2, 4)), images)


def test_poses_are_little_endian_floats():
    poses = torch.randn(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(poses_of(poses.numpy().astype("<f4").tobytes(), (1, 3, 4)), poses)


@pytest.mark.parametrize("size", [0, 1, 63, 65, 64 * (MOST_ROWS + 1)])
def test_images_of_another_length(size):
    with pytest.raises(Refused, match=f"1 to {MOST_ROWS} times 64 bytes, got {size}"):
        images_of(bytes(size), (1, 8, 8))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_poses_that_are_no_numbers(value):
    poses = np.zeros((1, 1, 3, 4), "<f4")
    poses[0, 0, 1, 2] = value
    with pytest.raises(Refused, match="finite"):
        poses_of(poses.tobytes(), (1, 3, 4))


def test_a_message_rounds_to_bytes():
    message = as_message(torch.tensor([[[-1.0, 0.5, 2.0]]]))
    assert message == {"channels": 1, "height": 1, "width": 3, "data": "AID/"}
