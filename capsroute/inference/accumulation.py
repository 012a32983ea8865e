"""Master coefficients accumulated over training data (Zhao et al. 2019, section 5 and appendix A).

    1. summation             every example's coefficients are added to the container of its class
    2. normalisation         containers are divided by class frequency, then normalised row by row over parents
    3. dimension reduction   column j of container j becomes column j of the master matrix

Layers below the class layer have no ground-truth column: there one container takes every example, and its normalised
mean is the master matrix. The positions of a convolutional layer share coefficients, so they are averaged first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsroute.inference.coefficients import (
    MasterCoefficients,
    class_layer,
    coefficients_shape,
    layers_for_coefficients,
)
from capsroute.inference.collect import Observed, collect
from capsroute.inference.distributed_sums import sum_over_processes
from capsroute.inference.filters import Examples, Filter, make_filter
from capsroute.layers import RoutedLayer
from capsroute.naming import check_one_of

COLUMNS = ("all", "ground_truth")
NORMALISE = ("routing", "none")


def accumulate(
    model: nn.Module,
    batches: Iterable,
    num_classes: int | None = None,
    iteration: int | None = None,
    filter: str | dict | Filter | None = None,
    columns: str = "all",
    normalise: str = "routing",
    layers: list[str] | None = None,
) -> MasterCoefficients:
    """Run a trained network over training data and average its coefficients into one matrix per layer.

    Sums are kept, never the matrices. Under torch.distributed each process gives its share of the data (as
    `cr.data.Batches` does), and the sums meet in one all-reduce.

    Args:
        model: a trained model.
        batches: an iterable of `(images [b,c,h,w], labels [b])`, or a `cr.data.ImageSet`. A filter that is fitted
            goes through it more than once.
        num_classes: None: as many as the model has.
        iteration: which routing iteration's coefficients, counted from 1; None for the last (the paper's choice).
        filter: which examples count: None, a name, `{"name": ..., option: value}` or a `Filter`.
        columns: "all" normalises whole containers and then takes their ground-truth columns; "ground_truth" takes them
            first and normalises the matrix they make, which the paper says is worse (appendix A, step 4).
        normalise: "routing": max-min for max-min routing, softmax for dynamic routing; "none": the mean as it is.
        layers: names of routed layers; None for all.

    Example:
        >>> import torch, capsroute as cr
        >>> _ = torch.manual_seed(0)
        >>> model = cr.create_model("capsnet_small", image_size=8, routing="max_min")  # train it first
        >>> master = cr.inference.accumulate(model, cr.data.load("digits"))
        >>> master["class_capsules"].shape, int(master.counts.sum())
        (torch.Size([32, 10]), 1295)
    """
    check_one_of("columns", columns, COLUMNS)
    check_one_of("normalise", normalise, NORMALISE)
    chosen = layers_for_coefficients(model, layers)
    if not chosen:
        raise ValueError("layers: expected at least one name, or None for all, got none")
    declared = {name: str(layer.routing.declared("container_rows")) for name, layer in chosen.items()}
    rows = declared if normalise == "routing" else dict.fromkeys(chosen, "none")
    if num_classes is None and not hasattr(model, "num_classes"):
        raise ValueError(f"num_classes: expected how many, as {type(model).__name__} has no num_classes, got None")
    classes = int(model.num_classes) if num_classes is None else num_classes  # type: ignore[arg-type]
    top = class_layer(model, classes)
    top = top if top in chosen else None
    chooser = make_filter(filter)
    _check_filter(chooser, batches, top)

    def observe() -> Iterator[Observed]:
        return collect(model, batches, classes, iteration, list(chosen))

    if chooser.needs_fit:
        chooser.fit(lambda: (_examples(observed, top) for observed in observe()), classes)
    totals = _Totals.empty(chosen, top, classes)
    for observed in observe():
        totals.add(observed, chooser.keep(_examples(observed, top)), top)
    totals.reduce()
    check_examples(totals.seen, totals.kept, chooser.name, every_class=top is not None)
    warn_if_untrained(totals.seen, totals.correct)
    matrices = {
        name: _reduced(name, totals.means(name), layer, rows[name], first_columns=columns == "ground_truth")
        for name, layer in chosen.items()
    }
    how = {
        "model": getattr(model, "name", type(model).__name__),
        "iteration": "last" if iteration is None else iteration,
        "filter": chooser.config(),
        "columns": columns,
        "normalisation": rows,
        "examples": int(totals.seen.sum()),
        "accuracy": float(totals.correct / totals.seen.sum()),
    }
    return MasterCoefficients(matrices, totals.kept.long(), how)


@dataclass
class _Totals:
    """Everything that is summed over the data."""

    containers: dict[str, Containers]
    seen: Tensor  # [classes], examples
    kept: Tensor  # [classes], examples that the filter let through
    correct: Tensor  # [1], examples classified correctly

    @classmethod
    def empty(cls, layers: dict[str, RoutedLayer], top: str | None, classes: int) -> _Totals:
        containers = {
            name: Containers(classes if name == top else 1, *coefficients_shape(layer), layer.W.device)
            for name, layer in layers.items()
        }
        zeros = next(iter(containers.values())).sums.new_zeros
        return cls(containers, zeros(classes), zeros(classes), zeros(1))

    def add(self, observed: Observed, keep: Tensor, top: str | None) -> None:
        keep = keep.to(observed.labels.device)
        labels = observed.labels[keep]
        for name, container in self.containers.items():
            container.add(observed.coefficients[name][keep], labels if name == top else torch.zeros_like(labels))
        count, device = len(self.seen), self.seen.device
        self.seen += torch.bincount(observed.labels, minlength=count).to(device)
        self.kept += torch.bincount(labels, minlength=count).to(device)
        self.correct += (observed.scores.argmax(1) == observed.labels).sum().to(device)

    def reduce(self) -> None:
        """The totals of all processes: one all-reduce."""
        sums = [container.sums for container in self.containers.values()]
        *sums, self.seen, self.kept, self.correct = sum_over_processes([*sums, self.seen, self.kept, self.correct])
        for container, total in zip(self.containers.values(), sums):
            container.sums = total

    def means(self, name: str) -> Tensor:
        """Containers divided by the number of examples in each [groups,i,j]."""
        sums = self.containers[name].sums
        counts = self.kept if len(sums) == len(self.kept) else self.kept.sum()[None]
        return sums / counts[:, None, None]


def _reduced(name: str, means: Tensor, layer: RoutedLayer, rows: str, first_columns: bool) -> Tensor:
    """One matrix [i,j] from the means of all groups [groups,i,j]; `first_columns` reduces before it normalises."""
    check_finite(name, means)
    warn_if_equal(name, means)
    if len(means) > 1 and first_columns:
        means = ground_truth_columns(means)[None]
    normalised = means if rows == "none" else layer.routing.normalise_rows(means)
    return normalised[0] if len(normalised) == 1 else ground_truth_columns(normalised).contiguous()


def _examples(observed: Observed, top: str | None) -> Examples:
    """What filters see: ground-truth columns in float64."""
    device = sums_device(observed.labels.device)
    columns = torch.zeros(len(observed.labels), 0) if top is None else observed.own_columns(top)  # [b, i]
    return Examples(columns.to(device, torch.float64), observed.scores.to(device), observed.labels.to(device))


def _check_filter(chooser: Filter, batches: Iterable, top: str | None) -> None:
    if chooser.needs_columns and top is None:
        raise ValueError(
            f"filter: {chooser.name!r} compares ground-truth columns; no layer here has the classes as parents"
        )
    if chooser.needs_fit and isinstance(batches, Iterator):
        raise ValueError(f"filter: {chooser.name!r} goes through batches more than once, got a one-way iterator")


def sums_device(device: torch.device | str) -> torch.device:
    """Where float64 sums can be kept: Apple's GPUs have no float64, so for them on the CPU."""
    device = torch.device(device)
    return torch.device("cpu") if device.type == "mps" else device


