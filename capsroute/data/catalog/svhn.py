"""SVHN (Netzer et al. 2011), cropped house numbers: two MATLAB files (version 5 to 7, with scipy, as affNIST's are)."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data.data_files import DataFile, read_file
from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.errors import DataError
from capsroute.data.sets import ImageSet, cut_split
from capsroute.data.sources import Download, PublicAddress

HEADER = 128  # bytes: a text, the version, and "IM" for little-endian


def decode_mat(content: bytes, name: str, variables: Sequence[str]) -> dict[str, Any]:
    """The `variables` of a MATLAB file, as scipy gives them."""
    from scipy.io import loadmat

    if len(content) <= HEADER or not content.startswith(b"MATLAB 5.0 MAT-file") or content[126:128] != b"IM":
        raise DataError(f"{name}: expected a little-endian MATLAB 5 file, found {content[:20]!r}")
    try:
        found = loadmat(io.BytesIO(content), variable_names=list(variables), squeeze_me=False)
    except Exception as error:  # scipy names no set of exceptions for damaged files: anything may come
        raise DataError(f"{name}: expected a MATLAB file, found a damaged one ({error})") from None
    for variable in variables:
        if variable not in found:
            raise DataError(f"{name}: expected the variable {variable!r}, found none of that name")
    return found


def decode_svhn(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """SVHN (cropped): images uint8 `[n, 3, 32, 32]`, labels int64 `[n]`; the file's label 10 is the digit 0."""
    found = decode_mat(content, name, ("X", "y"))
    images, labels = found["X"], found["y"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{name}: expected X of uint8 (32, 32, 3, n), found {images.dtype} {images.shape}")
    labels = _whole_numbers(labels, name, "y", images.shape[3], lowest=1, highest=10)
    return torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1))), labels % 10


def decode_affnist(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """affNIST: images uint8 `[n, 1, 40, 40]`, labels int64 `[n]`, from the struct `affNISTdata`."""
    struct_ = decode_mat(content, name, ("affNISTdata",))["affNISTdata"]
    fields = struct_.dtype.names or ()
    if struct_.shape != (1, 1) or not {"image", "label_int"} <= set(fields):
        raise DataError(f"{name}: expected one struct with image and label_int, found {struct_.shape} of {fields}")
    images, labels = struct_["image"][0, 0], struct_["label_int"][0, 0]
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[0] != 1600:
        raise DataError(f"{name}: expected image of uint8 (1600, n), found {images.dtype} {images.shape}")
    labels = _whole_numbers(labels, name, "label_int", images.shape[1], lowest=0, highest=9)
    return torch.from_numpy(np.ascontiguousarray(images.T)).view(-1, 1, 40, 40), labels


def _whole_numbers(values: np.ndarray, name: str, variable: str, count: int, lowest: int, highest: int) -> Tensor:
    if values.dtype.kind not in "uif" or values.size != count or count == 0:
        raise DataError(f"{name}: expected {count} numbers in {variable}, found {values.dtype} {values.shape}")
    numbers = values.reshape(-1).astype(np.float64)
    if not ((numbers >= lowest) & (numbers <= highest) & (numbers == np.floor(numbers))).all():
        raise DataError(
            f"{name}: expected {variable} of {lowest} to {highest}, found {numbers.min():g} to {numbers.max():g}"
        )
    return torch.from_numpy(numbers.astype(np.int64))


ADDRESS = "http://ufldl.stanford.edu/housenumbers"
FILES = (
    DataFile("train_32x32.mat", 182_040_794, "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
    DataFile("test_32x32.mat", 64_275_384, "md5:eb5a983be6a315427106f1b164d9cef3"),
)


def _read(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    file = info.files[1] if split == "test" else info.files[0]
    images, labels = decode_svhn(read_file(folder, file), file.name)
    return cut_split(ImageSet(images, labels, info.classes, info.name, split), split)


register(
    DatasetInfo(
        name="svhn",
        title="SVHN: digits of house numbers, cropped",
        classes=tuple("0123456789"),
        shape=(3, 32, 32),
        sizes={"train": 65_932, "validation": 7_325, "test": 26_032},
        licence="for non-commercial use only (Netzer et al.)",
        origin="the SVHN page of Stanford (format 2, cropped digits)",
        read=_read,
        files=FILES,
        sources=(PublicAddress(tuple(Download(f"{ADDRESS}/{file.name}", file.checksum) for file in FILES)),),
    )
)
