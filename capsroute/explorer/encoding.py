"""Images on their way to the page and back. Drawings, photographs and files are made ready by the browser."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 16  # images, or poses, in one question


class Refused(ValueError):
    """Something that was sent cannot be used; the message is for the person who sent it."""


def as_message(image: Tensor) -> dict[str, Any]:
    """An image [c,h,w] in [0,1] as the page takes it: sizes, and its bytes in base64.

    >>> import torch
    >>> from capsroute.explorer.encoding import as_message
    >>> as_message(torch.ones(1, 1, 3))
    {'channels': 1, 'height': 1, 'width': 3, 'data': '////'}
    """
    data = image.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8).contiguous().numpy().tobytes()
    channels, height, width = image.shape
    return {"channels": channels, "height": height, "width": width, "data": base64.b64encode(data).decode()}


def images_of(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Images uint8 [n,c,h,w] from their bytes, one after the other.

    >>> from capsroute.explorer.encoding import images_of
    >>> images_of(bytes(2 * 784), (1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    _check_rows(len(content), shape[0] * shape[1] * shape[2])
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, *shape)


def poses_of(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Class capsules float32 [n,1,j,d] from their bytes, little-endian.

    >>> from capsroute.explorer.encoding import poses_of
    >>> poses_of(bytes(4 * 160), (1, 10, 16)).shape
    torch.Size([1, 1, 10, 16])
    """
    _check_rows(len(content), 4 * shape[0] * shape[1] * shape[2])
    poses = torch.frombuffer(bytearray(content), dtype=torch.float32).view(-1, *shape)
    if not bool((poses.abs() < 1e6).all()):  # NaN is no number below 1e6 either
        raise Refused("expected poses of finite numbers")
    return poses


def _check_rows(size: int, row: int) -> None:
    rows, rest = divmod(size, row)
    if rest or not 1 <= rows <= MOST_ROWS:
        raise Refused(f"expected 1 to {MOST_ROWS} times {row} bytes, got {size}")
