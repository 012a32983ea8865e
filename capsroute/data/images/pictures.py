"""One picture file, whatever its mode, depth, rotation and size, as bytes `[c, h, w]` of the size that is wanted.

What is promised of odd files is in docs/data.md. The header is read before any pixel is: a picture too large to decode
is refused at once, and a JPEG is made smaller while it is decoded.
"""

import io
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from capsroute.data.errors import DataError
from capsroute.extras import named_extra

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LARGEST_PICTURE = 2**26  # pixels that are decoded at most; RGB of that size is 192 MiB
LARGEST_FILE = 2**29  # bytes
JPEG = b"\xff\xd8"
GREY = ("1", "L", "LA", "La", "I", "F")  # and all that begin with "I;16"
TRANSPARENT = ("RGBA", "LA", "PA", "RGBa", "La")
ORIENTATION = 0x0112  # of EXIF
SIDEWAYS = (5, 6, 7, 8)  # orientations that exchange width and height


@named_extra
def read_picture(
    file: str | os.PathLike[str], size: tuple[int, int] | None = None, channels: int | None = None
) -> np.ndarray:
    """The picture in `file` as uint8 `[c, h, w]`; a DataError that names the file where it is none.

    Args:
        file: any format that Pillow reads. Of a moving picture the first frame is taken.
        size: `(height, width)`: scaled to cover it, the rest cut off evenly at both ends; None for its own size.
        channels: 1 (grey) or 3 (colour); None for what the file has.

    Example:
        >>> import tempfile, pathlib
        >>> from PIL import Image
        >>> from capsroute.data.images.pictures import read_picture
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "red.png"
        >>> Image.new("RGB", (30, 20), "red").save(file)
        >>> read_picture(file, size=(8, 8))[:, 0, 0].tolist()
        [255, 0, 0]
    """
    return decode_picture(read_bytes(Path(file)), str(file), size, channels)


def read_bytes(file: Path) -> bytes:
    """The content of a file that is one: reading a pipe would wait for ever."""
    size = check_file(file)
    if size > LARGEST_FILE:
        raise DataError(f"{file}: expected a file of at most {LARGEST_FILE:,} bytes, found {size:,}")
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: expected a file that can be read, found none ({error.strerror})") from None


def check_file(file: Path) -> int:
    """The size of `file` in bytes; DataError where it is a folder, a pipe or not there."""
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: expected a file, found none ({error})") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "something else"
        raise DataError(f"{file}: expected a file, found {kind}")
    return status.st_size


def decode_picture(
    content: bytes, name: str, size: tuple[int, int] | None = None, channels: int | None = None
) -> np.ndarray:
    """What `read_picture` does, of the content of a file; `name` is what an error calls it."""
    if content.startswith(SIGNATURE):
        check_png(content, name)
    with _opened(io.BytesIO(content), name) as picture:
        if size is not None and picture.format == "JPEG":
            height, width = reversed(size) if _sideways(picture) else size
            picture.draft(None, (width, height))
        if picture.width * picture.height > LARGEST_PICTURE:
            found = f"{picture.width:,} x {picture.height:,}"
            raise DataError(f"{name}: expected at most {LARGEST_PICTURE:,} pixels, found {found}; make it smaller")
        return _pixels(_upright(picture, name, channels), size)


def from_pillow(
    picture: Any, name: str = "image", size: tuple[int, int] | None = None, channels: int | None = None
) -> np.ndarray:
    """What `read_picture` does, of a picture that Pillow holds already."""
    return _pixels(_upright(picture, name, channels), size)


def inspect_picture(stream: BinaryIO, name: str) -> tuple[int, int, int]:
    """Channels (1 or 3), height and width of a picture as it would be decoded, from its header alone."""
    with _opened(stream, name) as picture:
        height, width = reversed(picture.size) if not _sideways(picture) else picture.size
        return 1 if _is_grey(picture.mode) else 3, height, width


