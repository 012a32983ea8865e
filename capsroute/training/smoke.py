"""Trying a recipe: a few steps on generated data shaped like the real set, before anything is fetched."""

from typing import Any

import torch

from capsroute.data import DatasetInfo, ImageSet, dataset_info
from capsroute.data.seeding import generator_at
from capsroute.training.data import Splits
from capsroute.training.recipe import Recipe
from capsroute.training.text import HiddenStates

IMAGES, STEPS, BATCH = 8, 2, 4
DEPTH, WIDTH = 3, 16  # of hidden states that no encoder was asked for


def smoke_recipe(recipe: Recipe) -> Recipe:
    """The recipe cut down to two steps of four images.

    >>> import capsroute as cr
    >>> from capsroute.training.smoke import smoke_recipe
    >>> smoke_recipe(cr.training.load_recipe("quickstart")).training.max_steps
    2
    """
    changes: dict[str, Any] = {
        "smoke": True,
        "training.epochs": 1,
        "training.batch_size": BATCH,
        "training.accumulate": min(recipe.training.accumulate, 2),
        "training.max_steps": STEPS,
        "training.threads": 1,
        "evaluation.batch_size": BATCH,
        "evaluation.pictures": False,
        "evaluation.speed_seconds": 0.0,
        "logging.tensorboard": False,
    }
    if not torch.cuda.is_available():
        precision = "bf16" if recipe.training.precision in ("bf16", "fp16") else "fp32"
        changes |= {"training.precision": precision, "training.compile": False, "training.cuda_graphs": False}
    return recipe.replace(**changes)


def smoke_splits(recipe: Recipe) -> Splits:
    """Noise in the shape of the recipe's data sets, every class among the labels to train on.

    >>> import capsroute as cr
    >>> from capsroute.training.smoke import smoke_splits
    >>> smoke_splits(cr.training.load_recipe("quickstart")).train.shape
    (1, 8, 8)
    """
    data = recipe.data
    info = _like_own_images(recipe) if data.name is None else dataset_info(data.name)
    if recipe.text is not None:
        classes = info.classes[: data.options.get("classes", len(info.classes))]
        return Splits(_texts(classes, 0), _texts(classes, 1), {info.name: _texts(classes, 2)})
    source = dataset_info(info.needs) if data.fresh and info.needs else info
    tests = [dataset_info(name) for name in data.test] or [info]
    test = {tested.name: _images(tested, "test") for tested in tests}
    return Splits(_images(source, "train"), _images(info, "validation") if data.validation else None, test)


def _like_own_images(recipe: Recipe) -> DatasetInfo:
    """Shape and classes of a user's own images as far as the recipe says them, else small ones of three classes."""
    data = recipe.data
    shape = (data.channels or 3, *(data.image_size or (32, 32)))
    classes = tuple(data.classes or "abc")
    return DatasetInfo("images", "", classes, shape, {}, "", "", read=lambda *_: None)


def _images(info: DatasetInfo, split: str) -> ImageSet:
    count = max(IMAGES, len(info.classes)) if split == "train" else IMAGES
    generator = generator_at(0, info.name, split)
    images = torch.randint(256, (count, *info.shape), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % len(info.classes)
    if "multimnist" in info.name:
        labels = torch.stack([labels, (labels + 1) % len(info.classes)], dim=1)
    return ImageSet(images, labels, info.classes, info.name, split)


def _texts(classes: tuple[str, ...], place: int) -> HiddenStates:
    generator = generator_at(0, "texts", place)
    lengths = torch.randint(1, 6, (max(IMAGES, len(classes)),), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    states = torch.randn(int(offsets[-1]), DEPTH, WIDTH, generator=generator)
    return HiddenStates(states, offsets, torch.arange(len(lengths)) % len(classes), classes)
