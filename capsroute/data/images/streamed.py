"""Images that stay in their files: decoded by worker processes while training, batch by batch, in any order.

The loader is torchdata's StatefulDataLoader, whose state goes into a checkpoint. Order and augmentation follow from
seed, epoch and step as they do in `Batches`, so the batches are the same as those of a set in memory, bit for bit.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data.batches import Batch, Batches
from capsroute.data.errors import DataError, DataWarning
from capsroute.data.images.listing import Listing
from capsroute.data.seeding import generator_at
from capsroute.data.sets import ImageSet
from capsroute.data.transfer import send
from capsroute.extras import named_extra

AHEAD = 2  # batches that each worker has ready


@dataclass(frozen=True, eq=False)
class StreamedSet:
    """What an `ImageSet` is, but for its pixels: those are decoded when a batch is made of them.

    Attributes:
        listing: the pictures and what they show.
        rows: int64 `[n]`, those of the listing that belong to this set.
        shape: channels, height and width that every picture is brought to.
        strict: whether a picture that cannot be read stops everything; else it is missing from its batch.
        workers: processes that decode; 0 for the one that asks.
    """

    listing: Listing = field(repr=False)
    rows: np.ndarray = field(repr=False)
    shape: tuple[int, int, int]
    name: str
    split: str
    strict: bool = False
    workers: int = 0
    metadata: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each label."""
        return self.listing.classes

    @property
    def labels(self) -> Tensor:
        """int64 `[n]`."""
        return torch.from_numpy(self.listing.labels[self.rows])

    @property
    def images(self) -> Tensor:
        """All that can be read, decoded now, uint8 `[n, c, h, w]`: meant for a subset that is to be looked at."""
        return self.in_memory().images

    def subset(self, indices: Tensor) -> StreamedSet:
        """The images at `indices` (int64 `[m]`, or bool `[n]`); still in their files."""
        return replace(self, rows=self.rows[torch.as_tensor(indices).numpy()])

    def in_memory(self) -> ImageSet:
        """The same as an `ImageSet`, without pictures that cannot be read."""
        images, bad = decode(self, np.arange(len(self)))
        good = torch.ones(len(self), dtype=torch.bool)
        if bad:
            good[[position for position, _ in bad]] = False
            warnings.warn(
                f"{len(bad):,} of {len(self):,} pictures are left out: {bad[0][1]}", DataWarning, stacklevel=2
            )
        return ImageSet(images[good], self.labels[good], self.classes, self.name, self.split)

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"StreamedSet({self.name} {self.split}: {len(self):,} of {sizes}, {len(self.classes)} classes)"


def decode(images: StreamedSet, places: Sequence[int] | np.ndarray) -> tuple[Tensor, list[tuple[int, str]]]:
    """Pictures uint8 `[m, c, h, w]`, and for each that cannot be read its position among them and what is wrong."""
    channels, *size = images.shape
    found = torch.zeros(len(places), *images.shape, dtype=torch.uint8)
    bad = []
    for position, row in enumerate(images.rows[np.asarray(places, dtype=np.int64)]):
        try:
            picture = images.listing.picture(int(row), (size[0], size[1]), channels)
            found[position] = torch.from_numpy(np.array(picture))
        except DataError as error:
            if images.strict:
                raise
            bad.append((position, str(error)))
    return found, bad


class _Decoder:
    """What a worker of the loader asks for a batch: a Dataset of whole batches."""

    def __init__(self, images: StreamedSet):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, places: list[int]) -> tuple[Tensor, list[tuple[int, str]]]:
        return decode(self.images, places)


def _as_it_is(batch: Any) -> Any:
    return batch


class StreamedBatches(Batches):
    """Batches of a `StreamedSet`; arguments and batches are those of `Batches`.

    A picture that cannot be read is missing from its batch. Each process decodes its own share of a batch only,
    unless the augmentation mixes images.
    """

    def __init__(
        self, images: StreamedSet, batch_size: int, *, device: torch.device | str | None = None, **options: Any
    ):
        # All that needs no pixels is as for a set in memory: one that has this set's length and takes no room.
        like = torch.zeros(1, dtype=torch.uint8).expand(len(images), *images.shape)
        super().__init__(
            ImageSet(like, images.labels, images.classes, images.name, images.split),
            batch_size,
            device=device,
            resident=False,
            **options,
        )
        self.source = images
        self.skipped: dict[str, None] = {}  # what was wrong with pictures, each once
        self._loader: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "loader": self._loader, "workers": self.source.workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # The state of a loader fits the same number of workers; any other goes on from the position alone.
        self._loader = state.get("loader") if state.get("workers") == self.source.workers else None

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._loader = None
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        chunks = self._order().split(self.batch_size)[: len(self)]
        start = self.position if self._resumed else 0
        known = self._resumed and self._loader is not None
        wanted = [self._wanted(chunk)[0].tolist() for chunk in chunks]
        loader = self._make_loader(wanted if known else wanted[start:])
        if known:
            loader.load_state_dict(self._loader)
        self._resumed = False
        for step, (images, bad) in enumerate(loader, start):
            self.position, self._loader = step + 1, loader.state_dict()
            yield self._whole(chunks[step], images, bad, step)
        self.epoch, self.position, self._loader = self.epoch + 1, 0, None

    @named_extra
    def _make_loader(self, chunks: list[list[int]]) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        workers = self.source.workers
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata's own
            return StatefulDataLoader(
                _Decoder(self.source),  # type: ignore[arg-type]
                batch_sampler=chunks,
                num_workers=workers,
                collate_fn=_as_it_is,
                prefetch_factor=AHEAD if workers else None,
                # Its seed is not to be drawn from the numbers that the model draws from.
                generator=generator_at(self.seed, "workers", self.epoch),
            )

    def _wanted(self, chunk: Tensor) -> tuple[Tensor, int]:
        """The rows of a batch that this process decodes, and where in the batch they begin."""
        if self.world_size == 1 or getattr(self.augment, "soft_targets", False):
            return chunk, 0
        shares = chunk.tensor_split(self.world_size)
        return shares[self.rank], sum(len(share) for share in shares[: self.rank])

    def _whole(self, chunk: Tensor, images: Tensor, bad: list[tuple[int, str]], step: int) -> Batch:
        """The batch as `Batches` gives it. An augmentation draws numbers for all images of a batch: those that other
        processes decode are black here, and left out again."""
        rows, begin = self._wanted(chunk)
        images = send(images, self.device)
        good = torch.ones(len(chunk), dtype=torch.bool)
        for position, problem in bad:
            good[begin + position] = False
            self._tell(problem)
        if self.augment is None:
            good = good[begin : begin + len(rows)]
        elif len(rows) < len(chunk):
            whole = images.new_zeros(len(chunk), *images.shape[1:])
            whole[begin : begin + len(rows)] = images
            images, rows = whole, chunk
        made = self._finish(images, self.labels.index_select(0, rows.to(self.device)), [good], step)
        *batch, good = made
        return tuple(batch) if not bad else tuple(values[good.to(values.device)] for values in batch)

    def _tell(self, problem: str) -> None:
        if problem not in self.skipped:
            self.skipped[problem] = None
            warnings.warn(f"left out, {len(self.skipped):,} so far: {problem}", DataWarning, stacklevel=4)


def default_workers() -> int:
    """As many processes as there are cores that we may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
