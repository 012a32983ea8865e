"""Rules that draw pictures from MNIST digits: moved about (shifted, expanded, affNIST-like and rotated MNIST), or put
together with something else (MultiMNIST, DiverseMultiMNIST and background MNIST). A rule is made for a set of digits,
and draws one picture for each row (number of a digit) it is given.

What they draw comes as a set, or as batches: new pictures every epoch, drawn on the device, never stored.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data.augment import Affine, Augmentation, Shift, as_float, crop_windows, linear_maps, uniform, warp
from capsroute.data.batches import Batches
from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.seeding import generator_at
from capsroute.data.sets import NO_LABEL, ImageSet, joined
from capsroute.data.transfer import send
from capsroute.naming import make_named


class Drawn(NamedTuple):
    """Pictures uint8 `[b, 1, h, w]`, their labels int64 `[b]` or `[b, 2]`, and metadata with one row per picture."""

    images: Tensor
    labels: Tensor
    metadata: dict[str, Tensor]


class Rule:
    """`rule(rows, generator)` draws a picture from each of the digits `rows` `[b]`; the generator is on the CPU."""

    def __init__(self, digits: ImageSet) -> None:
        self.digits = digits

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        raise NotImplementedError


class ShiftedMNIST(Rule):
    """Each digit shifted by up to 2 pixels in each direction (Sabour 2017)."""

    def __init__(self, digits: ImageSet) -> None:
        super().__init__(digits)
        self.shift = Shift(2)

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        return Drawn(self.shift(images, labels, generator)[0], labels, {})


class ExpandedMNIST(Rule):
    """Each digit anywhere on a black 40x40 picture (Zhao & Huang 2019, section 4.3)."""

    size = 40

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        return Drawn(place(images, self.size, generator), labels, {})


class AffnistLike(Rule):
    """Each digit turned, sheared, scaled and placed on 40x40 so that all its ink stays inside, as in affNIST."""

    size = 40

    def __init__(self, digits: ImageSet) -> None:
        super().__init__(digits)
        self.affine = Affine(degrees=20, shear=0.2, scale=(0.8, 1.2))

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        maps = self.affine.draw_maps(len(rows), generator)
        low, high = self._room(images, maps)
        shifts = low + (high - low) * uniform(generator, len(rows), 0, 1, columns=2)
        return Drawn(to_bytes(warp(as_float(images), maps, shifts, (self.size, self.size))), labels, {})

    def _room(self, images: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and largest shift (x, y) `[b, 2]` that keeps all ink inside; its middle twice if none does."""
        _, _, h, w = images.shape
        y, x = torch.meshgrid(torch.arange(h) - (h - 1) / 2, torch.arange(w) - (w - 1) / 2, indexing="ij")
        offsets = torch.stack([x.reshape(-1), y.reshape(-1)]).double()  # [2, h * w]
        moved = maps @ offsets  # [b, 2, h * w]
        empty = (images.cpu().view(len(images), 1, -1) == 0).expand_as(moved)
        # Bilinear lookup spreads a pixel over one pixel to each side, before it is mapped; ink is lost only where the
        # centre of a pixel outside would show some, and the first such centre is half a pixel outside.
        edge = self.size / 2 + 0.5 - maps.abs().sum(dim=2)
        low = -edge - moved.masked_fill(empty, math.inf).amin(dim=2)
        high = edge - moved.masked_fill(empty, -math.inf).amax(dim=2)
        middle = torch.nan_to_num((low + high) / 2)  # a digit without ink has no extent
        fits = (low <= high) & low.isfinite()
        return torch.where(fits, low, middle), torch.where(fits, high, middle)


class RotatedMNIST(Rule):
    """Each digit turned by a uniform random angle about the centre (rMNIST, Larochelle et al. 2007)."""

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        angle = uniform(generator, len(rows), 0, 2 * math.pi)
        one, zero = torch.ones_like(angle), torch.zeros_like(angle)
        maps = linear_maps(angle, zero, one, one)
        turned = warp(as_float(images), maps, torch.zeros(len(rows), 2))
        return Drawn(to_bytes(turned), labels, {"angle": send(angle.float(), images.device)})


