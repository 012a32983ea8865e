"""A path to a user's own images, whatever is there, as sets to train, validate and test on: decoded once into memory,
once into a file on disk, or for each batch anew."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data.data_files import data_root
from capsroute.data.errors import DataError, DataWarning
from capsroute.data.images.arrays import as_tensor, list_arrays
from capsroute.data.images.listing import PARTS, UNSAID, Listing, list_folder, list_table
from capsroute.data.images.shards import is_shards, list_shards
from capsroute.data.images.streamed import StreamedSet, default_workers
from capsroute.data.sets import ImageSet
from capsroute.extras import named_extra
from capsroute.files import write_atomically
from capsroute.naming import check_one_of

FORMS = "a folder of class folders, a .csv of path,label, an .npz of images and labels, or shards-{0000..0099}.tar"
MEMORY_LIMIT = 2**32  # bytes of decoded images that are kept in memory
STORES = ("auto", "memory", "disk", "stream")
AHEAD = 64  # pictures that are decoded before they are asked for
ROOM = 1.1  # times what a file takes must be free on a disk


@named_extra
def list_images(path: str | os.PathLike[str]) -> Listing:
    """What a path holds, nothing decoded yet: class folders, a table of path,label, an .npz file, or shards."""
    given = Path(path).expanduser()
    if is_shards(path):
        found: Listing = list_shards(path)
    elif given.is_dir():
        found = list_folder(given)
    elif given.suffix.lower() == ".csv":
        found = list_table(given)
    elif given.suffix.lower() == ".npz":
        found = list_arrays(given)
    else:
        raise DataError(f"{path}: expected {FORMS}; found {'something else' if given.exists() else 'nothing there'}")
    if len(found.classes) < 2:
        raise DataError(f"{path}: expected at least two classes, found only {', '.join(found.classes)}")
    return found


def looks_like_path(text: str) -> bool:
    """Whether a word of a command line is the path of images rather than the name of a data set."""
    return os.sep in text or Path(text).exists() or Path(text).suffix.lower() in (".csv", ".npz", ".tar")


def name_of(path: str | os.PathLike[str]) -> str:
    """What a set of the images at `path` is called: its last part, without an ending and the numbers of shards."""
    return re.sub(r"[-_.]*(\{.*\}|[*?]+|\[.*\])", "", Path(path).stem) or "images"


@named_extra
def from_path(
    path: str | os.PathLike[str],
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    *,
    seed: int = 0,
    validation: bool = True,
    strict: bool = False,
    store: str = "auto",
    memory_limit: int = MEMORY_LIMIT,
    workers: int | None = None,
    root: str | os.PathLike[str] | None = None,
) -> dict[str, ImageSet | StreamedSet]:
    """Your own images as sets by split: `train`, `validation` and `test`.

    Args:
        path: a folder of class folders, or of `train/`, `validation/` and `test/` with class folders; a .csv file of
            path,label or path,label,split; an .npz file of `images` and `labels`, or `train_images` and so on; shards
            that `capsroute data pack` or the WebDataset library wrote, as `shards-{0000..0099}.tar` or `shards-*.tar`.
        size: `(height, width)` that all are scaled to cover and cut to; None where they have one size already.
        channels: 1 or 3; None for 1 where all are grey, else 3.
        seed: splits that are not there are cut from `train` with it: a fifth for test, a tenth for validation.
        validation: False leaves all of `validation` in `train`.
        strict: raise at the first file that cannot be read, instead of leaving it out with a `DataWarning`.
        store: "memory"; "disk": resized once into a file that is then read from; "stream": decoded for each batch anew;
            "auto": memory where they fit into `memory_limit` bytes, else disk where that has room, else stream.
        workers: processes that decode a stream; None for one per core.
        root: the folder of data sets, in which that file is; None for the usual one.

    Example:
        >>> import tempfile, pathlib, capsroute as cr
        >>> from PIL import Image
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for number in range(20):
        ...     (folder / ("cat", "dog")[number % 2]).mkdir(exist_ok=True)
        ...     Image.new("RGB", (30 + number, 40)).save(folder / ("cat", "dog")[number % 2] / f"{number}.png")
        >>> pets = cr.data.from_path(folder, size=(32, 32))
        >>> {split: len(images) for split, images in pets.items()}, pets["train"].classes
        ({'train': 14, 'validation': 2, 'test': 4}, ('cat', 'dog'))
    """
    listing, _ = list_images(path).cut(seed, validation)
    return load_cut(listing, path, size, channels, Storing(store, memory_limit, workers, strict, root))


def load_cut(
    listing: Listing, path: str | os.PathLike[str], size: tuple[int, int] | None, channels: int | None, how: Storing
) -> dict[str, ImageSet | StreamedSet]:
    """What was listed at `path` and cut into splits, as sets; see `from_path`."""
    if size is None or channels is None:
        facts = listing.facts()
        if size is None and facts.mixed:
            raise DataError(f"{path}: expected images of one size, found several; give the size that all shall have")
        size, channels = size or (facts.height, facts.width), channels or facts.channels
    return load_listing(listing, name_of(path), size, channels, how)


@named_extra
def from_folder(
    path: str | os.PathLike[str], mode: str = "RGB", split: str = "train", *, size: tuple[int, int] | None = None
) -> ImageSet:
    """Pictures in one folder per class, `path/cat/1.png`, `path/dog/2.png`, as one set; any bad file is an error.

    Args:
        path: the folder of class folders; their sorted names are the classes.
        mode: "RGB", or "L" for one grey channel.
        split: what to call it.
        size: `(height, width)` that all are scaled to cover and cut to; None where they have one size already.

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
    listing = list_folder(path)
    if (listing.parts != UNSAID).any():
        raise DataError(f"{path}: expected one folder per class, found train/ and others; `from_path` reads splits")
    images: list[Tensor] = []
    for row, picture in decode_rows(listing, range(len(listing)), size, 3 if mode == "RGB" else 1):
        if isinstance(picture, DataError):
            raise picture
        if images and picture.shape != images[0].shape:
            found, wanted = (f"{shape[2]}x{shape[1]} pixels" for shape in (picture.shape, images[0].shape))
            name = listing.name(row)
            raise DataError(f"{name}: expected {wanted} as the first picture, found {found}; give a size for all")
        images.append(torch.from_numpy(picture))
    return ImageSet(torch.stack(images), torch.from_numpy(listing.labels), listing.classes, Path(path).name, split)


