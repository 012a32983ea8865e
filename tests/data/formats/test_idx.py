import numpy as np
import pytest

from capsroute.data import DataError
from capsroute.data.formats.idx import decode_idx
from tests.data import writers


def test_pixels_keep_their_places():
    array = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5)
    assert decode_idx(writers.idx(array), "images", dims=3).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\0\0", "header of 16 bytes, found 2"),
        (writers.idx(np.zeros((2, 3))), "3 dimensions"),
        (writers.idx(np.zeros((2, 3, 5)))[:-1], r"30 bytes for \(2, 3, 5\), found 29"),
        (writers.idx(np.zeros((2, 3, 5))) + b"\0", "found 31"),
        (writers.idx(np.zeros((0, 3, 5))), "at least one entry"),
        (b"\0\0\x09\x03" + writers.idx(np.zeros((2, 3, 5)))[4:], "magic number"),
    ],
)
def test_damage_is_named(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_idx(content, "train-images", dims=3)
    assert "train-images" in str(caught.value)
