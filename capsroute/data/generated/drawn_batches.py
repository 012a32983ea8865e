"""Generated pictures as a source of batches: new ones every epoch, drawn on the device, never stored."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from capsroute.data.augment import Augmentation
from capsroute.data.batches import Batches
from capsroute.data.generated.digit_rules import (
    AffnistLike,
    BackgroundMNIST,
    DiverseMultiMNIST,
    ExpandedMNIST,
    MultiMNIST,
    RotatedMNIST,
    Rule,
    ShiftedMNIST,
)
from capsroute.data.seeding import generator_at
from capsroute.data.sets import ImageSet, joined
from capsroute.naming import make_named

RULES: dict[str, Callable[[ImageSet], Rule]] = {
    "shifted_mnist": ShiftedMNIST,
    "expanded_mnist": ExpandedMNIST,
    "multimnist": MultiMNIST,
    "diverse_multimnist": DiverseMultiMNIST,
    "affnist_like": AffnistLike,
    "rotated_mnist": RotatedMNIST,
    "background_mnist": BackgroundMNIST,
}
CHUNK = 1000  # pictures drawn at once by `generate`; changing it changes every generated set


class GeneratedBatches(Batches):
    """Like `Batches`, with every picture drawn anew: each epoch takes each digit once, in a new picture.

    Args:
        name: a generated data set: `multimnist`, `diverse_multimnist`, `shifted_mnist` and so on.
        digits: the digits to draw from; take `mnist`'s training split for training.
        batch_size: as the rest, that of `Batches`. `extras=("parts",)` also yields the two digits of MultiMNIST.

    Example:
        >>> import capsroute as cr
        >>> digits = cr.data.load("digits")  # 8x8 pixels; MNIST's 28x28 in earnest
        >>> batches = cr.data.GeneratedBatches("shifted_mnist", digits, batch_size=64, seed=1)
        >>> images, labels = next(iter(batches))
        >>> images.shape, labels.shape
        (torch.Size([64, 1, 8, 8]), torch.Size([64]))
    """

    def __init__(
        self,
        name: str,
        digits: ImageSet,
        batch_size: int,
        *,
        augment: Augmentation | None = None,
        extras: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(digits, batch_size, augment=augment, resident=True, **options)
        self.name, self.rule = name, make_named("name", RULES, name, self.images)
        self._rows_on = torch.device("cpu")  # where rules choose partners
        known = self.rule(torch.zeros(1, dtype=torch.int64), generator_at(0)).metadata
        for extra in extras:
            if extra not in known:
                raise ValueError(f"extras: expected names among {sorted(known)}, got {extra!r}")
        self.extras = tuple(extras)

    def _gather(self, chunks: Sequence[Tensor], start: int) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
        for step, chunk in enumerate(chunks, start):
            drawn = self.rule(chunk, generator_at(self.seed, self.name, self.epoch, step))
            values = [drawn.images, drawn.labels, *(drawn.metadata[extra] for extra in self.extras)]
            if self.augment is None:
                values = [self._share(value) for value in values]
            yield values[0], values[1], values[2:]


def generate(name: str, digits: ImageSet, count: int, seed: int = 0) -> ImageSet:
    """`count` pictures of a generated data set, from the digits in their order, over again when there are too few.

    Example:
        >>> import capsroute as cr
        >>> digits = cr.data.load("digits")
        >>> cr.data.generate("shifted_mnist", digits, count=10, seed=3).images.shape
        torch.Size([10, 1, 8, 8])
    """
    if count < 1:
        raise ValueError(f"count: expected 1 or more, got {count}")
    rule = make_named("name", RULES, name, digits)
    drawn = []
    for chunk, rows in enumerate((torch.arange(count) % len(digits)).split(CHUNK)):
        drawn.append(rule(rows, generator_at(seed, name, digits.split, chunk)))
    return joined(drawn, digits.classes, name, digits.split)