class Containers:
    """Sums [groups, i, j] of coefficient matrices, in float64 so that 60,000 float32 matrices lose nothing.

    >>> import torch
    >>> from capsroute.inference.accumulation import Containers
    >>> containers = Containers(groups=2, children=3, parents=2)
    >>> containers.add(torch.ones(4, 3, 2), torch.tensor([0, 1, 1, 1]))
    >>> containers.sums[:, 0, 0].tolist()
    [1.0, 3.0]
    """

    def __init__(self, groups: int, children: int, parents: int, device: torch.device | str = "cpu"):
        self.sums = torch.zeros(groups, children, parents, dtype=torch.float64, device=sums_device(device))

    def add(self, coefficients: Tensor, groups: Tensor) -> None:
        """Matrices [b,i,j], or [b,h',w',i,j] averaged over positions, into the containers groups [b]."""
        coefficients = coefficients.to(self.sums.device)
        if coefficients.dim() == 5:
            coefficients = coefficients.mean((1, 2), dtype=torch.float64)
        self.sums.index_add_(0, groups.to(self.sums.device), coefficients.to(torch.float64))


def ground_truth_columns(containers: Tensor) -> Tensor:
    """Column j of container j as column j of one matrix: [j,i,j] -> [i,j].

    >>> import torch
    >>> from capsroute.inference.accumulation import ground_truth_columns
    >>> ground_truth_columns(torch.tensor([[[1, 2]], [[3, 4]]]))
    tensor([[1, 4]])
    """
    return containers.diagonal(dim1=0, dim2=2)


