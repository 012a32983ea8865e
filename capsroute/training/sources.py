"""From a recipe's `[data]` to batches: splits, augmentation by name, normalisation, crops, freshly drawn pictures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from capsroute.data import Batches, GeneratedBatches, ImageSet, dataset_info, load
from capsroute.training.augmentation import make_augmentation
from capsroute.training.recipe import Recipe
from capsroute.training.sections import TextSection
from capsroute.training.text import Encoder, encode_texts
from capsroute.training.text_batches import TextBatches

__all__ = ["Source", "Splits", "load_splits", "model_arguments", "plain_batches", "training_batches"]


class Source(Protocol):
    """What the loop takes batches from: `cr.data.Batches`, or anything that can go on from where it was."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Splits:
    """The images of a run: to train on, to choose the best weights by, and to test on once.

    >>> import capsroute as cr
    >>> splits = cr.training.Splits(cr.data.load("digits"), test={"digits": cr.data.load("digits", "test")})
    >>> len(splits.train), len(splits.test["digits"])
    (1295, 359)
    """

    train: Any
    validation: Any | None = None
    test: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def channels(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of the training images, in [0, 1]."""
        # Counting grey levels is exact, and needs no float copy of the set.
        pixels = self.train.images.transpose(0, 1).flatten(1)
        counts = torch.stack([torch.bincount(channel, minlength=256) for channel in pixels]).double()
        shares, levels = counts / counts.sum(1, keepdim=True), torch.arange(256, device=counts.device) / 255
        mean = (shares * levels).sum(1)
        std = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
        return mean.tolist(), std.clamp_min(1 / 255).tolist()


def load_splits(recipe: Recipe, device: torch.device | str = "cpu") -> Splits:
    """The data set that a recipe names, fetched if need be; sentences are encoded and toys rendered on `device`.

    >>> import capsroute as cr
    >>> len(cr.training.load_splits(cr.training.load_recipe("quickstart")).validation)
    143
    """
    data = recipe.data
    if data.name is None:
        raise ValueError("data.name: the recipe names no data set, and none was given")
    info = dataset_info(data.name)
    drawn_from = info.needs if data.fresh else data.name
    assert drawn_from is not None
    # Fresh pictures are drawn from the digits themselves; the options are those of the generated set.
    options = {} if data.fresh else data.options
    get = partial(_load, torch.device(device))
    train = get(drawn_from, "train" if data.validation else "train+validation", options)
    validation = get(data.name, "validation", _root_options(recipe)) if data.validation else None
    names = data.test or [data.name]
    test = {name: get(name, "test", _root_options(recipe) if name == data.name else {}) for name in names}
    splits = Splits(train, validation, test)
    return splits if recipe.text is None else _encoded(splits, recipe.text, torch.device(device))


def _load(device: torch.device, name: str, split: str, options: dict[str, Any]) -> Any:
    """A split in the host's memory; toys are rendered on the GPU where there is one, many times faster."""
    info = dataset_info(name)
    rendered = info.needs is None and "device" in inspect.signature(info.read).parameters
    if rendered and device.type == "cuda":
        return load(name, split, **{"device": device, **options}).to("cpu")
    return load(name, split, **options)


def _encoded(splits: Splits, settings: TextSection, device: torch.device) -> Splits:
    encoder = Encoder(settings, device)
    validation = None if splits.validation is None else encode_texts(splits.validation, settings, encoder)
    test = {name: encode_texts(texts, settings, encoder) for name, texts in splits.test.items()}
    return Splits(encode_texts(splits.train, settings, encoder), validation, test)


def _root_options(recipe: Recipe) -> dict[str, Any]:
    """Options for held-out data: sentences are judged whole, whatever they were trained on (003, section 4.2)."""
    return {key: value for key, value in recipe.data.options.items() if key != "phrases"}


def training_batches(
    splits: Splits, recipe: Recipe, device: torch.device, rank: int = 0, world_size: int = 1
) -> Source:
    """Shuffled, augmented batches; process `rank` gets its share of each."""
    size = min(recipe.training.batch_size, len(splits.train))
    if size % world_size:
        raise ValueError(f"training.batch_size: {world_size} processes cannot share batches of {size} evenly")
    options: dict[str, Any] = {
        "seed": recipe.training.seed,
        "device": device,
        "rank": rank,
        "world_size": world_size,
        "drop_last": True,
    }
    if recipe.text is not None:
        return TextBatches(splits.train, size, mixup=recipe.text.mixup, by_length=recipe.text.by_length, **options)
    options |= {
        "augment": make_augmentation(recipe.data.augment),
        "normalise": _normalisation(splits, recipe),
        "extras": ("parts",) if recipe.data.parts else (),
    }
    if recipe.data.fresh:
        assert recipe.data.name is not None
        return GeneratedBatches(recipe.data.name, splits.train, size, **options)
    return Batches(splits.train, size, **options)


def plain_batches(images: Any, splits: Splits, recipe: Recipe, device: torch.device, **share: Any) -> Source:
    """Batches to evaluate on: in order, cropped at the centre, never augmented."""
    size = min(recipe.evaluation.batch_size, len(images))
    if recipe.text is not None:
        return TextBatches(images, size, shuffle=False, device=device, **share)
    if recipe.data.test_crop:
        images = centre_crop(images, recipe.data.test_crop)
    normalise = _normalisation(splits, recipe)
    return Batches(images, size, shuffle=False, device=device, normalise=normalise, **share)


def model_arguments(splits: Splits, recipe: Recipe) -> dict[str, Any]:
    """What `create_model` is given: sizes that follow from the data, unless the recipe says otherwise."""
    if recipe.text is not None:
        depth, width = splits.train.shape
        sizes = {"depth": depth, "width": width, "num_classes": len(splits.train.classes)}
        return {**sizes, **recipe.model.arguments}
    # Pictures that are drawn anew while training have other sizes than the digits they are drawn from.
    images = next((held_out for held_out in (splits.validation, *splits.test.values()) if held_out is not None), None)
    channels, height, width = (splits.train if images is None else images).shape
    if recipe.data.test_crop:
        height = width = recipe.data.test_crop
    sizes = {
        "in_channels": channels,
        "image_size": height if height == width else [height, width],
        "num_classes": len(splits.train.classes),
    }
    return {**sizes, **recipe.model.arguments}


def centre_crop(images: ImageSet, size: int) -> ImageSet:
    """The middle `size` x `size` pixels of every image.

    >>> import capsroute as cr
    >>> from capsroute.training.sources import centre_crop
    >>> centre_crop(cr.data.load("digits"), 6).shape
    (1, 6, 6)
    """
    _, height, width = images.shape
    if size > min(height, width):
        raise ValueError(f"test_crop: expected at most {min(height, width)}, got {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return replace(images, images=images.images[:, :, top : top + size, left : left + size].contiguous())


def _normalisation(splits: Splits, recipe: Recipe) -> tuple[list[float], list[float]] | None:
    return splits.channels if recipe.data.normalise == "channels" else None
