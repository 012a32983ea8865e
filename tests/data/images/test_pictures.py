"""Odd picture files: each a sensible result, or one line that names the file."""

import io
import os
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from capsroute.data import DataError
from capsroute.data.images.pictures import LARGEST_PICTURE, decode_picture, decode_png, inspect_picture, read_picture
from tests.data import writers
from tests.data.memory import little_memory

RED = (255, 0, 0)


def saved(picture, file, **options):
    picture.save(file, **options)
    return file


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    levels = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    file = saved(Image.fromarray(levels), tmp_path / "deep.png")
    assert read_picture(file).tolist() == [[[0, 1, 128, 255]]]
    file = saved(Image.fromarray(levels.astype(np.int32), mode="I"), tmp_path / "deep.tif")
    assert read_picture(file).tolist() == [[[0, 1, 128, 255]]]


def test_floats_are_grey_levels_from_0_to_1(tmp_path):
    file = saved(Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)), tmp_path / "float.tif")
    assert read_picture(file).tolist() == [[[0, 128, 255]]]
    file = saved(Image.fromarray(np.array([[0.0, 7.0]], dtype=np.float32)), tmp_path / "wild.tif")
    with pytest.raises(DataError, match=r"wild\.tif: expected grey levels of 0 to 1\.0, found 0\.0 to 7\.0"):
        read_picture(file)


def test_palette(tmp_path):
    file = saved(Image.new("RGB", (2, 2), RED).convert("P"), tmp_path / "palette.png")
    assert Image.open(file).mode == "P"
    assert read_picture(file)[:, 0, 0].tolist() == list(RED)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    clear = Image.new("RGBA", (1, 1), (0, 0, 0, 0))
    file = tmp_path / "clear.png"
    if mode == "P":
        palette = Image.new("P", (1, 1), 3)
        palette.putpalette([0, 0, 0] * 4)
        saved(palette, file, transparency=3)
    else:
        saved(clear.convert(mode), file)
    assert read_picture(file, channels=3)[:, 0, 0].tolist() == [255, 255, 255]


def test_cmyk(tmp_path):
    file = saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), tmp_path / "print.jpg", quality=100)
    red, green, blue = read_picture(file)[:, 4, 4].tolist()
    assert red > 250
    assert max(green, blue) < 5


def test_turned_as_exif_says(tmp_path):
    picture = Image.new("RGB", (40, 20), "white")
    picture.paste(RED, (0, 0, 20, 20))  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees clockwise: the left half comes on top
    file = saved(picture, tmp_path / "phone.jpg", exif=exif, quality=100)
    with file.open("rb") as stream:
        assert inspect_picture(stream, "phone.jpg") == (3, 40, 20)
    for size in (None, (40, 20), (20, 10)):
        found = read_picture(file, size)
        middle = found.shape[2] // 2
        assert found[1, 2, middle] < 60 < 200 < found[1, -3, middle]


def test_one_pixel_fills_any_size(tmp_path):
    file = saved(Image.new("RGB", (1, 1), RED), tmp_path / "dot.png")
    assert (read_picture(file, (5, 7)) == np.array(RED, np.uint8)[:, None, None]).all()


def huge_png(side):
    """A whole PNG of side x side white pixels, a few hundred kilobytes, without ever holding the pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer, row = zlib.compressobj(9), b"\0" + b"\xff" * (side // 8)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [8200, 20_000])
def test_a_picture_too_large_to_decode_is_refused_by_its_header(tmp_path, side):
    assert side**2 > LARGEST_PICTURE
    (tmp_path / "huge.png").write_bytes(huge_png(side))
    with little_memory(), pytest.raises(DataError, match=r"huge\.png: expected at most 67,108,864 pixels"):
        read_picture(tmp_path / "huge.png", (8, 8))


def test_a_large_jpeg_comes_smaller(tmp_path):
    file = saved(Image.new("L", (14_000, 14_000), 200), tmp_path / "wall.jpg")
    with little_memory():
        found = read_picture(file, (32, 32))
    assert found.shape == (1, 32, 32)
    assert (abs(found.astype(int) - 200) <= 1).all()


def test_scaled_to_cover_and_cut_in_the_middle(tmp_path):
    picture = Image.new("RGB", (30, 10), "white")
    picture.paste(RED, (10, 0, 20, 10))  # the middle third
    found = read_picture(saved(picture, tmp_path / "wide.png"), (10, 10))
    assert (found[1] == 0).all()


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\xff\xd8", b"\xff\xd8\xff\xe0 no jpeg", b"not a picture", b"BM"])
def test_files_that_are_no_pictures(tmp_path, content):
    (tmp_path / "bad.jpg").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.jpg: expected a picture"):
        read_picture(tmp_path / "bad.jpg")
    with pytest.raises(DataError, match=r"bad\.jpg: expected a picture"):
        inspect_picture(io.BytesIO(content), "bad.jpg")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::PIL.Image.DecompressionBombWarning")
def test_cut_and_flipped_bytes_never_raise_anything_else(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "gif", "bmp", "tif", "webp"):
        file = saved(Image.fromarray(pixels), tmp_path / f"picture.{suffix}")
        whole = bytearray(file.read_bytes())
        for _ in range(60):
            damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)])
            damaged[rng.integers(0, len(damaged))] ^= int(rng.integers(1, 256))
            file.write_bytes(damaged)
            with suppress(DataError):
                assert read_picture(file, (4, 4), 3).shape == (3, 4, 4)


def test_folder_pipe_and_nothing(tmp_path):
    (tmp_path / "x.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    for name, found in (("x.png", "a folder"), ("pipe.png", "something else"), ("none.png", "none")):
        with pytest.raises(DataError, match=f"{name}: expected a file, found {found}"):
            read_picture(tmp_path / name)


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def test_lossless():
    assert np.array_equal(decode_png(writers.png(PIXELS), "picture"), PIXELS)


def test_a_jpeg_is_not_a_png():
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, format="JPEG")
    with pytest.raises(DataError, match="PNG signature"):
        decode_png(stream.getvalue(), "picture")
    assert decode_picture(stream.getvalue(), "picture", channels=1).shape == (1, 6, 9)


def test_a_png_that_lost_its_last_chunk():
    with pytest.raises(DataError, match="end with IEND"):
        decode_png(writers.png(PIXELS)[:-12], "picture")


def test_text_is_not_a_picture():
    with pytest.raises(DataError, match=r"cat.png: expected a picture, found something that cannot be decoded"):
        decode_picture(b"hello", "cat.png")


def test_every_flipped_bit_is_noticed():
    content = writers.png(PIXELS)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(DataError, match="picture"):
            decode_png(bytes(damaged), "picture")
