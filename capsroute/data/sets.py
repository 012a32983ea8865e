"""The two kinds of data set that `load` returns: images with labels as tensors, and sentences with labels. And cutting
validation data from training data: stratified, exact in number, and the same for ever on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsroute.data.seeding import splitmix64, whole_seed
from capsroute.routing.checks import can_look, check_at_least

SPLITS = ("train", "validation", "test", "train+validation")
NO_LABEL = -1  # second label of a picture that shows only one digit (DiverseMultiMNIST)


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images of one size with their labels, whole in memory as bytes.

    Attributes:
        images: uint8 `[n, c, h, w]`.
        labels: int64 `[n]`; `[n, 2]` for pictures of two digits, where -1 in the second column says "only one digit".
        classes: a name for each label.
        name, split: where the images come from.
        metadata: further tensors with one row per image, such as `azimuth` of NORB or `parts` of MultiMNIST.

    Example:
        >>> import torch, capsroute as cr
        >>> pets = cr.data.ImageSet(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), ("cat", "dog"))
        >>> len(pets), pets.subset(torch.tensor([0, 2])).labels.tolist()
        (3, [0, 1])
        >>> pets
        ImageSet(images train: 3 of 1x8x8, 2 classes: cat, dog)
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "images"
    split: str = "train"
    metadata: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, values in {"images": self.images, "labels": self.labels}.items():
            if not isinstance(values, Tensor):
                said = "cr.data.from_arrays takes arrays and lists"
                raise TypeError(f"{key}: expected a tensor, got {type(values).__name__}; {said}")
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images: expected uint8 [n, c, h, w], got {self.images.dtype} {list(self.images.shape)}")
        shape_fits = self.labels.ndim == 1 or (self.labels.ndim == 2 and self.labels.shape[1] == 2)
        if self.labels.dtype != torch.int64 or not shape_fits:
            raise ValueError(f"labels: expected int64 [n] or [n, 2], got {self.labels.dtype} {list(self.labels.shape)}")
        for key, values in {"labels": self.labels, **self.metadata}.items():
            if len(values) != len(self.images):
                raise ValueError(f"{key}: expected one row for each of {len(self.images)} images, got {len(values)}")
        wrong = [name for name in self.classes if not isinstance(name, str)]
        if isinstance(self.classes, str) or wrong:
            raise TypeError(f"classes: expected names, such as ('cat', 'dog'), got {self.classes!r}")
        _check_range(self.labels, len(self.classes))

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        also = f"; also {', '.join(self.metadata)}" if self.metadata else ""
        size = "x".join(map(str, self.shape))
        return f"ImageSet({self.name} {self.split}: {len(self):,} of {size}, {_class_names(self.classes)}{also})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        c, h, w = self.images.shape[1:]
        return c, h, w

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set with every tensor on `device`."""
        metadata = {key: values.to(device) for key, values in self.metadata.items()}
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), metadata=metadata)

    def subset(self, indices: Tensor) -> ImageSet:
        """The images at `indices` (int64 `[m]`, or bool `[n]`), with their labels and metadata."""
        indices = torch.as_tensor(indices, device=self.images.device)
        metadata = {key: values[indices] for key, values in self.metadata.items()}
        return replace(self, images=self.images[indices], labels=self.labels[indices], metadata=metadata)


def joined(parts: Sequence[Any], classes: tuple[str, ...], name: str, split: str) -> ImageSet:
    """One set of several, each with `images`, `labels` and `metadata`, of which it has what all of them have."""
    common = [key for key in parts[0].metadata if all(key in part.metadata for part in parts)]
    metadata = {key: torch.cat([part.metadata[key] for part in parts]) for key in common}
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    return ImageSet(images, labels, classes, name, split, metadata)


@dataclass(frozen=True, repr=False)
class TextSet:
    """Sentences or phrases with their labels.

    Example:
        >>> import torch, capsroute as cr
        >>> reviews = cr.data.TextSet(("a lovely film", "a mess"), torch.tensor([1, 0]), ("negative", "positive"))
        >>> len(reviews), reviews.subset(torch.tensor([1])).texts
        (2, ('a mess',))
        >>> reviews
        TextSet(texts train: 2, 2 classes: negative, positive)
    """

    texts: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "texts"
    split: str = "train"

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.texts),):
            expected = f"int64 [{len(self.texts)}]"
            raise ValueError(f"labels: expected {expected}, got {self.labels.dtype} {list(self.labels.shape)}")
        _check_range(self.labels, len(self.classes))

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"TextSet({self.name} {self.split}: {len(self):,}, {_class_names(self.classes)})"

    def subset(self, indices: Tensor) -> TextSet:
        """The texts at `indices` (int64 `[m]`, or bool `[n]`), with their labels."""
        rows = torch.arange(len(self))[indices]
        return replace(self, texts=tuple(self.texts[row] for row in rows.tolist()), labels=self.labels[rows])


