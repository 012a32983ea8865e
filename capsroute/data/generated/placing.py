"""Rules that move MNIST digits about: shifted, expanded, affNIST-like and rotated MNIST.

A rule is made for a set of digits, and draws one picture for each row (number of a digit) it is given.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data.augment import Affine, Shift, as_float, crop_windows, uniform
from capsroute.data.sets import ImageSet
from capsroute.data.transfer import send
from capsroute.data.warp import linear_maps, warp


class Drawn(NamedTuple):
    """Pictures uint8 `[b, 1, h, w]`, their labels int64 `[b]` or `[b, 2]`, and metadata with one row a picture."""

    images: Tensor
    labels: Tensor
    metadata: dict[str, Tensor]


class Rule(Protocol):
    """`rule(rows, generator)` draws a picture from each of the digits `rows` `[b]`; the generator is on the CPU."""

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn: ...


class ShiftedMNIST:
    """Each digit shifted by up to 2 pixels in each direction (Sabour 2017)."""

    def __init__(self, digits: ImageSet) -> None:
        self.digits = digits
        self.shift = Shift(2)

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        return Drawn(self.shift(images, labels, generator)[0], labels, {})


class ExpandedMNIST:
    """Each digit anywhere on a black 40x40 picture (Zhao & Huang 2019, section 4.3)."""

    size = 40

    def __init__(self, digits: ImageSet) -> None:
        self.digits = digits

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Drawn:
        images, labels = take(self.digits, rows)
        return Drawn(place(images, self.size, generator), labels, {})


class AffnistLike:
    """Each digit turned, sheared, scaled and placed on 40x40 so that all its ink stays inside, as in affNIST."""

    size = 40

    def __init__(self, digits: ImageSet) -> None:
        self.digits = digits
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


class RotatedMNIST:
    """Each digit turned by a uniform random angle about the centre (rMNIST, Larochelle et al. 2007)."""

    def __init__(self, digits: ImageSet) -> None:
        self.digits = digits

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
