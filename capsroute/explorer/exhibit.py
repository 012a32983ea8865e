"""What the explorer shows: a model, its twin with master coefficients, class names and sample images."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from capsroute.data import DataError, FetchError, ImageSet
from capsroute.inference import MasterCoefficients, with_coefficients
from capsroute.models import ImageModel, load_model
from capsroute.pretrained import pretrained_folder

__all__ = ["Exhibit", "load_exhibit"]

SAMPLES = 30
# Sets whose digits are centred in a box of 20 pixels; drawings are made to look like them.
CENTRED = ("mnist",)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A model on show."""

    title: str
    model: ImageModel
    fast: ImageModel | None  # with master coefficients
    classes: tuple[str, ...]
    samples: Tensor  # uint8 [n, c, h, w]
    labels: tuple[str, ...]  # of the samples
    objects: int = 1  # how many are in an image
    centred: bool = False  # whether drawings are made to look like MNIST
    normalise: tuple[Tensor, Tensor] | None = None  # mean and std of the channels


def load_exhibit(run: str | os.PathLike[str] | None = None) -> Exhibit:
    """The model of a run folder, of a folder that `cr.save_model` wrote, or (None) the one in the package.

    >>> from capsroute.explorer.exhibit import load_exhibit
    >>> exhibit = load_exhibit()
    >>> exhibit.model.input_shape, len(exhibit.classes)
    ((1, 28, 28), 10)
    """
    folder = pretrained_folder() if run is None else Path(run)
    if (folder / "recipe.toml").is_file():
        return _of_run(folder)
    exhibit = _of_model(folder)
    return exhibit if run is not None else replace(exhibit, centred=True, **_bundled_samples())


def _of_model(folder: Path) -> Exhibit:
    model = _images_only(load_model(folder))
    kept = folder / "master.safetensors"
    fast = with_coefficients(model, MasterCoefficients.load(kept)) if kept.is_file() else None
    classes = tuple(str(number) for number in range(model.num_classes))
    samples = torch.zeros(0, *model.input_shape, dtype=torch.uint8)
    return Exhibit(folder.name, model, fast, classes, samples, ())


def _of_run(folder: Path) -> Exhibit:
    from capsroute.training import Run
    from capsroute.training.data import plain_batches

    subject = Run(folder)
    model = _images_only(subject.model)
    try:
        test = subject.test
    except (FetchError, DataError, OSError):
        return replace(_of_model(subject.folder.best), title=subject.recipe.name)
    batches = plain_batches(test, subject.splits, subject.recipe, torch.device("cpu"))
    rows = _some_of_each(test)
    images = batches.images.images[rows]  # type: ignore[attr-defined]
    names = [" + ".join(test.classes[i] for i in row.flatten().tolist() if i >= 0) for row in test.labels[rows]]
    return Exhibit(
        title=subject.recipe.name,
        model=model,
        fast=None if subject.quick_master() is None else subject.variants()["fast"],
        classes=test.classes,
        samples=images,
        labels=tuple(names),
        objects=test.labels.dim(),
        centred=subject.recipe.data.name in CENTRED,
        normalise=batches.normalise,  # type: ignore[attr-defined]
    )


def _images_only(model: object) -> ImageModel:
    if not isinstance(model, ImageModel):
        raise ValueError(f"run: expected a model of images, got {type(model).__name__}")
    return cast(ImageModel, model.eval())


def _some_of_each(images: ImageSet) -> Tensor:
    """The first images of each class, as many as are shown, in their order."""
    if images.labels.dim() == 2:
        return torch.arange(min(SAMPLES, len(images)))
    each = max(1, SAMPLES // len(images.classes))
    rows = [(images.labels == label).nonzero().flatten()[:each] for label in range(len(images.classes))]
    return torch.stack([row for row in rows if len(row) == each], 1).flatten()[:SAMPLES]


def _bundled_samples() -> dict:
    with np.load(Path(__file__).with_name("samples") / "mnist.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), stored["labels"]
    return {"samples": images, "labels": tuple(str(label) for label in labels)}
