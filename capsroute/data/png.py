"""Decoding picture files with Pillow, after checking what Pillow does not: that a PNG is whole to its last chunk."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np

from capsroute.data.errors import DataError

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decode_png(content: bytes, name: str) -> np.ndarray:
    """A PNG as a uint8 array `[h, w]` or `[h, w, c]`."""
    check_png(content, name)
    return decode_picture(content, name)


def decode_picture(content: bytes, name: str, mode: str | None = None) -> np.ndarray:
    """Any picture file that Pillow reads, as a uint8 array; `mode` "L" or "RGB" converts it."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            return np.array(picture.convert(mode) if mode else picture, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: expected a picture file, found one that cannot be decoded ({error})") from None


def check_png(content: bytes, name: str) -> None:
    """Walk the chunks of a PNG and verify the checksum of each."""
    if not content.startswith(SIGNATURE):
        raise DataError(f"{name}: expected the PNG signature, found {content[:8]!r}")
    at, kind = len(SIGNATURE), b""
    while at < len(content):
        if len(content) < at + 12:
            raise DataError(f"{name}: expected a PNG chunk at byte {at}, found the end of the file")
        length, kind = struct.unpack_from(">I4s", content, at)
        if len(content) < at + 12 + length:
            raise DataError(f"{name}: expected {length} bytes of chunk {kind!r} at byte {at}, found a truncated file")
        (expected,) = struct.unpack_from(">I", content, at + 8 + length)
        found = zlib.crc32(memoryview(content)[at + 4 : at + 8 + length])
        if found != expected:
            raise DataError(f"{name}: expected checksum {expected:08x} of chunk {kind!r}, found {found:08x}")
        at += 12 + length
    if kind != b"IEND":
        raise DataError(f"{name}: expected the PNG to end with IEND, found {kind!r}")
