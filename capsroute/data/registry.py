"""The table of data sets, and `load`: one entry makes a set known to Python, to the command line and to the tests."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsroute.data.errors import DataError
from capsroute.data.fetch import fetch_files
from capsroute.data.files import DataFile, data_root, find_folder, read_file
from capsroute.data.sources import Report, Source
from capsroute.data.splits import SPLITS
from capsroute.extras import named_extra

# (entry, folder or the set it is generated from, split, **options) -> ImageSet or TextSet
Reader = Callable[..., Any]


@dataclass(frozen=True)
class DatasetInfo:
    """One data set: what it is, whose it is, which files it is made of, where they come from and how they are read.

    A set without files is built in (`needs` empty), or generated from the set that `needs` names.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    licence: str
    origin: str
    read: Reader = field(repr=False)
    files: tuple[DataFile, ...] = field(default=(), repr=False)
    sources: tuple[Source, ...] = field(default=(), repr=False)
    needs: str | None = None

    def is_here(self, root: str | os.PathLike[str] | None = None) -> bool:
        """Whether `load` can read it without fetching anything."""
        if self.needs:
            return dataset_info(self.needs).is_here(root)
        return find_folder(data_root(root), self.name, self.files) is not None


_REGISTRY: dict[str, DatasetInfo] = {}


def register(info: DatasetInfo) -> DatasetInfo:
    """Add a data set to the table that `load` and `capsroute data list` use."""
    if info.name in _REGISTRY:
        raise ValueError(f"name: the data set {info.name!r} is registered already")
    _REGISTRY[info.name] = info
    return info


def list_datasets() -> list[DatasetInfo]:
    """Every data set that `load` knows.

    Example:
        >>> import capsroute as cr
        >>> "mnist" in [info.name for info in cr.data.list_datasets()]
        True
    """
    return list(_REGISTRY.values())


def dataset_info(name: str) -> DatasetInfo:
    """The table's entry for `name`.

    Example:
        >>> import capsroute as cr
        >>> cr.data.dataset_info("digits").shape
        (1, 8, 8)
    """
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"name: expected one of {', '.join(_REGISTRY)}, got {name!r}{hint}")
    return _REGISTRY[name]


@named_extra
def fetch(name: str, root: str | os.PathLike[str] | None = None, report: Report | None = None) -> Path | None:
    """Make sure that `name` is on this machine, whole; the folder it is in, or None for a set that needs no file.

    `report(text, done, total)`, in bytes, is called while it works. Raises FetchError when no source delivers, and
    DataError when a file that is here already is damaged.

    Example:
        >>> import capsroute as cr
        >>> cr.data.fetch("digits") is None
        True
    """
    info = dataset_info(name)
    if info.needs:
        return fetch(info.needs, root, report)
    if not info.files:
        return None
    folder = fetch_files(info, root, report)
    for file in info.files:
        read_file(folder, file)
    return folder


@named_extra
def load(
    name: str,
    split: str = "train",
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    **options: Any,
) -> Any:
    """Load a data set: an `ImageSet` (a `TextSet` for sentences), fetched first when it is not here.

    Args:
        name: one of `list_datasets()`.
        split: `train`, `validation` (cut from the training data with a fixed seed), `test`, or `train+validation`.
        root: folder of data sets; None for `CAPSROUTE_DATA`, else the platform's cache folder.
        download: False to raise instead of fetching.
        options: what the data set itself understands, such as `count` and `seed` of a generated one (docs/data.md).

    Example:
        >>> import capsroute as cr
        >>> digits = cr.data.load("digits", split="test")
        >>> digits.images.shape, digits.images.dtype
        (torch.Size([359, 1, 8, 8]), torch.uint8)
    """
    info = dataset_info(name)
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    _check_options(info, options)
    if not download and not info.is_here(root):
        raise ValueError(f"download: {name} is not in {data_root(root)}, and download=False forbids fetching it")
    if info.needs:
        # The same split of the set it is made from, so that train and test share no picture.
        return info.read(info, load(info.needs, split, root), split, **options)
    folder = fetch_files(info, root) if info.files else None
    found = info.read(info, folder, split, **options)
    expected = sum(info.sizes[part] for part in split.split("+"))
    if not options and len(found) != expected:
        raise DataError(f"{folder}: expected {expected} entries in {name} {split}, found {len(found)}")
    return found


def _check_options(info: DatasetInfo, options: Mapping[str, Any]) -> None:
    known = list(inspect.signature(info.read).parameters)[3:]
    for option in options:
        if option not in known:
            raise ValueError(f"options: {info.name} understands {', '.join(known) or 'none'}, got {option!r}")
