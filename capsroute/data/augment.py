"""Augmentation of whole batches: each is a callable `(images, labels, generator) -> (images, labels)`.

What is random is drawn from the CPU generator, so that CPU and GPU draw the same. An augmentation that only moves
pixels keeps uint8 images uint8; one that computes new values returns float images in [0, 1]. Affine ones resample a
batch by one grid and one bilinear lookup, black outside.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data.transfer import send
from capsroute.routing.checks import check_at_least, check_finite, check_positive


class Augmentation(Protocol):
    """What `Batches(augment=...)` accepts: any callable of this form."""

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]: ...


class Compose:
    """One augmentation after the other.

    Example:
        >>> import torch, capsroute as cr
        >>> augment = cr.data.augment.Compose([cr.data.augment.PadCrop(4), cr.data.augment.Flip(0.5)])
        >>> images, labels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([3, 1])
        >>> augment(images, labels, torch.Generator().manual_seed(0))[0].shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, augmentations: Sequence[Augmentation]) -> None:
        self.augmentations = tuple(augmentations)
        self.soft_targets = any(getattr(augmentation, "soft_targets", False) for augmentation in augmentations)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        for augmentation in self.augmentations:
            images, labels = augmentation(images, labels, generator)
        return images, labels

    def __repr__(self) -> str:
        return f"Compose({list(self.augmentations)})"


@dataclass(frozen=True)
class PadCrop:
    """Pad every side with `pad` black pixels, then cut out a random window of `size` (None: the size before padding).

    Example:
        >>> import torch, capsroute as cr
        >>> crop = cr.data.augment.PadCrop(0, size=24)
        >>> images, labels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([3, 1])
        >>> crop(images, labels, torch.Generator().manual_seed(0))[0].shape
        torch.Size([2, 3, 24, 24])
    """

    pad: int
    size: int | None = None

    def __post_init__(self) -> None:
        check_at_least("pad", self.pad, 0)
        if self.size is not None:
            check_at_least("size", self.size, 1)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        b, _, h, w = images.shape
        height, width = (h, w) if self.size is None else (self.size, self.size)
        room = (h + 2 * self.pad - height, w + 2 * self.pad - width)
        if min(room) < 0:
            raise ValueError(f"size: expected at most {min(h, w) + 2 * self.pad}, got {self.size}")
        corners = torch.stack([torch.randint(space + 1, (b,), generator=generator) for space in room], dim=1)  # [b, 2]
        padded = F.pad(images, (self.pad,) * 4)
        return crop_windows(padded, send(corners, images.device), (height, width)), labels


class Shift(PadCrop):
    """Shift every image by up to `pixels` each way, black where nothing was: MNIST's augmentation in Sabour 2017.

    Example:
        >>> import torch, capsroute as cr
        >>> images, labels = torch.ones(1, 1, 3, 3, dtype=torch.uint8), torch.tensor([3])
        >>> int(cr.data.augment.Shift(2)(images, labels, torch.Generator().manual_seed(1))[0].sum()) <= 9
        True
    """

    def __init__(self, pixels: int) -> None:
        check_at_least("pixels", pixels, 0)
        super().__init__(pad=pixels)

    def __repr__(self) -> str:
        return f"Shift(pixels={self.pad})"


