import io

import numpy as np
import pytest
from PIL import Image

from capsroute.data import DataError
from capsroute.data.png import decode_picture, decode_png
from tests.data import writers

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def test_lossless():
    assert np.array_equal(decode_png(writers.png(PIXELS), "picture"), PIXELS)


def test_a_jpeg_is_not_a_png():
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, format="JPEG")
    with pytest.raises(DataError, match="PNG signature"):
        decode_png(stream.getvalue(), "picture")
    assert decode_picture(stream.getvalue(), "picture", "L").shape == (6, 9)


def test_a_png_that_lost_its_last_chunk():
    with pytest.raises(DataError, match="end with IEND"):
        decode_png(writers.png(PIXELS)[:-12], "picture")


def test_text_is_not_a_picture():
    with pytest.raises(DataError, match=r"cat.png: expected a picture file"):
        decode_picture(b"hello", "cat.png")


def test_every_flipped_bit_is_noticed():
    content = writers.png(PIXELS)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(DataError, match="picture"):
            decode_png(bytes(damaged), "picture")
