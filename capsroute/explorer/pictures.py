"""Images on their way in and out: what a browser sends, files from a disk, drawings made to look like MNIST."""

from __future__ import annotations

import base64
import binascii
import io
import math
import warnings
from typing import Any

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Refused", "as_message", "as_mnist", "from_file", "from_message", "to_shape"]

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
MOST_PIXELS = 16_000_000
LONGEST_SIDE = 512  # of what the page itself sends


class Refused(ValueError):
    """Something that was sent cannot be used; the message is for the person who sent it."""


def from_message(message: Any) -> Tensor:
    """An image [c,h,w] in [0,1] from `{"width": w, "height": h, "channels": c, "data": base64 of the bytes}`.

    >>> from capsroute.explorer.pictures import as_message, from_message
    >>> import torch
    >>> from_message(as_message(torch.ones(1, 2, 3))).shape
    torch.Size([1, 2, 3])
    """
    try:
        sizes = [message[key] for key in ("channels", "height", "width")]
        data = base64.b64decode(message["data"], validate=True)
    except (TypeError, KeyError, binascii.Error, ValueError):
        raise Refused("image: expected width, height, channels and data in base64") from None
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if not whole or sizes[0] not in (1, 2, 3) or not all(1 <= side <= LONGEST_SIDE for side in sizes[1:]):
        raise Refused(f"image: expected 1 to 3 channels and sides of 1 to {LONGEST_SIDE}, got {sizes}")
    if len(data) != math.prod(sizes):
        raise Refused(f"image: expected {math.prod(sizes)} bytes for {sizes}, got {len(data)}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(sizes).float() / 255


def as_message(image: Tensor) -> dict[str, Any]:
    """An image [c,h,w] in [0,1] as the page takes it; see `from_message`."""
    data = image.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8).contiguous().numpy().tobytes()
    channels, height, width = image.shape
    return {"channels": channels, "height": height, "width": width, "data": base64.b64encode(data).decode()}


def from_file(content: bytes) -> Tensor:
    """An image [1 or 3,h,w] in [0,1] from a PNG, JPEG, GIF, BMP or WebP file; `Refused` says what is wrong with it.

    >>> from capsroute.explorer.pictures import Refused, from_file
    >>> try:
    ...     from_file(b"no image")
    ... except Refused as error:
    ...     print(error)
    This is not an image file that can be read (PNG, JPEG, GIF, BMP, WEBP).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked below
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError):
        raise Refused(f"This is not an image file that can be read ({', '.join(FORMATS)}).") from None
    width, height = opened.size
    if width * height > MOST_PIXELS:
        raise Refused(f"This image has {width} x {height} pixels; at most {MOST_PIXELS // 1_000_000} million are read.")
    if opened.mode not in MODES:
        raise Refused(f"This image is stored as {opened.mode}; save it in grey or RGB with 8 bits, and try again.")
    try:
        upright = ImageOps.exif_transpose(opened)
        black = Image.new("RGBA", upright.size, "black")
        plain = Image.alpha_composite(black, upright.convert("RGBA")).convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError):
        raise Refused("This image file is damaged or cut off.") from None
    pixels = torch.frombuffer(bytearray(plain.tobytes()), dtype=torch.uint8).view(upright.height, upright.width, 3)
    image = pixels.movedim(2, 0).float() / 255
    return image[:1] if bool((image == image[:1]).all()) else image


def to_shape(image: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """An image [c,h,w] as a model wants it: grey or colour, the middle cut out, scaled without aliasing.

    >>> import torch
    >>> from capsroute.explorer.pictures import to_shape
    >>> to_shape(torch.rand(3, 40, 60), (1, 28, 28)).shape
    torch.Size([1, 28, 28])
    """
    channels, height, width = shape
    if image.shape[0] != channels:
        grey = image.mean(0, keepdim=True) if image.shape[0] != 3 else _luminance(image)
        image = grey.expand(channels, -1, -1)
    scale = min(image.shape[1] / height, image.shape[2] / width)
    cut = [max(1, round(side * scale)) for side in (height, width)]
    top, left = ((have - want) // 2 for have, want in zip(image.shape[1:], cut))
    return _resized(image[:, top : top + cut[0], left : left + cut[1]], (height, width))


def as_mnist(image: Tensor, size: int = 28) -> Tensor:
    """A drawing [1,h,w] as MNIST's makers would have it: in a box of 20 pixels, its centre of mass in the middle.

    >>> import torch
    >>> from capsroute.explorer.pictures import as_mnist
    >>> drawing = torch.zeros(1, 100, 100)
    >>> drawing[:, :30, :10] = 1
    >>> as_mnist(drawing).nonzero()[:, 1].min().item()
    4
    """
    ink = image[0] > 0.05
    if not ink.any():
        return torch.zeros(1, size, size)
    rows, columns = ink.any(1).nonzero(), ink.any(0).nonzero()
    digit = image[:, int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
    box = round(size * 20 / 28)
    scale = box / max(digit.shape[1:])
    sides = [max(1, round(side * scale)) for side in digit.shape[1:]]
    digit = _resized(digit, (sides[0], sides[1]))
    # As much black around it as its centre of mass needs to come to lie in the middle.
    mass = digit[0] / digit.sum()
    corner = []
    for axis, side in enumerate(sides):
        centre = float((mass.sum(1 - axis) * torch.arange(side)).sum()) + 0.5
        corner.append(min(max(round(size / 2 - centre), 0), size - side))
    top, left = corner
    return F.pad(digit, (left, size - left - sides[1], top, size - top - sides[0]))


def _luminance(image: Tensor) -> Tensor:
    return (image * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)


def _resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