def _class_names(classes: tuple[str, ...]) -> str:
    shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
    return f"{len(classes)} classes: {shown}"


def _check_range(labels: Tensor, classes: int) -> None:
    if labels.numel() == 0:
        return
    first = labels if labels.ndim == 1 else labels[:, 0]
    lowest = min(int(first.min()), int(labels.min()) - NO_LABEL if labels.ndim == 2 else 0)
    highest = int(labels.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"labels: expected 0 to {classes - 1} for {classes} classes, got {labels.min()} to {highest}")


def multi_hot(labels: Tensor, classes: int) -> Tensor:
    """Labels `[n]` or `[n, 2]` as float targets `[n, classes]`: one for every class in the picture, zero elsewhere.

    Example:
        >>> import torch, capsroute as cr
        >>> cr.data.multi_hot(torch.tensor([[2, 0], [1, -1]]), classes=3)
        tensor([[1., 0., 1.],
                [0., 1., 0.]])
    """
    # A type that int64 can hold: neither fractions nor yes and no.
    whole = isinstance(labels, Tensor) and labels.dtype != torch.bool and torch.can_cast(labels.dtype, torch.int64)
    if not whole or labels.ndim not in (1, 2) or labels.shape[1:] not in ((), (2,)):
        given = f"{labels.dtype} {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        targets = "; ones among zeros are given as floats" if whole and labels.ndim == 2 else ""
        raise ValueError(f"labels: expected whole numbers [n] or [n, 2], got {given}{targets}")
    check_at_least("classes", classes, 1)
    lowest = NO_LABEL if labels.ndim == 2 else 0
    if can_look(labels) and labels.numel() and not lowest <= int(labels.min()) <= int(labels.max()) < classes:
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels: expected {lowest} to {classes - 1} for {classes} classes, got {found}")
    here = labels[..., None] == torch.arange(classes, device=labels.device)  # [n, classes] or [n, 2, classes]
    return (here if labels.ndim == 1 else here.any(dim=1)).float()


def cut_split(images: ImageSet, split: str, parts: int = 10) -> ImageSet:
    """All `images` for `test` and `train+validation`; else without, or only, the `1 / parts` held out of them."""
    if split in ("test", "train+validation"):
        return images
    rest, held_out = stratified_cut(images.labels, len(images) // parts)
    return images.subset(rest if split == "train" else held_out)


def cut_instance(images: ImageSet, split: str) -> ImageSet:
    """Like `cut_split` for views of toys: the toy with the highest `instance` of each category is held out whole.

    Views of one toy resemble each other so much that held-out views of a training toy would say nothing.
    """
    if split in ("test", "train+validation"):
        return images
    instance = images.metadata["instance"]
    return images.subset((instance == instance.max()) == (split == "validation"))


def stratified_cut(labels: Tensor, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices `(rest, held_out)`: `count` rows are held out, every class in proportion, both in their first order.

    Example:
        >>> import torch
        >>> from capsroute.data.sets import stratified_cut
        >>> rest, held_out = stratified_cut(torch.tensor([0] * 6 + [1] * 3), count=3)
        >>> len(rest), sorted(int(i >= 6) for i in held_out)
        (6, [0, 0, 1])
    """
    classes = labels.numpy()
    names, sizes = np.unique(classes, return_counts=True)
    if not 0 <= count < len(classes):
        raise ValueError(f"count: expected 0 to {len(classes) - 1} held-out rows, got {count}")
    shares = sizes * count / sizes.sum()
    quotas = np.floor(shares).astype(int)
    # What rounding down left goes to the classes that it took most from.
    quotas[np.argsort(quotas - shares, kind="stable")[: count - quotas.sum()]] += 1
    keys = splitmix64(np.arange(len(classes), dtype=np.uint64), whole_seed(seed))
    held = np.zeros(len(classes), dtype=bool)
    for name, quota in zip(names, quotas, strict=True):
        members = np.flatnonzero(classes == name)
        held[members[np.argsort(keys[members], kind="stable")[:quota]]] = True
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))
