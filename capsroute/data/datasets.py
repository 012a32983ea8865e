"""The table of data sets, and `load`: one entry makes a set known to Python, to the command line and to the tests. Sets
are fetched from their sources in order; everything is verified before anything is kept, and renamed into place."""

import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsroute.data.data_files import DataFile, data_root, find_folder, read_file, record_checksums, verify
from capsroute.data.errors import DataError, FetchError
from capsroute.data.sets import SPLITS
from capsroute.data.sources import Contents, Report, Source
from capsroute.extras import named_extra
from capsroute.files import write_atomically
from capsroute.naming import check_one_of

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
    check_one_of("name", name, _REGISTRY)
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
    check_one_of("split", split, SPLITS)
    known = list(inspect.signature(info.read).parameters)[3:]
    for option in options:
        if option not in known:
            raise ValueError(f"options: {info.name} understands {', '.join(known) or 'none'}, got {option!r}")
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


def fetch_files(info: DatasetInfo, root: str | os.PathLike[str] | None = None, report: Report | None = None) -> Path:
    """The folder with the files of `info`: found under `root`, or filled from the first source that delivers them."""
    folder = data_root(root)
    here = find_folder(folder, info.name, info.files)
    if here is not None:
        return here
    try:
        return _fetch(info, folder, report or (lambda text, done, total: None))
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"{info.name}: it cannot be kept in {folder} ({error.strerror or error}); set CAPSROUTE_DATA to a folder "
            "with room that can be written to"
        ) from None


def _fetch(info: DatasetInfo, folder: Path, report: Report) -> Path:
    tried = [f"your folder {folder / info.name}: " + ", ".join(file.name for file in info.files[:4]) + " not all there"]
    for source in info.sources:
        try:
            contents = _collect(source, info, folder, report)
        except (FetchError, DataError) as error:
            tried.append(f"{source.describe()}: {error}")
            continue
        for name, content in contents.items():
            write_atomically(folder / info.name / name, content)
        record_checksums(folder / info.name, contents)
        return folder / info.name
    raise FetchError(_advice(info, folder, tried))


def _collect(source: Source, info: DatasetInfo, folder: Path, report: Report) -> Contents:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{info.name}-", dir=folder))
    try:
        contents = source.collect(scratch, report)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    total, done = sum(len(content) for content in contents.values()), 0
    for file in info.files:
        if file.name not in contents:
            raise DataError(f"{source.describe()}: expected the file {file.name}, found {sorted(contents)}")
        verify(contents[file.name], file, Path(file.name))
        done += len(contents[file.name])
        report(f"verified {file.name}", done, total)
    return {file.name: contents[file.name] for file in info.files}


def _advice(info: DatasetInfo, folder: Path, tried: list[str]) -> str:
    wanted = ", ".join(file.name for file in info.files)
    return "\n".join(
        [
            f"{info.name}: no source delivered it. Tried:",
            *(f"  - {line}" for line in tried),
            f"By hand: get {wanted} (plain or .gz) from {info.origin},",
            f"put them into {folder / info.name}, or set CAPSROUTE_DATA to the folder that holds {info.name}/.",
        ]
    )
