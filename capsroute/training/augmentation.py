"""Augmentations by name, as `[[data.augment]]` of a recipe lists them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from capsroute.data import augment

__all__ = ["make_augmentation"]

AUGMENTATIONS: dict[str, type] = {
    "shift": augment.Shift,
    "pad_crop": augment.PadCrop,
    "flip": augment.Flip,
    "affine": augment.Affine,
    "elastic": augment.Elastic,
    "cutout": augment.Cutout,
    "mixup": augment.Mixup,
}


def make_augmentation(entries: Sequence[dict[str, Any]]) -> augment.Augmentation | None:
    """The augmentations that `[[data.augment]]` lists, one after the other.

    >>> from capsroute.training.augmentation import make_augmentation
    >>> make_augmentation([{"name": "shift", "pixels": 2}])
    Shift(pixels=2)
    """
    made = []
    for entry in entries:
        options = {key: value for key, value in entry.items() if key != "name"}
        name = entry.get("name")
        if name not in AUGMENTATIONS:
            raise ValueError(f"augment: expected a name of {', '.join(AUGMENTATIONS)}, got {name!r}")
        known = list(inspect.signature(AUGMENTATIONS[name]).parameters)
        if not set(options) <= set(known):
            raise ValueError(f"augment: {name} has {', '.join(known)}, got {', '.join(options)}")
        try:
            made.append(AUGMENTATIONS[name](**options))
        except TypeError:
            raise ValueError(f"augment: {name} needs {', '.join(known)}, got {options}") from None
    if not made:
        return None
    return made[0] if len(made) == 1 else augment.Compose(made)