@dataclass(frozen=True)
class Storing:
    """How images are kept while a run uses them: arguments of `cr.data.from_path`, which says what they mean."""

    store: str = "auto"
    memory_limit: int = MEMORY_LIMIT
    workers: int | None = None
    strict: bool = False
    root: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_one_of("store", self.store, STORES)

    def choose(self, size: int) -> str:
        """Where `size` bytes go."""
        if self.store != "auto":
            return self.store
        if size <= self.memory_limit:
            return "memory"
        return "disk" if ROOM * size <= _free_bytes(_folder(self.root)) else "stream"


def load_listing(
    listing: Listing, name: str, size: tuple[int, int], channels: int, how: Storing
) -> dict[str, ImageSet | StreamedSet]:
    """The pictures of each split; a split without any is left out."""
    chosen = how.choose(len(listing) * channels * size[0] * size[1])
    rows = {part: listing.rows(part) for part in PARTS if len(listing.rows(part))}
    if chosen == "stream":
        workers = default_workers() if how.workers is None else how.workers
        shape = (channels, *size)
        return {part: StreamedSet(listing, some, shape, name, part, how.strict, workers) for part, some in rows.items()}
    order = np.concatenate(list(rows.values()))
    if chosen == "memory":
        pixels = np.empty((len(order), channels, *size), dtype=np.uint8)
        good, problems = _fill(pixels, listing, order, how.strict)
    else:
        pixels, good, problems = _on_disk(listing, order, size, channels, how)
    _tell(problems, len(listing))
    sets: dict[str, ImageSet | StreamedSet] = {}
    seen = begin = 0
    for part, some in rows.items():
        kept = some[good[seen : seen + len(some)]]
        images = as_tensor(pixels[begin : begin + len(kept)])
        sets[part] = ImageSet(images, torch.from_numpy(listing.labels[kept]), listing.classes, name, part)
        seen, begin = seen + len(some), begin + len(kept)
    _check_classes(sets["train"].labels if "train" in sets else torch.zeros(0, dtype=torch.int64), listing)
    return sets


