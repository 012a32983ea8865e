"""Datasets and DataLoaders of torch as the data of a run, resumable at any step."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from capsroute.data.batches import Epochs
from capsroute.data.seeding import generator_at
from capsroute.data.transfer import send
from capsroute.training.checkpoint import seeded

END = object()  # of a loader's batches; None may be one of them, and is refused as such


class Loaded:
    """A Dataset or a DataLoader of `(inputs, labels)` pairs in the place of an image set.

    `classes` are the dataset's own where it has them (as torchvision's do), else none are known.

    >>> import torch
    >>> from capsroute.training.loaders import Loaded
    >>> pairs = torch.utils.data.TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6) % 2)
    >>> len(Loaded(pairs)), Loaded(pairs).shape
    (6, (1, 8, 8))
    """

    def __init__(self, source: Dataset | DataLoader):
        self.source = source
        self.dataset: Any = source.dataset if isinstance(source, DataLoader) else source
        if isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__len__"):
            raise ValueError("data: expected a Dataset with a length, got one that only streams")
        if len(self.dataset) == 0:
            raise ValueError("data: expected at least one example, got an empty Dataset")

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, getattr(self.dataset, "classes", ())))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(torch.as_tensor(self.dataset[0][0]).shape)


class LoadedBatches(Epochs):
    """Iterate over one epoch of `(inputs, labels)` on a device; `uint8` inputs become numbers in [0, 1].

    The order of a Dataset follows from seed and epoch, and going on takes up at the very next batch. A DataLoader keeps
    its own batches, workers and order. Going on, it gives the batches of the epoch again and those that were taken are
    passed over. What either draws from torch, numpy or Python follows from seed, epoch and step; generators that it was
    given go back to where they were when the epoch began. All of it happens in the thread that takes the batches, since
    these generators are the whole process's; they are as they were whenever a batch has been given.
    """

    def __init__(self, part: Loaded, batch_size: int, **options: Any):
        super().__init__(len(part), batch_size, **options)
        self.part = part
        self.loader = part.source if isinstance(part.source, DataLoader) else None
        self._began: list[Tensor] = []  # states of the given generators when this epoch began
        if self.loader is not None and self.world_size > 1:
            raise ValueError("data: several processes share a Dataset or an image set, not a DataLoader")

    def __len__(self) -> int:
        return super().__len__() if self.loader is None else len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        began = self._began if 0 < self.position < len(self) else [generator.get_state() for generator in self._given()]
        return {**super().state_dict(), "generators": began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._began = list(state.get("generators", []))  # who saves again before the next batch saves these
        for generator, began in zip(self._given(), self._began):
            generator.set_state(began)

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "size": self.size}

    def _given(self) -> list[torch.Generator]:
        """The generators that the loader's makers gave it."""
        batches = getattr(self.loader, "batch_sampler", None)
        holders = self.loader, getattr(self.loader, "sampler", None), batches, getattr(batches, "sampler", None)
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    def _steps(self, start: int) -> Iterator[tuple[Tensor, ...]]:
        return map(self._placed, self._taken(start))

    def _taken(self, start: int) -> Iterator[Any]:
        self._began = [generator.get_state() for generator in self._given()]
        first, source = 0, self.loader
        if source is None:
            chunks = self._order().split(self.batch_size)[start : len(self)]
            shares = [self._share(chunk).tolist() for chunk in chunks]
            first, source = start, DataLoader(self.part.dataset, batch_sampler=shares)
        if start >= len(self):
            return
        batches = self._begin(source)
        step, batch = first, self._next(batches, first)
        while batch is not END:
            # A loader is at its end before its last batch is given: its generators are where the next epoch begins.
            after = self._next(batches, step + 1) if step + 1 == len(self) else None
            if step >= start:
                yield batch
            step += 1
            batch = self._next(batches, step) if after is None else after

    def _begin(self, source: DataLoader) -> Iterator[Any]:
        """Workers' seed is drawn apart from the order: those that persist draw it once, and not in every epoch."""
        given = source.generator
        if given is None:
            source.generator = generator_at(self.seed, "workers", self.epoch)
        try:
            with self._seeded(-1):
                return iter(source)
        finally:
            source.generator = given

    def _next(self, batches: Iterator[Any], step: int) -> Any:
        with self._seeded(step):
            return next(batches, END)

    def _seeded(self, step: int) -> AbstractContextManager[None]:
        """Nothing that is drawn for a batch moves the generators that the model draws from."""
        epoch = self.epoch if self.shuffle else 0  # what is validated on stays the same
        place = generator_at(self.seed, "examples", epoch, step, self.rank)
        return seeded(place.initial_seed(), torch.device("cpu"))

    def _placed(self, batch: Any) -> tuple[Tensor, ...]:
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise ValueError(f"data: expected batches of (inputs, labels), got {type(batch).__name__}")
        inputs, labels = (send(torch.as_tensor(values), self.device) for values in batch[:2])
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        return inputs, labels if labels.is_floating_point() else labels.long()
