"""Cutting validation data from training data: stratified, exact in number, and the same for ever on every machine."""

import numpy as np
import torch
from torch import Tensor

from capsroute.data.sets import ImageSet

SPLITS = ("train", "validation", "test", "train+validation")


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
        >>> from capsroute.data.splits import stratified_cut
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
    keys = splitmix64(np.arange(len(classes), dtype=np.uint64), seed)
    held = np.zeros(len(classes), dtype=bool)
    for name, quota in zip(names, quotas, strict=True):
        members = np.flatnonzero(classes == name)
        held[members[np.argsort(keys[members], kind="stable")[:quota]]] = True
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def splitmix64(values: np.ndarray, seed: int) -> np.ndarray:
    """A fixed hash of 64-bit numbers: unlike a library's shuffle, no new version of anything will change it."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
