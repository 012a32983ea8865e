import numpy as np
import pytest

from capsroute.data import DataError
from capsroute.data.formats.amat import decode_amat
from tests.data import writers

GREYS = np.random.default_rng(0).integers(0, 256, (3, 784))
LABELS = np.array([7, 0, 9])


def test_row_by_row():
    images, labels = decode_amat(writers.amat(GREYS / 255, LABELS), "train.amat")
    assert np.array_equal(images.numpy(), GREYS.reshape(3, 1, 28, 28))
    assert labels.tolist() == LABELS.tolist()


def test_column_by_column():
    images, _ = decode_amat(writers.amat(GREYS / 255, LABELS), "train.amat", column_major=True)
    assert np.array_equal(images.numpy(), GREYS.reshape(3, 1, 28, 28).transpose(0, 1, 3, 2))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (writers.amat(GREYS / 255, LABELS + 1), "labels 0 to 9, found 1 to 10"),
        (writers.amat(GREYS / 255, LABELS + 0.5), "labels 0 to 9"),
        (writers.amat(GREYS / 128, LABELS), "pixels of 0 to 1"),
        (writers.amat(np.full((1, 784), np.nan), LABELS[:1]), "pixels of 0 to 1"),
        (writers.amat(GREYS[:, 1:] / 255, LABELS), "785 numbers a line, found 784"),
        (writers.amat(GREYS / 255, LABELS)[:-3], "last line to be whole"),
        (writers.amat(GREYS / 255, LABELS) + b"0.5 0.5\n", "something else"),
        (b"zero one two\n", "something else"),
        (b"", "last line to be whole"),
    ],
)
def test_damage_is_named(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_amat(content, "train.amat")
    assert "train.amat" in str(caught.value)
