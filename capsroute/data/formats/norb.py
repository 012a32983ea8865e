"""The binary matrix format of smallNORB (LeCun, Huang & Bottou 2004): magic number, dimensions, then the values."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch
from torch import Tensor

from capsroute.data.errors import DataError

BYTE_MATRIX, INTEGER_MATRIX = 0x1E3D4C55, 0x1E3D4C54
DTYPES: dict[int, np.dtype] = {BYTE_MATRIX: np.dtype("u1"), INTEGER_MATRIX: np.dtype("<i4")}


def decode_norb(content: bytes, name: str, dims: int) -> Tensor:
    """A tensor of `dims` dimensions: uint8 from a byte matrix, int64 from an integer matrix."""
    header = 8 + 4 * max(dims, 3)  # a matrix of fewer than three dimensions still stores three sizes
    if len(content) < header:
        raise DataError(f"{name}: expected a header of {header} bytes, found {len(content)} bytes in all")
    magic, found_dims, *sizes = struct.unpack(f"<{header // 4}i", content[:header])
    if magic not in DTYPES:
        expected = f"{BYTE_MATRIX:#x} (bytes) or {INTEGER_MATRIX:#x} (integers)"
        raise DataError(f"{name}: expected the magic number {expected}, found {magic & 0xFFFFFFFF:#x}")
    if found_dims != dims or min(sizes) < 1 or any(size != 1 for size in sizes[dims:]):
        raise DataError(f"{name}: expected {dims} dimensions, found {found_dims} of sizes {sizes}")
    shape, dtype = sizes[:dims], DTYPES[magic]
    if len(content) - header != math.prod(shape) * dtype.itemsize:
        wanted = math.prod(shape) * dtype.itemsize
        raise DataError(f"{name}: expected {wanted} bytes of values for {shape}, found {len(content) - header}")
    values = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return torch.from_numpy(values.astype(np.uint8 if magic == BYTE_MATRIX else np.int64))
