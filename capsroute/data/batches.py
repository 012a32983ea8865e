"""Batches from a set that lives on the device as bytes: shuffled, augmented, sharded, resumable at any step.

The order depends on (seed, epoch) and the augmentation on (seed, epoch, step), so a position is all there is to save.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from capsroute.data.augment import Augmentation, as_float
from capsroute.data.seeding import generator_at, whole_seed
from capsroute.data.sets import ImageSet, multi_hot
from capsroute.data.transfer import fits_on, stream_rows
from capsroute.routing.checks import check_at_least, check_finite, check_positive

Batch = tuple[Tensor, ...]


class Epochs:
    """A source of batches of `size` examples per epoch that can go on from where it was.

    Its order follows from seed and epoch, so a position is all there is to save. A subclass gives the batches of this
    epoch from a step on in `_steps`. Arguments are those of `Batches`.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_at_least("batch_size", batch_size, 1)
        check_at_least("world_size", world_size, 1)
        check_at_least("rank", rank, 0)
        if rank >= world_size:
            raise ValueError(f"rank: expected 0 to world_size - 1 = {world_size - 1}, got {rank}")
        self.size, self.batch_size, self.seed, self.drop_last = size, batch_size, whole_seed(seed), drop_last
        self.shuffle, self.device, self.rank, self.world_size = shuffle, torch.device(device), rank, world_size
        self.epoch = 0
        self.position = 0  # steps of this epoch given out so far
        self._resumed = False

    def __len__(self) -> int:
        steps = self.size / self.batch_size
        return math.floor(steps) if self.drop_last else math.ceil(steps)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`; a position restored within that same epoch is kept."""
        if epoch != self.epoch:
            self.epoch, self.position, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where this is: restore it with `load_state_dict` to go on with the very next batch."""
        return {"epoch": self.epoch, "position": self.position, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken. What it was taken of (seed, sizes) must be the same."""
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(f"state: expected {key} {value} as here, got {state[key]}; it is of another run")
        if not 0 <= state["position"] <= len(self):
            raise ValueError(f"state: expected a position of 0 to {len(self)}, got {state['position']}")
        self.epoch, self.position, self._resumed = state["epoch"], state["position"], True

    def __iter__(self) -> Iterator[Any]:
        # Only a restored position is continued; a loop that was left early starts its epoch again.
        start, self._resumed = (self.position if self._resumed else 0), False
        for step, batch in enumerate(self._steps(start), start):
            self.position = step + 1
            yield batch
        self.epoch, self.position = self.epoch + 1, 0

    def _steps(self, start: int) -> Iterator[Any]:
        raise NotImplementedError

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        return torch.randperm(self.size, generator=generator_at(self.seed, "order", self.epoch))

    def _share(self, values: Tensor) -> Tensor:
        return values if self.world_size == 1 else values.tensor_split(self.world_size)[self.rank]

    def _identity(self) -> dict[str, int]:
        """What a state must be of to be restored here."""
        return {"seed": self.seed, "batch_size": self.batch_size, "size": self.size}


class Batches(Epochs):
    """Iterate over one epoch of `(images, labels)`; iterate again for the next epoch.

    Images are `dtype` `[b, c, h, w]` in [0, 1], or normalised; labels are as in the set, or float targets
    `[b, classes]` when the augmentation mixes them.

    Args:
        image_set: the set to take batches from.
        batch_size: images per step, of all processes together.
        augment: an augmentation of `cr.data.augment`, or any callable of that form; None for none (evaluation).
        shuffle: a new order every epoch.
        seed: the run's seed; order and augmentation follow from it.
        device: where batches are made; None for where the set is.
        drop_last: leave out a last batch that is not full.
        dtype: of the images.
        normalise: `(mean, std)`, each one number per channel.
        rank: this process gets its share of each batch; together the processes see exactly what one process would.
            The shares of a batch that does not divide evenly differ by one image.
        world_size: how many processes there are.
        resident: whether the whole set is copied to `device`. None: when it fits. Otherwise it stays in host memory
            and is streamed through pinned buffers.
        extras: names of metadata to yield after the labels, such as `("parts",)` of MultiMNIST; uint8 ones become
            floats in [0, 1]; they are not augmented.

    Example:
        >>> import capsroute as cr
        >>> digits = cr.data.load("digits")
        >>> batches = cr.data.Batches(digits, batch_size=100, augment=cr.data.augment.Shift(1), seed=1)
        >>> len(batches), next(iter(batches))[0].shape
        (13, torch.Size([100, 1, 8, 8]))
    """

    def __init__(
        self,
        image_set: ImageSet,
        batch_size: int,
        *,
        augment: Augmentation | None = None,
        shuffle: bool = True,
        seed: int = 0,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        dtype: torch.dtype = torch.float32,
        normalise: tuple[Sequence[float], Sequence[float]] | None = None,
        rank: int = 0,
        world_size: int = 1,
        resident: bool | None = None,
        extras: Sequence[str] = (),
    ) -> None:
        if not isinstance(image_set, ImageSet):
            made = "cr.data.from_arrays and from_dataset make one"
            raise TypeError(f"image_set: expected an ImageSet, got {type(image_set).__name__}; {made}")
        store = image_set.images
        if len(image_set) == 0:
            raise ValueError("image_set: expected at least one image, got an empty set")
        channels = store.shape[1]
        if normalise is not None and any(len(values) not in (1, channels) for values in normalise):
            raise ValueError(f"normalise: expected mean and std of {channels} channels, got {normalise}")
        if normalise is not None:
            for mean in normalise[0]:
                check_finite("normalise", float(mean))
            for deviation in normalise[1]:
                check_positive("normalise", float(deviation))
        for name in extras:
            if name not in image_set.metadata:
                raise ValueError(f"extras: expected names among {sorted(image_set.metadata)}, got {name!r}")
        device = store.device if device is None else torch.device(device)
        if device == torch.device("cuda"):  # say which, so that devices can be compared
            device = torch.device("cuda", torch.cuda.current_device())
        order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
        super().__init__(len(image_set), batch_size, device=device, rank=rank, world_size=world_size, **order)
        fits = fits_on(self.device, store.nbytes) if resident is None else resident
        self.resident = fits or store.device == self.device
        self.images = image_set.to(self.device) if self.resident else image_set
        self.labels = image_set.labels.to(self.device)
        self._rows_on = self.device if self.resident else store.device  # where an epoch's row numbers are kept
        self.augment, self.dtype, self.extras = augment, dtype, tuple(extras)
        self.normalise = None if normalise is None else tuple(_column(values, self.device) for values in normalise)

    def _steps(self, start: int) -> Iterator[Batch]:
        chunks = self._order().to(self._rows_on).split(self.batch_size)[start : len(self)]
        for step, (images, labels, extras) in enumerate(self._gather(chunks, start), start):
            yield self._finish(images, labels, extras, step)

    def _gather(self, chunks: Sequence[Tensor], start: int) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
        """Images, labels and extras of each chunk of rows: the whole batch, or only our share when nothing mixes it."""
        if self.augment is None:
            chunks = [self._share(chunk) for chunk in chunks]
        for chunk, images in zip(chunks, self._rows(chunks), strict=True):
            extras = [self.images.metadata[name] for name in self.extras]
            taken = [values.index_select(0, chunk).to(self.device) for values in extras]
            yield images, self.labels.index_select(0, chunk.to(self.device)), taken

    def _rows(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        store = self.images.images
        if not self.resident:
            return stream_rows(store, chunks, self.device)
        return (store.index_select(0, chunk) for chunk in chunks)

    def _finish(self, images: Tensor, labels: Tensor, extras: list[Tensor], step: int) -> Batch:
        if self.augment is not None:
            if getattr(self.augment, "soft_targets", False):
                labels = multi_hot(labels, len(self.images.classes))
            images, labels = self.augment(images, labels, generator_at(self.seed, "augment", self.epoch, step))
            images, labels, *extras = (self._share(values) for values in (images, labels, *extras))
        images = as_float(images)
        if self.normalise is not None:
            mean, std = self.normalise
            images = (images - mean) / std
        floats = [as_float(values) if values.dtype == torch.uint8 else values for values in extras]
        return (images.to(self.dtype), labels, *floats)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]  # [c, 1, 1]
