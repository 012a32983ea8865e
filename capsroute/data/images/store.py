"""A listing decoded: every picture once, by several threads, bad ones left out and counted."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from capsroute.data.errors import DataError, DataWarning
from capsroute.data.images.listing import PARTS, Listing
from capsroute.data.sets import ImageSet

AHEAD = 64  # pictures that are decoded before they are asked for


def decode_rows(
    listing: Listing, rows: Sequence[int] | np.ndarray, size: tuple[int, int] | None, channels: int
) -> Iterator[tuple[int, np.ndarray | DataError]]:
    """Each row with its picture `[c, h, w]`, or with what is wrong with it; in order, whatever finishes first."""

    def decoded(row: int) -> np.ndarray | DataError:
        try:
            return listing.picture(row, size, channels)
        except DataError as error:
            return error

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        waiting: deque = deque()
        for row in rows:
            waiting.append((row, pool.submit(decoded, row)))
            if len(waiting) >= AHEAD:
                row, future = waiting.popleft()
                yield row, future.result()
        for row, future in waiting:
            yield row, future.result()


def decode_listing(
    listing: Listing, name: str, size: tuple[int, int], channels: int, strict: bool = False
) -> dict[str, ImageSet]:
    """The pictures of each split as an `ImageSet` in memory. A bad one is left out, or with `strict` raised."""
    skipped: list[DataError] = []
    sets = {}
    for part in PARTS:
        rows = listing.rows(part)
        if len(rows) == 0:
            continue
        images = torch.empty(len(rows), channels, *size, dtype=torch.uint8)
        kept: list[int] = []
        for row, picture in decode_rows(listing, rows, size, channels):
            if isinstance(picture, DataError):
                if strict:
                    raise picture
                skipped.append(picture)
                continue
            images[len(kept)] = torch.from_numpy(picture)
            kept.append(row)
        labels = torch.from_numpy(listing.labels[kept])
        sets[part] = ImageSet(images[: len(kept)], labels, listing.classes, name, part)
    _tell(skipped, len(listing))
    _check_classes(sets, listing)
    return sets


def _tell(skipped: list[DataError], total: int) -> None:
    if skipped:
        first = "; ".join(str(error) for error in skipped[:3])
        more = "; ..." if len(skipped) > 3 else ""
        warnings.warn(f"{len(skipped):,} of {total:,} pictures are left out: {first}{more}", DataWarning, stacklevel=3)


def _check_classes(sets: dict[str, ImageSet], listing: Listing) -> None:
    labels = sets["train"].labels if "train" in sets else torch.zeros(0, dtype=torch.int64)
    counts = torch.bincount(labels, minlength=len(listing.classes))
    if not counts.all():
        missing = listing.classes[int(counts.argmin())]
        raise DataError(f"{listing.root}: expected a picture of every class to train on, found none of {missing!r}")
