"""A listing as sets by split: decoded once into memory, once into a file on disk, or for each batch anew."""

from __future__ import annotations

import hashlib
import json
import os
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

from capsroute.data.data_files import data_root
from capsroute.data.errors import DataError, DataWarning
from capsroute.data.images.arrays import as_tensor
from capsroute.data.images.listing import PARTS, Listing
from capsroute.data.images.streamed import StreamedSet, default_workers
from capsroute.data.sets import ImageSet
from capsroute.files import write_atomically

MEMORY_LIMIT = 2**32  # bytes of decoded images that are kept in memory
STORES = ("auto", "memory", "disk", "stream")
AHEAD = 64  # pictures that are decoded before they are asked for
ROOM = 1.1  # times what a file takes must be free on a disk


@dataclass(frozen=True)
class Storing:
    """How images are kept while a run uses them: arguments of `cr.data.from_path`, which says what they mean."""

    store: str = "auto"
    memory_limit: int = MEMORY_LIMIT
    workers: int | None = None
    strict: bool = False
    root: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.store not in STORES:
            raise ValueError(f"store: expected one of {', '.join(STORES)}, got {self.store!r}")

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
