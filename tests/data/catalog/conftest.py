"""Digits that can be told apart: a 12x10 block whose grey is the number of the digit, not in the middle."""

import pytest
import torch

from capsroute.data import ImageSet

TOP, LEFT, HEIGHT, WIDTH = 9, 10, 12, 10


@pytest.fixture
def digits():
    count = 100
    images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    greys = torch.arange(1, count + 1, dtype=torch.uint8).view(-1, 1, 1, 1)
    images[:, :, TOP : TOP + HEIGHT, LEFT : LEFT + WIDTH] = greys
    return ImageSet(images, torch.arange(count) % 10, tuple("0123456789"), "mnist", "train")


def corners(images):
    """Rows and columns of the first and last pixel with ink of each of `images` `[b, h, w]`: `[b, 4]`."""
    found = []
    for image in images:
        rows, columns = image.any(dim=1).nonzero()[:, 0], image.any(dim=0).nonzero()[:, 0]
        found.append([int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])])
    return torch.tensor(found)