def decode_rows(
    listing: Listing, rows: Sequence[int] | np.ndarray, size: tuple[int, int] | None, channels: int
) -> Iterator[tuple[int, np.ndarray | DataError]]:
    """Each row with its picture `[c, h, w]`, or with what is wrong with it; in order, whatever finishes first."""

    def decoded(row: int) -> np.ndarray | DataError:
        try:
            return listing.picture(row, size, channels)
        except DataError as error:
            return error

    with ThreadPoolExecutor(min(default_workers(), 8)) as pool:  # Pillow decodes outside of Python's lock
        waiting: deque = deque()
        for row in rows:
            waiting.append((row, pool.submit(decoded, row)))
            if len(waiting) >= AHEAD:
                row, future = waiting.popleft()
                yield row, future.result()
        for row, future in waiting:
            yield row, future.result()


def _fill(pixels: np.ndarray, listing: Listing, rows: np.ndarray, strict: bool) -> tuple[np.ndarray, list[str]]:
    """Decode `rows` into `pixels`, good ones one after the other; which are good, bool `[n]`, and what is wrong with
    the others."""
    good, problems = np.ones(len(rows), dtype=bool), []
    _, channels, height, width = pixels.shape
    for place, (_, picture) in enumerate(decode_rows(listing, rows, (height, width), channels)):
        if isinstance(picture, DataError):
            if strict:
                raise picture
            good[place] = False
            problems.append(str(picture))
        else:
            pixels[place - len(problems)] = picture
    return good, problems


def _on_disk(
    listing: Listing, rows: np.ndarray, size: tuple[int, int], channels: int, how: Storing
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """What `_fill` gives, from a file that is made the first time and mapped into memory."""
    folder = _folder(how.root)
    key = hashlib.sha256(repr((listing.fingerprint(), rows.tobytes(), size, channels)).encode()).hexdigest()[:32]
    data, notes = folder / f"{key}.npy", folder / f"{key}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f"{key}.lock"):
        if not notes.is_file():
            aside = folder / f"{key}.partial"
            pixels = np.lib.format.open_memmap(aside, "w+", np.uint8, (len(rows), channels, *size))
            good, problems = _fill(pixels, listing, rows, how.strict)
            pixels.flush()
            del pixels
            os.replace(aside, data)
            content = {"bad": np.flatnonzero(~good).tolist(), "problems": problems}
            write_atomically(notes, json.dumps(content).encode())  # last: the file counts from here on
    written: dict[str, Any] = json.loads(notes.read_text())
    if how.strict and written["problems"]:
        raise DataError(written["problems"][0])
    good = np.ones(len(rows), dtype=bool)
    good[written["bad"]] = False
    return np.load(data, mmap_mode="r"), good, written["problems"]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the others of a job wait, and find the work done. The system lets go of a dead one's."""
    try:
        import fcntl
    except ImportError:  # Windows: two would do the same work, and the last to rename wins
        yield
        return
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _folder(root: str | os.PathLike[str] | None) -> Path:
    return data_root(root) / "resized"


def _free_bytes(folder: Path) -> int:
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def _tell(problems: list[str], total: int) -> None:
    if problems:
        first = "; ".join(problems[:3]) + ("; ..." if len(problems) > 3 else "")
        warnings.warn(f"{len(problems):,} of {total:,} pictures are left out: {first}", DataWarning, stacklevel=4)


def _check_classes(labels: torch.Tensor, listing: Listing) -> None:
    counts = torch.bincount(labels, minlength=len(listing.classes))
    if not counts.all():
        missing = listing.classes[int(counts.argmin())]
        raise DataError(f"{listing.root}: expected a picture of every class to train on, found none of {missing!r}")
