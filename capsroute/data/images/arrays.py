"""Images that are numbers already: arrays, .npz and .npy files, and any torch Dataset."""

from __future__ import annotations

import hashlib
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data.errors import DataError
from capsroute.data.images.listing import NAMES, UNSAID, Facts, Listing
from capsroute.data.images.pictures import check_file, fit_pixels, from_pillow
from capsroute.data.sets import ImageSet

DEFLATE = 1040  # how many times smaller zip's compression can make something
# What numpy raises for damaged files: RuntimeError includes its "too deep", MemoryError is for headers that lie.
DAMAGE = (
    *(ValueError, OSError, EOFError, AttributeError, TypeError, KeyError, SyntaxError, RuntimeError, MemoryError),
    *(OverflowError, tokenize.TokenError),
)
LARGEST_LABEL = 99_999  # more classes than that are a mistake, and would take memory for each


def from_arrays(
    images: str | os.PathLike[str] | np.ndarray | Tensor,
    labels: str | os.PathLike[str] | np.ndarray | Tensor | Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    *,
    name: str = "arrays",
    split: str = "train",
) -> ImageSet:
    """Arrays, or the .npy files that hold them, or one .npz file with `images` and `labels`.

    Args:
        images: `[n, h, w]`, `[n, c, h, w]`, or `[n, h, w, c]` with 1, 3 or 4 channels; bytes, or floats in [0, 1]
            (rounded to bytes). A .npy file of bytes `[n, c, h, w]` is memory-mapped, so it may exceed memory.
        labels: whole numbers `[n]` from 0, a list will do; None when `images` is an .npz file.
        classes: names of the labels; None for the numbers themselves.

    Example:
        >>> import numpy as np, capsroute as cr
        >>> cr.data.from_arrays(np.zeros((4, 10, 12)), np.array([0, 1, 2, 1])).images.shape
        torch.Size([4, 1, 10, 12])
    """
    source = str(images) if isinstance(images, str | os.PathLike) else "images"
    if isinstance(images, str | os.PathLike) and labels is None:
        found = _read_npz(Path(images))
        if not {"images", "labels"} <= found.keys():
            raise DataError(f"{images}: expected the arrays 'images' and 'labels', found {', '.join(found)}")
        images, labels = found["images"], found["labels"]
    if labels is None:
        raise ValueError("labels: expected an array or a .npy file, got None")
    pixels = _as_bytes(_array(images), source)
    numbers = _as_labels(_array(labels), len(pixels), classes, source)
    names = tuple(classes) if classes is not None else tuple(map(str, range(int(numbers.max()) + 1)))
    return ImageSet(pixels, numbers, names, name, split)


