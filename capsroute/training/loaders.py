"""Datasets and DataLoaders of torch as the data of a run, resumable at any step."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from capsroute.data.batches import Epochs
from capsroute.data.seeding import generator_at


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
    its own batches, workers and order; one that shuffles without a generator of its own gets one from seed and epoch.
    Going on, it gives the batches of the epoch again and those that were taken are passed over.
    """

    def __init__(self, part: Loaded, batch_size: int, **options: Any):
        super().__init__(len(part), batch_size, **options)
        self.part = part
        self.loader = part.source if isinstance(part.source, DataLoader) else None
        if self.loader is not None and self.world_size > 1:
            raise ValueError("data: several processes share a Dataset or an image set, not a DataLoader")

    def __len__(self) -> int:
        return super().__len__() if self.loader is None else len(self.loader)

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "size": self.size}

    def _steps(self, start: int) -> Iterator[tuple[Tensor, ...]]:
        return map(self._placed, self._taken(start))

    def _taken(self, start: int) -> Iterator[Any]:
        if self.loader is None:
            chunks = self._order().split(self.batch_size)[start : len(self)]
            return iter(DataLoader(self.part.dataset, batch_sampler=[self._share(chunk).tolist() for chunk in chunks]))
        sampler = self.loader.sampler
        if isinstance(sampler, RandomSampler) and (sampler.generator is None or hasattr(sampler, "ours")):
            sampler.generator = generator_at(self.seed, "order", self.epoch)
            sampler.ours = True  # type: ignore[attr-defined]
        return islice(iter(self.loader), start, None)

    def _placed(self, batch: Any) -> tuple[Tensor, ...]:
        if not isinstance(batch, (list, tuple)) or len(batch) < 2:
            raise ValueError(f"data: expected batches of (inputs, labels), got {type(batch).__name__}")
        inputs, labels = (torch.as_tensor(values).to(self.device, non_blocking=True) for values in batch[:2])
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        return inputs, labels if labels.is_floating_point() else labels.long()
