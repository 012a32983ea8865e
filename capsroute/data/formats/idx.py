"""The idx format of MNIST and Fashion-MNIST: a magic number, big-endian dimensions, then unsigned bytes."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from capsroute.data.errors import DataError

UNSIGNED_BYTE = 0x08


def decode_idx(content: bytes, name: str, dims: int) -> Tensor:
    """A uint8 tensor of `dims` dimensions; `name` is what an error calls the file."""
    header = 4 + 4 * dims
    if len(content) < header:
        raise DataError(f"{name}: expected an idx header of {header} bytes, found {len(content)} bytes in all")
    magic = struct.unpack(">HBB", content[:4])
    if magic != (0, UNSIGNED_BYTE, dims):
        expected = f"0, {UNSIGNED_BYTE}, {dims}"
        raise DataError(f"{name}: expected the idx magic number {expected} (bytes, {dims} dimensions), found {magic}")
    shape = struct.unpack(f">{dims}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(f"{name}: expected {math.prod(shape)} bytes for {shape}, found {len(content) - header}")
    if 0 in shape:
        raise DataError(f"{name}: expected at least one entry, found the shape {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).reshape(shape)