def from_dataset(
    dataset: Any, classes: Sequence[str] | None = None, *, name: str = "dataset", split: str = "train"
) -> ImageSet:
    """Any torch Dataset of `(image, label)`; an image is a PIL picture, or a tensor or array as of `from_arrays`.

    Example:
        >>> import torch, capsroute as cr
        >>> data = torch.utils.data.TensorDataset(torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 0, 1, 1]))
        >>> cr.data.from_dataset(data, classes=("cat", "dog")).images.shape
        torch.Size([5, 3, 8, 8])
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        kind = type(dataset).__name__
        raise TypeError(f"dataset: expected a Dataset with a length, of (image, label), got {kind}")
    if len(dataset) == 0:
        raise ValueError("dataset: expected at least one item, got none")
    images: list[np.ndarray] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        image, label = _pair(dataset[index], index)
        if images and image.shape != images[0].shape:
            raise ValueError(f"dataset: expected images of {images[0].shape} as item 0, got {image.shape} at {index}")
        images.append(image)
        labels.append(label)
    return from_arrays(np.stack(images), np.array(labels), classes, name=name, split=split)


def _pair(item: Any, index: int) -> tuple[np.ndarray, int]:
    """An image and its label, of what a Dataset gave at `index`."""
    if not (isinstance(item, tuple | list) and len(item) == 2):
        found = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise TypeError(f"dataset: expected items (image, label), got {found} at {index}")
    image, label = item
    try:
        number = int(label)
        whole = float(label) == number
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's, for several numbers
        whole = False
    if not whole:
        raise ValueError(f"dataset: expected a whole number as label, got {label!r} at {index}")
    return np.asarray(image), number


def _array(values: str | os.PathLike[str] | np.ndarray | Tensor | Sequence[int]) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.cpu().numpy()
    if not isinstance(values, str | os.PathLike):
        return np.asarray(values)
    check_file(Path(values))
    try:
        loaded = np.load(values, mmap_mode="r", allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"{values}: expected a whole .npy file of numbers, found something else ({error})") from None
    if not isinstance(loaded, np.ndarray):
        raise DataError(f"{values}: expected a .npy file, found an .npz archive")
    return loaded


def list_arrays(path: str | os.PathLike[str]) -> ArrayListing:
    """An .npz file of `images` and `labels`, or of `train_images`, `train_labels`, `test_images` and so on.

    It may hold `classes`, their names, too.
    """
    found = _read_npz(Path(path))
    names = {name.removesuffix("images"): name for name in found if name.endswith("images")}
    said = {start: NAMES.get(start.rstrip("_"), UNSAID) for start in names}
    whole = names.keys() == {""} or UNSAID not in said.values()
    if not names or not whole or any(f"{start}labels" not in found for start in names):
        expected = "'images' and 'labels', or 'train_images', 'train_labels', 'test_images', ..."
        raise DataError(f"{path}: expected the arrays {expected}, found {', '.join(found) or 'none'}")
    classes = None
    if "classes" in found:
        classes = tuple(map(str, found["classes"].tolist()))
    pixels = [_as_bytes(found[name], f"{path}, {name}") for name in names.values()]
    if len({part.shape[1:] for part in pixels}) > 1:
        raise DataError(f"{path}: expected images of one size, found {[list(part.shape[1:]) for part in pixels]}")
    given = {start: found[f"{start}labels"] for start in names}
    columns = [labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels for labels in given.values()]
    labels = [_as_labels(column, len(part), classes, str(path)) for column, part in zip(columns, pixels, strict=True)]
    numbers = torch.cat(labels).numpy()
    parts = np.concatenate([np.full(len(part), said[start], np.int8) for start, part in zip(names, pixels)])
    if classes is None:
        classes = tuple(map(str, range(int(numbers.max()) + 1)))
    rows = [str(row) for row in range(len(numbers))]
    return ArrayListing(Path(path), rows, numbers, classes, parts, torch.cat(pixels) if len(pixels) > 1 else pixels[0])


@dataclass(frozen=True, eq=False)
class ArrayListing(Listing):
    """Images that are in memory already; `pixels` is uint8 `[n, c, h, w]`, a file's name is a row's number."""

    pixels: Tensor

    def fingerprint(self) -> str:
        return hashlib.sha256(self.pixels.numpy().tobytes()).hexdigest()

    def facts(self) -> Facts:
        _, channels, height, width = self.pixels.shape
        return Facts(channels, height, width, mixed=False)

    def picture(self, row: int, size: tuple[int, int] | None, channels: int) -> np.ndarray:
        found = self.pixels[row].numpy()
        if {len(found), channels} == {1, 3}:  # grey as colour and colour as grey, as files are read
            from PIL import Image

            picture = Image.fromarray(found[0] if len(found) == 1 else found.transpose(1, 2, 0))
            return from_pillow(picture, str(self.root), size, channels)
        if len(found) != channels:
            raise DataError(f"{self.root}: expected images of {channels} channels, found {len(found)}")
        return found if size in (None, found.shape[1:]) else fit_pixels(found, size)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of the file, none larger than what the file can hold."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_promise(archive, member)
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (*DAMAGE, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise DataError(f"{path}: expected a whole .npz file of numbers, found something else ({error})") from None


def _check_promise(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError where an array's header promises more bytes than the archive holds for it."""
    if member.file_size > DEFLATE * member.compress_size + 1024:
        raise ValueError(f"{member.filename}: {member.compress_size} bytes cannot hold {member.file_size}")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        promised, held = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    if min(shape, default=0) < 0 or promised != held:
        raise ValueError(f"{member.filename}: the shape {shape} takes {promised} bytes, {held} are there")


def _as_bytes(images: np.ndarray, source: str) -> Tensor:
    """uint8 `[n, c, h, w]` from any of the layouts that `from_arrays` takes."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or 0 in images.shape:
        raise DataError(f"{source}: expected [n, h, w], [n, c, h, w] or [n, h, w, c], found {images.shape}")
    if images.shape[3] in (1, 3, 4) and images.shape[1] > 4:
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if images.dtype != np.uint8:
        if images.dtype.kind != "f" or not ((images >= 0) & (images <= 1)).all():
            raise DataError(f"{source}: expected bytes, or floats in [0, 1], found {images.dtype} outside of that")
        images = np.rint(images * 255).astype(np.uint8)
    return as_tensor(images)


def as_tensor(pixels: np.ndarray) -> Tensor:
    """The same memory as a tensor, also where it must not be written to: nobody writes to an ImageSet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(pixels)


def _as_labels(labels: np.ndarray, count: int, classes: Sequence[str] | None, source: str) -> Tensor:
    if labels.shape != (count,) or labels.dtype.kind not in "ui":
        raise DataError(f"{source}: expected {count} whole numbers as labels, found {labels.dtype} {labels.shape}")
    highest = len(classes) - 1 if classes is not None else min(max(int(labels.max()), 0), LARGEST_LABEL)
    if int(labels.min()) < 0 or int(labels.max()) > highest:
        raise DataError(f"{source}: expected labels 0 to {highest}, found {labels.min()} to {labels.max()}")
    return torch.from_numpy(labels.astype(np.int64))