@dataclass(frozen=True)
class Flip:
    """Mirror every image left to right with probability `p`.

    Example:
        >>> import torch, capsroute as cr
        >>> images, labels = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8), torch.tensor([0])
        >>> cr.data.augment.Flip(p=1.0)(images, labels, torch.Generator())[0].tolist()
        [[[[3, 2, 1]]]]
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p: expected a probability between 0 and 1, got {self.p}")

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        b = len(images)
        flipped = torch.rand(b, generator=generator) < self.p
        # One lookup in both versions: torch.where and index_copy work byte by byte and take several times as long.
        both = torch.cat([images, images.flip(3)])
        return both.index_select(0, send(torch.arange(b) + b * flipped, images.device)), labels


@dataclass(frozen=True)
class Affine:
    """Turn, shear, scale (each axis by itself) and shift every image; values in between pixels are interpolated.

    Args:
        degrees: turned by up to this angle, either way.
        shear: columns pushed sideways by up to this part of their height.
        scale: smallest and largest factor.
        shift: moved by up to this many pixels, either way.

    Example:
        >>> import torch, capsroute as cr
        >>> wobble = cr.data.augment.Affine(degrees=20, shear=0.2, scale=(0.8, 1.2), shift=2)
        >>> images, labels = torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.tensor([3, 1])
        >>> wobble(images, labels, torch.Generator().manual_seed(0))[0].dtype
        torch.float32
    """

    degrees: float = 0.0
    shear: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    shift: float = 0.0

    def __post_init__(self) -> None:
        for name in ("degrees", "shear", "shift"):  # of NaN every picture would be black
            check_finite(name, getattr(self, name))
        if not isinstance(self.scale, Sequence) or len(self.scale) != 2:
            raise ValueError(f"scale: expected (smallest, largest), got {self.scale!r}")
        for factor in self.scale:
            check_finite("scale", factor)
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale: expected 0 < smallest <= largest, got {self.scale}")

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        maps = self.draw_maps(len(images), generator)
        shifts = uniform(generator, len(images), -self.shift, self.shift, columns=2)
        return warp(as_float(images), maps, shifts), labels

    def draw_maps(self, count: int, generator: torch.Generator) -> Tensor:
        """`[count, 2, 2]` random linear maps (everything but the shift), in float64 on the CPU."""
        angle = uniform(generator, count, -math.radians(self.degrees), math.radians(self.degrees))
        shear = uniform(generator, count, -self.shear, self.shear)
        scale_x, scale_y = uniform(generator, count, *self.scale, columns=2).unbind(1)
        return linear_maps(angle, shear, scale_x, scale_y)


@dataclass(frozen=True)
class Elastic:
    """Bend every image: points of a coarse grid move at random, pixels between them along (Simard et al. 2003).

    Args:
        pixels: how far a point of the grid moves along each axis, as a standard deviation.
        spacing: pixels from one point of the grid to the next; the larger, the smoother.

    Example:
        >>> import torch, capsroute as cr
        >>> images, labels = torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.tensor([3, 1])
        >>> cr.data.augment.Elastic(pixels=1.0)(images, labels, torch.Generator().manual_seed(0))[0].shape
        torch.Size([2, 1, 28, 28])
    """

    pixels: float
    spacing: int = 7

    def __post_init__(self) -> None:
        check_finite("pixels", self.pixels)
        if self.pixels < 0:
            raise ValueError(f"pixels: expected 0 or more, got {self.pixels}")
        check_at_least("spacing", self.spacing, 1)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        b, _, h, w = images.shape
        points = [1 + math.ceil((side - 1) / self.spacing) for side in (h, w)]
        moves = self.pixels * torch.randn(b, 2, *points, generator=generator)
        moves = F.interpolate(send(moves, images.device), (h, w), mode="bicubic", align_corners=True)  # [b, 2, h, w]
        sizes = send(torch.tensor([w, h]), images.device)
        still = F.affine_grid(torch.eye(2, 3, device=images.device)[None], [1, 1, h, w], align_corners=False)
        grid = still + moves.movedim(1, 3) * 2 / sizes  # grid_sample measures half sides
        return F.grid_sample(as_float(images), grid, align_corners=False), labels


@dataclass(frozen=True)
class Cutout:
    """Paint over a square of `size` pixels at a random place with the image's mean colour (DeVries & Taylor 2017).

    The square's centre is anywhere in the image, so part of the square may lie outside.

    Example:
        >>> import torch, capsroute as cr
        >>> images, labels = torch.eye(4).view(1, 1, 4, 4), torch.tensor([3])
        >>> cr.data.augment.Cutout(8)(images, labels, torch.Generator().manual_seed(0))[0].unique().tolist()
        [0.25]
    """

    size: int

    def __post_init__(self) -> None:
        check_at_least("size", self.size, 1)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        b, _, h, w = images.shape
        centres = torch.stack([torch.randint(side, (b,), generator=generator) for side in (h, w)], dim=1)
        first = send(centres - self.size // 2, images.device)  # [b, 2]
        rows, columns = (self._covered(first[:, axis], side) for axis, side in enumerate((h, w)))
        covered = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)  # [b, 1, h, w]
        mean = images.float().mean((2, 3), keepdim=True)
        mean = mean if images.is_floating_point() else mean.round()
        return torch.where(covered, mean.to(images.dtype), images), labels

    def _covered(self, first: Tensor, side: int) -> Tensor:
        """Which of `side` pixels lie in the square that begins at `first` [b]: [b, side]."""
        after = torch.arange(side, device=first.device) - first[:, None]
        return (after >= 0) & (after < self.size)


@dataclass(frozen=True)
class Mixup:
    """Blend every image with another of the batch, and their targets alike (Zhang 2017; Heinsen 2019, section 3.2).

    Each image draws a weight of its own. Targets are `[b, classes]` floats: `Batches` makes them from labels,
    `multi_hot` does elsewhere.

    Example:
        >>> import torch, capsroute as cr
        >>> images, targets = torch.rand(4, 1, 8, 8), torch.eye(4)
        >>> images, targets = cr.data.augment.Mixup(0.2)(images, targets, torch.Generator().manual_seed(0))
        >>> bool(torch.allclose(targets.sum(dim=1), torch.ones(4)))
        True
    """

    alpha: float = 0.2
    soft_targets: ClassVar = True

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if not labels.is_floating_point():
            raise ValueError(f"labels: expected float targets [b, classes] (see multi_hot), got {labels.dtype}")
        weight = send(mixup_weights(self.alpha, len(images), generator), images.device)  # [b]
        partner = send(torch.randperm(len(images), generator=generator), images.device)
        images, each = as_float(images), weight[:, None, None, None]
        mixed = each * images + (1 - each) * images[partner]
        return mixed, weight[:, None] * labels + (1 - weight[:, None]) * labels[partner]


def crop_windows(images: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    """A window of `size` from each of `images` `[b, c, h, w]`, its top left at `corners` `[b, 2]` (row, column)."""
    b, c, h, w = images.shape
    height, width = size
    device = images.device
    planes = torch.arange(0, b * c * h * w, h * w, device=device).view(b, c, 1)
    corner = planes + (corners[:, 0] * w + corners[:, 1]).view(b, 1, 1)  # [b, c, 1]
    starts = corner + torch.arange(0, height * w, w, device=device)  # [b, c, height]: where each row begins
    # Every run of `width` pixels as a row of an overlapping view: one lookup then copies whole rows, not pixels.
    flat = images.contiguous().view(-1)
    runs = flat.as_strided((flat.numel() - width + 1, width), (1, 1))
    return runs.index_select(0, starts.view(-1)).view(b, c, height, width)


def as_float(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; float images as they are."""
    return images if images.is_floating_point() else images.float().div_(255)