@contextmanager
def _opened(stream: BinaryIO, name: str) -> Iterator[Any]:
    """A Pillow image; whatever goes wrong with it is a DataError."""
    from PIL import Image, JpegImagePlugin, UnidentifiedImageError

    try:
        is_jpeg = stream.read(2) == JPEG
        stream.seek(0)
        # Pillow refuses a large picture before a JPEG could be told to come smaller: that one is opened past it.
        with JpegImagePlugin.JpegImageFile(stream) if is_jpeg else Image.open(stream) as picture:
            yield picture
    except DataError:
        raise
    except (Image.DecompressionBombError, MemoryError, OverflowError) as error:
        raise DataError(f"{name}: expected at most {LARGEST_PICTURE:,} pixels, found more ({error})") from None
    except UnidentifiedImageError:  # which says nothing but where in memory the file was
        raise DataError(f"{name}: expected a picture, found something that cannot be decoded") from None
    # Pillow names no set of exceptions for damaged files; these are what its decoders raise.
    except (OSError, SyntaxError, ArithmeticError, LookupError, ValueError, TypeError, struct.error) as error:
        raise DataError(f"{name}: expected a picture, found something that cannot be decoded ({error})") from None


def _is_grey(mode: str) -> bool:
    return mode in GREY or mode.startswith("I;16")


def _sideways(picture: Any) -> bool:
    return picture.getexif().get(ORIENTATION) in SIDEWAYS


def _upright(picture: Any, name: str, channels: int | None) -> Any:
    """The picture in the mode L or RGB: turned as its EXIF says, 16 bits scaled to 8, transparency laid on white."""
    from PIL import Image, ImageOps

    wanted = "L" if (_is_grey(picture.mode) if channels is None else channels == 1) else "RGB"
    see_through = picture.mode in TRANSPARENT or "transparency" in picture.info
    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        picture = _scaled(np.asarray(picture).astype(np.int64), 65535, name)
    elif picture.mode == "F":
        picture = _scaled(np.asarray(picture), 1.0, name)
    elif see_through:
        over = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return picture if picture.mode == wanted else picture.convert(wanted)


def _scaled(values: np.ndarray, highest: float, name: str) -> Any:
    from PIL import Image

    if not ((values >= 0) & (values <= highest)).all():
        raise DataError(f"{name}: expected grey levels of 0 to {highest}, found {values.min()} to {values.max()}")
    return Image.fromarray(np.rint(values * (255 / highest)).astype(np.uint8))


def fit_pixels(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 `[c, h, w]` at `size`, scaled and cut as pictures are."""
    from PIL import Image

    channels = [_pixels(Image.fromarray(channel), size)[0] for channel in pixels]
    return np.stack(channels)


def _pixels(picture: Any, size: tuple[int, int] | None) -> np.ndarray:
    from PIL import Image, ImageOps

    if size is not None and picture.size != (size[1], size[0]):
        picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.array(picture, dtype=np.uint8)  # [h, w] or [h, w, c]
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


SIGNATURE = b"\x89PNG\r\n\x1a\n"
END = b"\0\0\0\0IEND\xaeB`\x82"  # a chunk of no bytes, with its checksum


def decode_png(content: bytes, name: str) -> np.ndarray:
    """A PNG as it is, a uint8 array `[h, w]` or `[h, w, c]`."""
    check_png(content, name)
    with _opened(io.BytesIO(content), name) as picture:
        return np.array(picture, dtype=np.uint8)


def check_png(content: bytes, name: str) -> None:
    """A PNG is whole: Pillow verifies the checksum of each chunk, and decodes one without an end without a word."""
    if not content.startswith(SIGNATURE):
        raise DataError(f"{name}: expected the PNG signature, found {content[:8]!r}")
    if not content.endswith(END):
        raise DataError(f"{name}: expected the PNG to end with IEND, found {content[-12:]!r}")
    with _opened(io.BytesIO(content), name) as picture:
        picture.verify()
