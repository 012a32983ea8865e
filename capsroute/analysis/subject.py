"""A run to look into: its model, test images as the model sees them, and its variants with given coefficients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from capsroute.analysis.poses import FACTS, viewpoint_sequences
from capsroute.data import ImageSet
from capsroute.inference import MasterCoefficients, with_coefficients
from capsroute.models import ImageModel
from capsroute.training import Recipe, RunFolder, Splits, load_run, load_splits
from capsroute.training.data import Source, plain_batches
from capsroute.training.evaluation import fast_variant, uniform_variant
from capsroute.training.final import MASTER

__all__ = ["Sample", "Subject", "load_subject"]

EXAMPLES = 5000  # training images that master coefficients are made from where a run left none


class Sample(NamedTuple):
    """Some images of a test set."""

    images: Tensor  # [n, c, h, w], normalised if the run was
    shown: Tensor  # the same in [0, 1]
    labels: Tensor  # [n], or [n, 2]
    parts: Tensor | None  # [n, 2, h, w] in [0, 1]: the two digits that an image is made of, where they are kept


@dataclass(frozen=True, eq=False)
class Subject:
    """What the pictures of a run are made from. Data are loaded when first asked for."""

    folder: RunFolder
    recipe: Recipe
    model: ImageModel  # or one of texts, of which only the training curves are drawn
    beside: tuple[Path, ...] = ()  # other runs, whose training is shown beside this one's
    limit: int | None = None  # averages are over no more images than this

    @property
    def takes_images(self) -> bool:
        return isinstance(self.model, ImageModel)

    @cached_property
    def has_poses(self) -> bool:
        """Whether the model of images has class capsules."""
        with torch.no_grad():
            return self.model(torch.zeros(1, *self.model.input_shape)).poses is not None

    @cached_property
    def splits(self) -> Splits:
        return load_splits(self.recipe)

    @property
    def test(self) -> ImageSet:
        return next(iter(self.splits.test.values()))

    def most(self, count: int, split: str = "test") -> int:
        """`count`, or as many images as there are and as the limit allows."""
        size = len(self.test if split == "test" else self.splits.train)
        return min(count, size, self.limit or count)

    def sample(self, count: int) -> Sample:
        """`count` test images, or `most`, evenly spread over the set: some sets are sorted by class."""
        some = self.test.subset(spread_rows(len(self.test), self.most(count)))
        images, labels = self._prepared(some, self.recipe)
        shown, _ = self._prepared(some, self.recipe.replace(**{"data.normalise": "none"}))
        parts = some.metadata.get("parts")
        return Sample(images, shown, labels, None if parts is None else parts.float() / 255)

    def training_batches(self, count: int) -> Source:
        """`count` training images, or `most`, evenly spread over the set, in batches."""
        some = self.splits.train.subset(spread_rows(len(self.splits.train), self.most(count, "training")))
        return plain_batches(some, self.splits, self.recipe, torch.device("cpu"))

    def test_batches(self, count: int) -> Source:
        """`count` test images, or `most`, evenly spread over the set, in batches."""
        some = self.test.subset(spread_rows(len(self.test), self.most(count)))
        return plain_batches(some, self.splits, self.recipe, torch.device("cpu"))

    @cached_property
    def views(self) -> ImageSet:
        """The test images of every test set, together: some sets are the same toys from other viewpoints."""
        tests = list(self.splits.test.values())
        metadata = {name: torch.cat([test.metadata[name] for test in tests]) for name in FACTS}
        images, labels = torch.cat([test.images for test in tests]), torch.cat([test.labels for test in tests])
        return ImageSet(images, labels, self.test.classes, self.test.name, self.test.split, metadata)

    def seen(self, by: str) -> Tensor:
        """Amounts of `by` that training images have."""
        return self.splits.train.metadata[by].unique()

    def sequences(self, by: str, **fixed: int) -> tuple[Tensor, Tensor]:
        """Test images that differ only in `by` [sequence,step,c,h,w], and its amounts [step]."""
        rows, amounts = viewpoint_sequences(self.views, by, **fixed)
        images, _ = self._prepared(self.views.subset(rows.flatten()), self.recipe)
        return images.unflatten(0, rows.shape), amounts

    def _prepared(self, some: ImageSet, recipe: Recipe) -> tuple[Tensor, Tensor]:
        """Images and labels as the model of this recipe gets them, in one batch."""
        images, labels = zip(*plain_batches(some, self.splits, recipe, torch.device("cpu")))
        return torch.cat(images), torch.cat(labels)

    @cached_property
    def master(self) -> MasterCoefficients | None:
        """Coefficients that the run left, or made now from some training images; None where there can be none."""
        kept = self.folder.path / MASTER
        if kept.is_file():
            return MasterCoefficients.load(kept)
        # Containers are by class, of one label an image; digits that pictures are drawn from are not these pictures.
        if self.test.labels.dim() != 1 or self.recipe.data.fresh:
            return None
        try:
            made = fast_variant(self.model, self.training_batches(EXAMPLES))
        except ValueError:  # of so few images, some class has none
            return None
        return None if made is None else made[1]

    @cached_property
    def variants(self) -> dict[str, ImageModel]:
        """The model with its own routing, with master and with uniform coefficients, as far as there are any."""
        found = {"dynamic": self.model}
        if self.master is not None:
            found["fast"] = with_coefficients(self.model, self.master)
        uniform = uniform_variant(self.model)
        return found if uniform is None else found | {"uniform": cast(ImageModel, uniform)}


def spread_rows(size: int, count: int) -> Tensor:
    """`count` of `size` rows, evenly spread; all of them when there are fewer."""
    count = min(count, size)
    return torch.arange(count) * size // count


def load_subject(
    run: str | os.PathLike[str], beside: Sequence[str | os.PathLike[str]] = (), limit: int | None = None
) -> Subject:
    """A finished run, from its folder."""
    recipe, model = load_run(run)
    return Subject(RunFolder(run), recipe, cast(ImageModel, model.eval()), tuple(map(Path, beside)), limit)
