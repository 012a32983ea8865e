"""The .amat text format of the MNIST variations (Larochelle et al. 2007): 784 pixels in [0, 1] and a label, a line."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from capsroute.data.errors import DataError

PIXELS = 28 * 28


def decode_amat(content: bytes, name: str, column_major: bool = False) -> tuple[Tensor, Tensor]:
    """Images uint8 `[n, 1, 28, 28]` and labels int64 `[n]`.

    `column_major` says that a line lists the picture column by column: bMNIST does, rMNIST does not.
    """
    if not content.endswith(b"\n"):
        raise DataError(f"{name}: expected the last line to be whole, found no line end after {content[-20:]!r}")
    try:
        rows = np.loadtxt(io.BytesIO(content), dtype=np.float32, ndmin=2, comments=None, encoding="ascii")
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name}: expected lines of numbers, found something else ({error})") from None
    if rows.shape[1] != PIXELS + 1 or not len(rows):
        raise DataError(f"{name}: expected {PIXELS + 1} numbers a line, found {rows.shape[1]}")
    pixels, labels = rows[:, :-1], rows[:, -1]
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise DataError(f"{name}: expected pixels of 0 to 1, found {pixels.min():g} to {pixels.max():g}")
    if not np.isin(labels, np.arange(10)).all():
        raise DataError(f"{name}: expected labels 0 to 9, found {labels.min():g} to {labels.max():g}")
    images = torch.from_numpy(np.rint(pixels * 255).astype(np.uint8)).view(-1, 1, 28, 28)
    return images.transpose(2, 3).contiguous() if column_major else images, torch.from_numpy(labels).long()