def check_examples(seen: Tensor, kept: Tensor, filter_name: str, every_class: bool) -> None:
    """There are examples (of every class, where columns belong to classes), also after filtering."""
    if not every_class:
        seen, kept = seen.sum()[None], kept.sum()[None]
    absent, emptied = ((counts == 0).nonzero().flatten().tolist() for counts in (seen, kept))
    if not bool(seen.any()):
        raise ValueError("batches: expected examples, got none")
    if absent:
        raise ValueError(f"batches: expected examples of every class, got none of {_name(absent)}")
    if emptied:
        which = f" of {_name(emptied)}; its column would be undefined" if every_class else ""
        raise ValueError(f"filter: {filter_name!r} removed every example{which}")


def check_finite(layer: str, means: Tensor) -> None:
    """No NaN or infinity got into the sums."""
    if not bool(torch.isfinite(means).all()):
        raise ValueError(f"model: layer {layer!r} gave coefficients that are NaN or infinite; look at its weights")


def warn_if_equal(layer: str, means: Tensor) -> None:
    """Say so when no child prefers any parent: fast routing would be uniform routing."""
    spread = means.amax(2) - means.amin(2)  # [g, i]
    if means.shape[2] > 1 and bool((spread <= 1e-6 * means.abs().amax(2)).all()):
        warnings.warn(
            f"layer {layer!r}: the coefficients of every child are equal, so fast routing is uniform routing. Has the "
            "network been trained? (The first iteration is always uniform.)",
            stacklevel=3,
        )


def warn_if_untrained(seen: Tensor, correct: Tensor) -> None:
    """Say so when the network classifies no better than the most frequent class would, within three deviations."""
    examples = float(seen.sum())
    chance = float(seen.max()) / examples
    if chance < 1 and float(correct) / examples <= chance + 3 * math.sqrt(chance * (1 - chance) / examples):
        warnings.warn(
            f"the network classifies {float(correct) / examples:.1%} of these {examples:.0f} examples correctly, no "
            f"better than chance ({chance:.1%}). Has it been trained?",
            stacklevel=3,
        )


def _name(classes: list[int]) -> str:
    return f"class {classes[0]}" if len(classes) == 1 else f"classes {', '.join(map(str, classes))}"
