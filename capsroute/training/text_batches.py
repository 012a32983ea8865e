"""Batches of texts as hidden states: shuffled, padded, mixed, shared between processes, resumable at any step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data import multi_hot
from capsroute.data.seeds import generator_at
from capsroute.training.text import HiddenStates, LiveStates, Padded

__all__ = ["TextBatches"]

GROUP = 16  # batches among which texts of like length are put together


class TextBatches:
    """Iterate over one epoch of `(Padded, labels)`; the order follows from seed and epoch, as of `cr.data.Batches`.

    `by_length` puts texts of like length together: less padding, batches that are a little less random.

    >>> import torch
    >>> from capsroute.training.text import HiddenStates
    >>> from capsroute.training.text_batches import TextBatches
    >>> texts = HiddenStates(torch.randn(5, 3, 8), torch.tensor([0, 2, 5]), torch.tensor([1, 0]), ("bad", "good"))
    >>> [labels.shape for _, labels in TextBatches(texts, 2)]
    [torch.Size([2])]
    """

    def __init__(
        self,
        texts: HiddenStates | LiveStates,
        batch_size: int,
        *,
        mixup: float = 0.0,
        by_length: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.texts, self.batch_size, self.mixup, self.shuffle, self.seed = texts, batch_size, mixup, shuffle, seed
        self.device, self.drop_last, self.by_length = torch.device(device), drop_last, by_length
        self.rank, self.world_size = rank, world_size
        self.epoch, self.position, self._resumed = 0, 0, False

    def __len__(self) -> int:
        steps = len(self.texts) / self.batch_size
        return math.floor(steps) if self.drop_last else math.ceil(steps)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`; a position restored within that same epoch is kept."""
        if epoch != self.epoch:
            self.epoch, self.position, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where this is."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken."""
        self.epoch, self.position, self._resumed = state["epoch"], state["position"], True

    def __iter__(self) -> Iterator[tuple[Padded, Tensor]]:
        start, self._resumed = (self.position if self._resumed else 0), False
        order = self._order()
        for step in range(start, len(self)):
            self.position = step + 1
            yield self._batch(order[step * self.batch_size : (step + 1) * self.batch_size], step)
        self.epoch, self.position = self.epoch + 1, 0

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(len(self.texts))
        generator = generator_at(self.seed, "order", self.epoch)
        order = torch.randperm(len(self.texts), generator=generator)
        if not self.by_length:
            return order
        # Padding is work for nothing: texts of like length share a batch, and the batches come in random order.
        lengths = self.texts.lengths
        batches: list[Tensor] = []
        for group in order.split(GROUP * self.batch_size):
            batches += group[lengths[group].argsort(stable=True)].split(self.batch_size)
        full, rest = [b for b in batches if len(b) == self.batch_size], [b for b in batches if len(b) < self.batch_size]
        turn = torch.randperm(len(full), generator=generator).tolist()
        return torch.cat([*(full[number] for number in turn), *rest])

    def _batch(self, rows: Tensor, step: int) -> tuple[Padded, Tensor]:
        if not self.mixup:
            rows = rows.tensor_split(self.world_size)[self.rank]
            return self.texts.take(rows, self.device), self.texts.labels[rows].to(self.device)
        padded, labels = self.texts.take(rows, self.device), self.texts.labels[rows].to(self.device)
        mixed, targets = self._mix(padded, multi_hot(labels, len(self.texts.classes)), step)
        hidden, mask, share = (values.tensor_split(self.world_size)[self.rank] for values in (*mixed, targets))
        return Padded(hidden, mask), share

    def _mix(self, padded: Padded, targets: Tensor, step: int) -> tuple[Padded, Tensor]:
        """Blend each text with another, token by token; a token that only one of them has keeps its weight."""
        generator = generator_at(self.seed, "augment", self.epoch, step)
        partner = torch.randperm(len(targets), generator=generator).to(self.device)
        seed = int(torch.randint(2**62, (), generator=generator))
        drawn = np.random.default_rng(seed).beta(self.mixup, self.mixup, len(targets))
        weight = torch.from_numpy(drawn).to(self.device, torch.float32)[:, None]  # [b, 1]
        each = weight[:, :, None, None]
        hidden = each * padded.hidden + (1 - each) * padded.hidden[partner]
        mixed = Padded(hidden, padded.mask | padded.mask[partner])
        return mixed, weight * targets + (1 - weight) * targets[partner]
