"""What the explorer shows: models with their class names, master coefficients and sample images."""

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from capsroute.data import DataError, DataWarning, FetchError, ImageSet
from capsroute.inference import MasterCoefficients
from capsroute.models import ImageModel, load_model, pretrained_weights
from capsroute.models.pretrained import MASTER
from capsroute.pretrained import DEFAULT, pretrained_folder

SAMPLES = 30


@dataclass(frozen=True, eq=False)
class Network:
    """A model on show."""

    title: str
    model: ImageModel
    master: MasterCoefficients | None
    classes: tuple[str, ...]
    samples: Tensor  # uint8 [n, c, h, w]
    labels: tuple[str, ...]  # of the samples
    objects: int = 1  # how many are in an image
    centred: bool = False  # whether drawings are made to look like MNIST

    @property
    def name(self) -> str:
        """The title as a part of an address."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "network"


def load_networks(runs: Sequence[str | os.PathLike[str]] = ()) -> dict[str, Network]:
    """Networks by name: of these runs, or (none given) of every network of images in the package, digits first.

    >>> from capsroute.explorer.network import load_networks
    >>> next(iter(load_networks()))
    'mnist-max-min'
    """
    if runs:
        shown = [load_network(run) for run in runs]
    else:
        tags = sorted((weights.tag for weights in pretrained_weights()), key=lambda tag: (tag != DEFAULT, tag))
        shown = [network for network in map(_of_package, tags) if network is not None]
    named: dict[str, Network] = {}
    for network in shown:
        name, again = network.name, 1
        while name in named:
            again += 1
            name = f"{network.name}-{again}"
        named[name] = network
    return named


def load_network(run: str | os.PathLike[str] | None = None) -> Network:
    """The model of a run folder, of a folder that `cr.save_model` wrote, or (None) the digits' in the package.

    >>> from capsroute.explorer.network import load_network
    >>> network = load_network()
    >>> network.model.input_shape, len(network.classes)
    ((1, 28, 28), 10)
    """
    if run is None:
        return cast(Network, _of_package(DEFAULT))
    folder = Path(run)
    return _of_run(folder) if (folder / "recipe.toml").is_file() else _of_model(folder)


def _of_package(tag: str) -> Network | None:
    """Weights that come along; None where they are of texts, or of anything else that is no image with a class."""
    folder = pretrained_folder(tag)
    model = load_model(folder)
    if not isinstance(model, ImageModel):
        return None
    weights = next(weights for weights in pretrained_weights() if weights.tag == tag)
    network = _of_model(folder, model)
    return replace(network, **_bundled_samples()) if weights.data == "mnist" else network


def _of_model(folder: Path, loaded: object = None) -> Network:
    model = _images_only(load_model(folder) if loaded is None else loaded)
    kept = folder / MASTER
    master = MasterCoefficients.load(kept) if kept.is_file() else None
    samples = torch.zeros(0, *model.input_shape, dtype=torch.uint8)
    return Network(folder.resolve().name, model, master, _classes(model), samples, (), centred=_is_centred(model))


def _of_run(folder: Path) -> Network:
    from capsroute.training import Run

    run = Run(folder)
    model = _images_only(run.model)
    try:
        test = run.test
    except (FetchError, DataError, OSError) as error:
        reason = str(error).partition("; --data")[0]  # an option of other commands
        warnings.warn(f"{folder}: no sample images: {reason}", DataWarning, stacklevel=2)
        return replace(_of_model(run.folder.best), title=run.recipe.name, master=run.master)
    rows = _some_of_each(test)
    images = run.batches(test).images.images[rows]  # type: ignore[attr-defined]
    names = [" + ".join(test.classes[i] for i in row.flatten().tolist() if i >= 0) for row in test.labels[rows]]
    return Network(
        title=run.recipe.name,
        model=model,
        master=run.quick_master(),
        classes=test.classes,
        samples=images,
        labels=tuple(names),
        objects=test.labels.dim(),
        centred=_is_centred(model),
    )


def _classes(model: ImageModel) -> tuple[str, ...]:
    return model.classes or tuple(str(number) for number in range(model.num_classes))


def _is_centred(model: ImageModel) -> bool:
    _, height, width = model.input_shape
    return model.preprocessing.resize == "centre" and height == width


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
    # One of each class in turn; a class may have fewer than its share, or none.
    turns = [torch.stack([row[turn] for row in rows if len(row) > turn]) for turn in range(max(map(len, rows)))]
    return torch.cat(turns)[:SAMPLES]


def _bundled_samples() -> dict:
    with np.load(Path(__file__).with_name("samples") / "mnist.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), stored["labels"]
    return {"samples": images, "labels": tuple(str(label) for label in labels)}
