"""smallNORB (LeCun, Huang & Bottou 2004): stereo photographs of toys from many sides, in binary matrix files."""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data.data_files import DataFile, read_file
from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.errors import DataError
from capsroute.data.sets import ImageSet, cut_instance
from capsroute.data.sources import Download, PublicAddress

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


ADDRESS = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
TOYS = ("animal", "human", "plane", "truck", "car")
TRAIN, TEST = "smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing"
FILES = tuple(
    DataFile(f"{part}-{kind}.mat", size, f"md5:{checksum}")
    for part, kind, size, checksum in (
        (TRAIN, "dat", 447_897_624, "8138a0902307b32dfa0025a36dfa45ec"),
        (TRAIN, "cat", 97_220, "fd5120d3f770ad57ebe620eb61a0b633"),
        (TRAIN, "info", 388_820, "19faee774120001fc7e17980d6960451"),
        (TEST, "dat", 447_897_624, "e9920b7f7b2869a8f1a12e945b2c166c"),
        (TEST, "cat", 97_220, "fd5120d3f770ad57ebe620eb61a0b633"),
        (TEST, "info", 388_820, "7c5b871cc69dcadec1bf6a18141f5edc"),
    )
)
RANGES = {"instance": 10, "elevation": 9, "azimuth": 36, "lighting": 6}  # azimuth: even, tens of degrees


def _read(info: DatasetInfo, folder: Path, split: str, size: int | None = None) -> ImageSet:
    dat, cat, facts = info.files[3:] if split == "test" else info.files[:3]
    images = decode_norb(read_file(folder, dat), dat.name, dims=4)  # [n, 2, h, w]
    labels = decode_norb(read_file(folder, cat), cat.name, dims=1)
    columns = decode_norb(read_file(folder, facts), facts.name, dims=2)  # [n, 4]
    if not len(images) == len(labels) == len(columns) or columns.shape[1] != len(RANGES):
        shapes = [list(values.shape) for values in (images, labels, columns)]
        raise DataError(f"{dat.name}: expected as many images, categories and rows of four facts, found {shapes}")
    metadata = {"category": labels} | dict(zip(RANGES, columns.unbind(1), strict=True))
    for key, count in ({"category": len(TOYS)} | RANGES).items():
        if int(metadata[key].min()) < 0 or int(metadata[key].max()) >= count:
            found = f"{metadata[key].min()} to {metadata[key].max()}"
            raise DataError(f"{facts.name}: expected {key} of 0 to {count - 1}, found {found}")
    images = images if size is None else resized(images, size)
    return cut_instance(ImageSet(images, labels, info.classes, info.name, split, metadata), split)


def resized(images: Tensor, size: int) -> Tensor:
    """Bytes [n,c,h,w] -> [n,c,size,size], smoothed before they are made smaller.

    >>> import torch
    >>> from capsroute.data.catalog.norb import resized
    >>> resized(torch.full((1, 2, 96, 96), 7, dtype=torch.uint8), 48).unique()
    tensor([7], dtype=torch.uint8)
    """
    if size < 1:
        raise ValueError(f"size: expected 1 or more pixels, got {size}")
    parts = [
        F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True).round().to(torch.uint8)
        for part in images.split(1000)
    ]
    return torch.cat(parts)


register(
    DatasetInfo(
        name="smallnorb",
        title="smallNORB: stereo photographs of toys from many sides",
        classes=TOYS,
        shape=(2, 96, 96),
        sizes={"train": 19_440, "validation": 4_860, "test": 24_300},
        licence="for research only, no commercial use (LeCun, Huang, Bottou)",
        origin="the smallNORB page of New York University",
        read=_read,
        files=FILES,
        sources=(PublicAddress(tuple(Download(f"{ADDRESS}/{file.name}.gz") for file in FILES)),),
    )
)