def take(digits: ImageSet, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels of the digits `rows`, on the device of the digits."""
    rows = send(rows, digits.images.device)
    return digits.images.index_select(0, rows), digits.labels.index_select(0, rows)


def place(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Each of `images` anywhere on a black picture of `size`, whole."""
    margin = size - images.shape[2]
    corners = send(torch.randint(margin + 1, (len(images), 2), generator=generator), images.device)
    return crop_windows(F.pad(images, (margin,) * 4), corners, (size, size))


def to_bytes(images: Tensor) -> Tensor:
    """Float images in [0, 1] as uint8."""
    return images.mul(255).round_().clamp_(0, 255).to(torch.uint8)


TWO_DIGITS = 36  # 28 pixels and a shift of up to 4 in each direction


class MultiMNIST(Rule):
    """Two digits of different classes, each shifted by up to 4 pixels, one over the other on 36x36 (Sabour 2017).

    Labels are `[b, 2]`; `metadata["parts"]` `[b, 2, 36, 36]` holds the two digits alone, in the order of the labels.
    """

    def __init__(self, digits: ImageSet) -> None:
        super().__init__(digits)
        self.labels = digits.labels.cpu()  # partners are drawn on the CPU, so that every device draws the same
        self.by_class = torch.argsort(self.labels, stable=True)  # digits sorted by class: one block per class
        self.counts = torch.bincount(self.labels, minlength=len(digits.classes))
        self.starts = self.counts.cumsum(0) - self.counts
        if int((self.counts > 0).sum()) < 2:
            raise ValueError("digits: expected digits of at least two classes, got fewer")

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        first, labels = take(self.digits, rows)
        second, other = take(self.digits, self.partners(rows, generator))
        parts = torch.cat([place(images, TWO_DIGITS, generator) for images in (first, second)], dim=1)  # [b, 2, h, w]
        return Drawn(_over(parts), torch.stack([labels, other], dim=1), {"parts": parts})

    def partners(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """For each of `rows`, a random digit of any other class: uniform over the digits outside the class's block."""
        own = self.labels[rows]
        choices = len(self.digits) - self.counts[own]
        at = (torch.rand(len(rows), generator=generator, dtype=torch.float64) * choices).long()
        at += torch.where(at >= self.starts[own], self.counts[own], 0)
        return self.by_class[at]


class DiverseMultiMNIST(MultiMNIST):
    """Like MultiMNIST, but one picture in six shows one digit; its second label is -1 (Tsai 2020, appendix B.2)."""

    single = 1 / 6

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        _, labels, metadata = super().__call__(rows, generator)
        alone = send(torch.rand(len(rows), generator=generator) < self.single, labels.device)
        labels[:, 1] = labels[:, 1].masked_fill(alone, NO_LABEL)
        parts = metadata["parts"]
        parts[:, 1] = parts[:, 1].masked_fill(alone[:, None, None], 0)
        return Drawn(_over(parts), labels, {"parts": parts})


class BackgroundMNIST(Rule):
    """Each digit in white on a patch of a photograph (bMNIST, Larochelle et al. 2007).

    The photographs are the two that scikit-learn carries, in grey. Training and validation digits get patches of their
    left 60 %, test digits of their right 40 %; flat patches are left out, as in the original.
    """

    boundary = 0.6
    flat = 12.0  # standard deviation, in grey levels, below which a patch shows too little
    step = 3

    def __init__(self, digits: ImageSet) -> None:
        super().__init__(digits)
        self.patches = self._cut_patches(digits.images.shape[2]).to(digits.images.device)  # [p, 1, h, w]

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        chosen = torch.randint(len(self.patches), (len(rows),), generator=generator)
        mirrored = send(torch.rand(len(rows), generator=generator) < 0.5, images.device)
        patches = self.patches.index_select(0, send(chosen, images.device))
        patches = torch.where(mirrored[:, None, None, None], patches.flip(3), patches).int()
        # Whole numbers, so that every device gives the same: the digit's grey value is how much it covers.
        return Drawn((patches + ((255 - patches) * images.int() + 127) // 255).to(torch.uint8), labels, {})

    def _cut_patches(self, size: int) -> Tensor:
        from sklearn.datasets import load_sample_images

        photographs = np.stack(load_sample_images().images).astype(np.float32)  # [2, 427, 640, 3]
        grey = torch.from_numpy(photographs @ np.array([0.299, 0.587, 0.114], dtype=np.float32))
        cut = int(self.boundary * grey.shape[2])
        grey = grey[:, :, cut:] if self.digits.split == "test" else grey[:, :, :cut]
        windows = grey.unfold(1, size, self.step).unfold(2, size, self.step)  # [2, rows, columns, size, size]
        patches = windows.reshape(-1, 1, size, size)
        return patches[patches.std(dim=(1, 2, 3)) > self.flat].round().to(torch.uint8)


def _over(parts: Tensor) -> Tensor:
    """The two digits of `parts` `[b, 2, h, w]` added up, no brighter than white."""
    return parts.int().sum(dim=1, keepdim=True).clamp_(max=255).to(torch.uint8)


AS_MNIST = {"train": 54_000, "validation": 6_000, "test": 10_000}
AS_VARIATIONS = {"train": 10_000, "validation": 2_000, "test": 50_000}
FROM_MNIST: tuple[tuple[str, Callable[[ImageSet], Rule], str, int, dict[str, int]], ...] = (
    ("shifted_mnist", ShiftedMNIST, "Shifted MNIST: digits moved by up to 2 pixels", 28, AS_MNIST),
    ("expanded_mnist", ExpandedMNIST, "Expanded MNIST: digits anywhere on 40x40", 40, AS_MNIST),
    ("multimnist", MultiMNIST, "MultiMNIST: two overlapping digits", 36, AS_MNIST),
    ("diverse_multimnist", DiverseMultiMNIST, "DiverseMultiMNIST: one digit or two overlapping ones", 36, AS_MNIST),
    ("affnist_like", AffnistLike, "affNIST-like: digits turned, sheared, scaled, anywhere on 40x40", 40, AS_MNIST),
    ("rotated_mnist", RotatedMNIST, "Rotated MNIST: digits at any angle", 28, AS_VARIATIONS),
    ("background_mnist", BackgroundMNIST, "Background MNIST: digits on patches of photographs", 28, AS_VARIATIONS),
)
RULES = {name: rule for name, rule, *_ in FROM_MNIST}
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


def _read(
    info: DatasetInfo,
    digits: ImageSet,
    split: str,
    count: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ImageSet:
    everything = sum(info.sizes[part] for part in split.split("+"))
    return generate(info.name, digits.to(device), everything if count is None else count, seed)


for _name, _, _title, _side, _sizes in FROM_MNIST:
    register(
        DatasetInfo(
            name=_name,
            title=_title,
            classes=tuple("0123456789"),
            shape=(1, _side, _side),
            sizes=_sizes,
            licence="CC BY-SA 3.0, as MNIST",
            origin="drawn from MNIST here, by the papers' rule",
            read=_read,
            needs="mnist",
        )
    )
