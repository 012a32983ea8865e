"""A user's own images as an ImageSet: a folder of pictures per class, .npz or .npy arrays, or any torch Dataset."""

from __future__ import annotations

import os
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data.errors import DataError
from capsroute.data.formats.png import SIGNATURE, check_png, decode_picture
from capsroute.data.sets import ImageSet

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def from_folder(path: str | os.PathLike[str], mode: str = "RGB", split: str = "train") -> ImageSet:
    """Pictures of one size in one folder a class: `path/cat/1.png`, `path/dog/2.png`.

    Args:
        path: the folder of class folders; their sorted names are the classes.
        mode: "RGB", or "L" for one grey channel.
        split: what to call it.

    Example:
        >>> import tempfile, pathlib, capsroute as cr
        >>> from PIL import Image
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     Image.new("RGB", (8, 6)).save(folder / name / "1.png")
        >>> pets = cr.data.from_folder(folder)
        >>> pets.images.shape, pets.classes
        (torch.Size([2, 3, 6, 8]), ('cat', 'dog'))
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f"mode: expected 'RGB' or 'L', got {mode!r}")
    folder = Path(path)
    classes = sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    if not classes:
        raise DataError(f"{folder}: expected a folder with one folder a class, found none")
    images: list[np.ndarray] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = sorted(file for file in (folder / name).iterdir() if file.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(f"{folder / name}: expected at least one picture ({', '.join(SUFFIXES)}), found none")
        for file in files:
            images.append(_picture(file, mode, images[0].shape if images else None))
            labels.append(label)
    stacked = torch.from_numpy(np.stack(images))  # [n, h, w, c]
    return ImageSet(stacked.permute(0, 3, 1, 2).contiguous(), torch.tensor(labels), tuple(classes), folder.name, split)


def from_arrays(
    images: str | os.PathLike[str] | np.ndarray | Tensor,
    labels: str | os.PathLike[str] | np.ndarray | Tensor | None = None,
    classes: Sequence[str] | None = None,
    *,
    name: str = "arrays",
    split: str = "train",
) -> ImageSet:
    """Arrays, or the .npy files that hold them, or one .npz file with `images` and `labels`.

    Args:
        images: `[n, h, w]`, `[n, c, h, w]`, or `[n, h, w, c]` with 1, 3 or 4 channels; bytes, or floats in [0, 1]
            (rounded to bytes). A .npy file of bytes `[n, c, h, w]` is memory-mapped, so it may exceed memory.
        labels: whole numbers `[n]` from 0; None when `images` is an .npz file.
        classes: names of the labels; None for the numbers themselves.

    Example:
        >>> import numpy as np, capsroute as cr
        >>> cr.data.from_arrays(np.zeros((4, 10, 12)), np.array([0, 1, 2, 1])).images.shape
        torch.Size([4, 1, 10, 12])
    """
    source = str(images) if isinstance(images, str | os.PathLike) else "images"
    if isinstance(images, str | os.PathLike) and labels is None:
        images, labels = _read_npz(Path(images))
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
    if len(dataset) == 0:
        raise ValueError("dataset: expected at least one item, got none")
    images: list[np.ndarray] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        image, label = dataset[index]
        image = np.asarray(image)
        if images and image.shape != images[0].shape:
            raise ValueError(f"dataset: expected images of {images[0].shape} as item 0, got {image.shape} at {index}")
        images.append(image)
        labels.append(int(label))
    return from_arrays(np.stack(images), np.array(labels), classes, name=name, split=split)


def _picture(file: Path, mode: str, expected: tuple[int, ...] | None) -> np.ndarray:
    """One picture as `[h, w, c]`."""
    content = file.read_bytes()
    if content.startswith(SIGNATURE):
        check_png(content, str(file))
    pixels = decode_picture(content, str(file), mode)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if expected is not None and pixels.shape != expected:
        found, wanted = (f"{shape[1]}x{shape[0]} pixels" for shape in (pixels.shape, expected))
        raise DataError(f"{file}: expected {wanted} as the first picture, found {found}; images must have one size")
    return pixels


def _array(values: str | os.PathLike[str] | np.ndarray | Tensor) -> np.ndarray:
    if isinstance(values, Tensor):
        return values.cpu().numpy()
    if isinstance(values, np.ndarray):
        return values
    try:
        loaded = np.load(values, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{values}: expected a whole .npy file of numbers, found something else ({error})") from None
    if not isinstance(loaded, np.ndarray):
        raise DataError(f"{values}: expected a .npy file, found an .npz archive")
    return loaded


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["images"], archive["labels"]
    except KeyError:
        raise DataError(f"{path}: expected the arrays 'images' and 'labels', found others") from None
    except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: expected a whole .npz file of numbers, found something else ({error})") from None


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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to an ImageSet
        return torch.from_numpy(images)


def _as_labels(labels: np.ndarray, count: int, classes: Sequence[str] | None, source: str) -> Tensor:
    if labels.shape != (count,) or labels.dtype.kind not in "ui":
        raise DataError(f"{source}: expected {count} whole numbers as labels, found {labels.dtype} {labels.shape}")
    highest = (len(classes) if classes is not None else max(int(labels.max()) + 1, 1)) - 1
    if int(labels.min()) < 0 or int(labels.max()) > highest:
        raise DataError(f"{source}: expected labels 0 to {highest}, found {labels.min()} to {labels.max()}")
    return torch.from_numpy(labels.astype(np.int64))
