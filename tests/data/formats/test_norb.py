import numpy as np
import pytest

from capsroute.data import DataError
from capsroute.data.formats.norb import decode_norb
from tests.data import writers


def test_byte_matrix_of_four_dimensions():
    array = np.arange(2 * 2 * 3 * 4, dtype=np.uint8).reshape(2, 2, 3, 4)
    assert decode_norb(writers.norb(array), "dat", dims=4).tolist() == array.tolist()


@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_integer_matrix_stores_three_sizes_even_with_fewer_dimensions(shape):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) - 3
    assert decode_norb(writers.norb(array), "info", dims=len(shape)).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x55\x4c", "header of 24 bytes"),
        (b"\0" * 100, "magic number"),
        (writers.norb(np.zeros((2, 3), np.uint8)) + b"\0" * 8, "expected 4 dimensions, found 2"),
        (writers.norb(np.zeros((2, 2, 3, 4), np.uint8))[:-1], "48 bytes of values .* found 47"),
        (writers.norb(np.zeros((2, 2, 3, 4), np.uint8)) + b"\0", "found 49"),
        (writers.norb(np.zeros((2, 0, 3, 4), np.uint8)), "sizes"),
    ],
)
def test_damage_is_named(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_norb(content, "training-dat.mat", dims=4)
    assert "training-dat.mat" in str(caught.value)
