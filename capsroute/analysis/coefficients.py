"""What master coefficients rest on: how alike routing coefficients are within and between classes, and what class
probabilities become with given coefficients (000, figures 2, 3, 5, 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from capsroute.analysis.named import Named
from capsroute.inference import MasterCoefficients, class_layer, collect
from capsroute.inference.collect import as_batches, evaluating
from capsroute.inference.filters.similarity import standardised

__all__ = [
    "ClassCorrelations",
    "ClassProbabilities",
    "GroundTruthCorrelations",
    "MasterCorrelations",
    "TuningCurves",
    "class_correlations",
    "class_probabilities",
    "gt_column_correlations",
    "master_correlations",
    "tuning_curves",
]


@dataclass(frozen=True, eq=False)
class GroundTruthCorrelations(Named):
    """Correlations between the ground-truth columns of images (figure 2)."""

    axes: ClassVar = {"correlations": ("image", "other"), "labels": ("image",)}
    correlations: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class ClassCorrelations(Named):
    """Mean correlation between the ground-truth columns of two different images of two classes (figure 3)."""

    axes: ClassVar = {"correlations": ("class", "other"), "counts": ("class",)}
    correlations: Tensor
    counts: Tensor  # images of each class


@dataclass(frozen=True, eq=False)
class MasterCorrelations(Named):
    """Mean correlation of each master column with the ground-truth columns of the images of each class (figure 5)."""

    axes: ClassVar = {"correlations": ("column", "class"), "counts": ("class",)}
    correlations: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class ClassProbabilities(Named):
    """Class probabilities of the same images under several routings (figure 6)."""

    axes: ClassVar = {"probabilities": ("routing", "image", "class"), "labels": ("image",)}
    probabilities: Tensor
    labels: Tensor
    routings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TuningCurves(Named):
    """Class probabilities averaged over the images of each class, under several routings (figure 7)."""

    axes: ClassVar = {"probabilities": ("routing", "label", "class"), "counts": ("label",)}
    probabilities: Tensor
    counts: Tensor
    routings: tuple[str, ...]


def gt_column_correlations(model: nn.Module, batches: Iterable, count: int = 100) -> GroundTruthCorrelations:
    """Correlate the ground-truth columns of the first `count` images with each other (000, figure 2).

    batches: `(images [b,c,h,w], labels [b])`, or a `cr.data.ImageSet`.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> cr.analysis.gt_column_correlations(model, cr.data.load("digits"), count=20).correlations.shape
    torch.Size([20, 20])
    """
    layer, columns, labels, found = _class_layer(model), [], [], 0
    for observed in collect(model, batches, layers=[layer]):
        columns.append(standardised(observed.own_columns(layer).cpu().double()))
        labels.append(observed.labels.cpu())
        found += len(observed.labels)
        if found >= count:
            break
    rows = torch.cat(columns)[:count]
    return GroundTruthCorrelations(rows @ rows.T, torch.cat(labels)[:count])


def class_correlations(model: nn.Module, batches: Iterable) -> ClassCorrelations:
    """Average the correlations between images of each two classes, over all pairs of different images (figure 3).

    Columns of mean 0 and length 1 have their correlation as dot product, so the mean over all pairs needs only the sum
    of each class: 60,000 images take one pass and no pair is ever looked at.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> cr.analysis.class_correlations(model, cr.data.load("digits")).correlations.shape
    torch.Size([10, 10])
    """
    sums, squares, counts = _class_sums(model, batches, least=2)
    pairs = counts[:, None] * counts[None, :] - torch.diag(counts)  # an image is not paired with itself
    totals = sums @ sums.T - torch.diag(squares)
    return ClassCorrelations(totals / pairs, counts.long())


def master_correlations(model: nn.Module, master: MasterCoefficients, batches: Iterable) -> MasterCorrelations:
    """Correlate every master column with the ground-truth columns of all images, averaged by class (figure 5).

    >>> import capsroute as cr
    >>> model, digits = cr.create_model("capsnet_small", image_size=8), cr.data.load("digits")
    >>> master = cr.inference.accumulate(model, digits)
    >>> cr.analysis.master_correlations(model, master, digits).correlations.shape
    torch.Size([10, 10])
    """
    columns = standardised(master[_class_layer(model)].cpu().double().T)  # [j, i]
    sums, _, counts = _class_sums(model, batches)
    return MasterCorrelations(columns @ (sums / counts[:, None]).T, counts.long())


def class_probabilities(models: Mapping[str, nn.Module], images: Tensor, labels: Tensor) -> ClassProbabilities:
    """What each model says about images [b,c,h,w]; models are those of the routings to compare (figure 6).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> models = {"dynamic": model, "uniform": cr.inference.with_coefficients(model, "uniform")}
    >>> cr.analysis.class_probabilities(models, torch.rand(5, 1, 8, 8), torch.arange(5)).probabilities.shape
    torch.Size([2, 5, 10])
    """
    found = torch.stack([_probabilities(model, images).cpu() for model in models.values()])
    return ClassProbabilities(found, labels.cpu(), tuple(models))


def tuning_curves(models: Mapping[str, nn.Module], batches: Iterable) -> TuningCurves:
    """Average class probabilities over the images of each class, for each model (figure 7).

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> curves = cr.analysis.tuning_curves({"dynamic": model}, cr.data.load("digits", "test"))
    >>> curves.probabilities.shape, int(curves.counts.sum())
    (torch.Size([1, 10, 10]), 359)
    """
    classes = int(next(iter(models.values())).num_classes)  # type: ignore[arg-type]
    sums, counts = torch.zeros(len(models), classes, classes, dtype=torch.float64), torch.zeros(classes).long()
    for images, labels, *_ in as_batches(batches):
        labels = labels.cpu()
        counts += torch.bincount(labels, minlength=classes)
        for row, model in enumerate(models.values()):
            sums[row].index_add_(0, labels, _probabilities(model, images).cpu().double())
    _check_counts(counts)
    return TuningCurves(sums / counts[:, None], counts, tuple(models))


def _class_sums(model: nn.Module, batches: Iterable, least: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Of standardised ground-truth columns, by class: their sums [classes,i], summed squared lengths, and number."""
    layer, classes = _class_layer(model), int(model.num_classes)  # type: ignore[arg-type]
    sums, squares = torch.zeros(classes, 0, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    counts = torch.zeros(classes, dtype=torch.float64)
    for observed in collect(model, batches, layers=[layer]):
        columns, labels = standardised(observed.own_columns(layer).cpu().double()), observed.labels.cpu()
        sums = sums if sums.numel() else sums.new_zeros(classes, columns.shape[1])
        sums.index_add_(0, labels, columns)
        squares.index_add_(0, labels, columns.square().sum(1))
        counts += torch.bincount(labels, minlength=classes)
    _check_counts(counts, least)
    return sums, squares, counts


def _check_counts(counts: Tensor, least: int = 1) -> None:
    few = (counts < least).nonzero().flatten().tolist()
    if few:
        which = f"{'class' if len(few) == 1 else 'classes'} {', '.join(map(str, few))}"
        raise ValueError(f"batches: expected at least {least} images of every class, got fewer of {which}")


def _class_layer(model: nn.Module) -> str:
    name = class_layer(model, int(model.num_classes))  # type: ignore[arg-type]
    if name is None:
        raise ValueError("model: expected a last routed layer with the classes as parents; it has no such columns")
    return name


def _probabilities(model: nn.Module, images: Tensor) -> Tensor:
    """Scores [b,classes] as probabilities: lengths are such already, logits become so by softmax."""
    with evaluating(model), torch.no_grad():
        scores = model(images.to(next(model.parameters()).device)).scores
    return scores.softmax(1) if model.score_kind == "logit" else scores
