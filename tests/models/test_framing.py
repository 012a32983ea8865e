"""Images of any size and polarity as a network wants them."""

import pytest
import torch

from capsroute.models.framing import frame, with_polarity
from capsroute.models.preprocessing import Preprocessing

MNIST = Preprocessing(resize="centre", polarity="light_on_dark")


def paper(ground=1.0, ink=0.0, size=(60, 40)):
    """A vertical stroke, off the middle."""
    image = torch.full((1, *size), ground)
    image[:, 5:35, 4:8] = ink
    return image


def test_an_image_that_fits_is_not_touched():
    image = torch.zeros(1, 28, 28)
    image[:, 2:9, 3:5] = 0.7
    assert frame(image, (1, 28, 28), MNIST) is image


@pytest.mark.parametrize(("ground", "ink"), [(1.0, 0.0), (0.0, 1.0), (0.85, 0.2), (0.2, 0.9)])
def test_a_drawing_is_light_on_black_in_the_middle_whatever_the_paper(ground, ink):
    framed = frame(paper(ground, ink), (1, 28, 28), MNIST)
    drawn = (framed[0] > 0.5).nonzero()
    assert framed[0, 0].max() == 0
    assert abs(drawn.double().mean(0) - 13.5).max() <= 1
    assert drawn[:, 0].max() - drawn[:, 0].min() + 1 == 20


def test_colour_is_made_grey_and_grey_is_made_colour():
    assert frame(paper().expand(3, -1, -1), (1, 28, 28), MNIST).shape == (1, 28, 28)
    assert frame(paper(), (3, 16, 24), Preprocessing()).shape == (3, 16, 24)


def test_a_crop_sees_the_middle_of_what_covers_it():
    image = torch.zeros(3, 32, 32)
    image[:, 4:28, 4:28] = 1
    assert frame(image, (3, 24, 24), Preprocessing(crop=0.75)).min() == 1
    assert frame(image, (3, 32, 32), Preprocessing()).min() == 0


def test_polarity_goes_by_the_outermost_pixels():
    dark = torch.zeros(1, 8, 8)
    assert with_polarity(dark, "light_on_dark") is dark
    assert with_polarity(dark, "either") is dark
    assert torch.equal(with_polarity(dark, "dark_on_light"), 1 - dark)


def test_an_empty_sheet_is_black():
    assert frame(torch.ones(1, 50, 50), (1, 28, 28), MNIST).max() == 0