def uniform(generator: torch.Generator, count: int, low: float, high: float, columns: int | None = None) -> Tensor:
    """`[count]` or `[count, columns]` float64 numbers between `low` and `high`."""
    shape = (count,) if columns is None else (count, columns)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def mixup_weights(alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """`[count]` float32 numbers of Beta(alpha, alpha)."""
    # torch has no Beta sampler that takes a generator; numpy has, seeded here from the one given.
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count)).float()


def linear_maps(angle: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor) -> Tensor:
    """`[b, 2, 2]` maps of (x, y) offsets from the centre, y downwards: scale, then shear x by y, then turn by `angle`.

    A positive angle (radians) turns the picture counter-clockwise as seen on the screen.
    """
    cos, sin, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([cos, sin, -sin, cos], dim=-1).view(-1, 2, 2)
    shears = torch.stack([one, shear, zero, one], dim=-1).view(-1, 2, 2)
    scales = torch.stack([scale_x, zero, zero, scale_y], dim=-1).view(-1, 2, 2)
    return turn @ shears @ scales


def warp(images: Tensor, maps: Tensor, shifts: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Move every pixel of float `images` `[b, c, h, w]` from `p` to `map p + shift`, in pixels from the centres.

    `maps` `[b, 2, 2]` and `shifts` `[b, 2]` are in (x, y); the result is `[b, c, *size]`.
    """
    b, c, h, w = images.shape
    height, width = size or (h, w)
    inverse = torch.linalg.inv(maps.double())  # [b, 2, 2]
    offset = -(inverse @ shifts.double()[:, :, None])[:, :, 0]
    # grid_sample measures both pictures from -1 to 1; convert from pixels.
    to_units = torch.tensor([2 / w, 2 / h], dtype=torch.float64)
    from_units = torch.tensor([width / 2, height / 2], dtype=torch.float64)
    theta = torch.cat([to_units[:, None] * inverse * from_units, (to_units * offset)[:, :, None]], dim=2)
    theta = send(theta.to(images.dtype), images.device)
    grid = F.affine_grid(theta, [b, c, height, width], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
