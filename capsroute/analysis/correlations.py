"""What master coefficients rest on: how alike routing coefficients are within and between classes (Zhao et al. 2019,
figures 2, 3 and 5)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.analysis.figures import Made, Named, Run, along, has_columns, has_master, run_figure, takes_images
from capsroute.analysis.style import (
    HEAT,
    Axes,
    AxesImage,
    Figure,
    colour_bar,
    drawing,
    grid,
    name_of,
    picture,
    short_names,
)
from capsroute.inference import MasterCoefficients, class_layer, collect
from capsroute.inference.filters import standardised
from capsroute.routing.checks import check_at_least


@dataclass(frozen=True, eq=False)
class GroundTruthCorrelations(Named):
    """Correlations between the ground-truth columns of images (figure 2)."""

    correlations: Tensor = field(metadata=along("image, other"))
    labels: Tensor = field(metadata=along("image"))


@dataclass(frozen=True, eq=False)
class ClassCorrelations(Named):
    """Mean correlation between the ground-truth columns of two different images of two classes (figure 3)."""

    correlations: Tensor = field(metadata=along("class, other"))
    counts: Tensor = field(metadata=along("class"))  # images of each class


@dataclass(frozen=True, eq=False)
class MasterCorrelations(Named):
    """Mean correlation of each master column with the ground-truth columns of the images of each class (figure 5)."""

    correlations: Tensor = field(metadata=along("column, class"))
    counts: Tensor = field(metadata=along("class"))


def gt_column_correlations(model: nn.Module, batches: Iterable, count: int = 100) -> GroundTruthCorrelations:
    """Correlate the ground-truth columns of the first `count` images with each other (Zhao et al. 2019, figure 2).

    batches: `(images [b,c,h,w], labels [b])`, or a `cr.data.ImageSet`.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> cr.analysis.gt_column_correlations(model, cr.data.load("digits"), count=20).correlations.shape
    torch.Size([20, 20])
    """
    check_at_least("count", count, 1)
    layer, columns, labels, found = _class_layer(model), [], [], 0
    for observed in collect(model, batches, layers=[layer]):
        columns.append(standardised(observed.own_columns(layer).cpu().double()))
        labels.append(observed.labels.cpu())
        found += len(observed.labels)
        if found >= count:
            break
    if not found:
        raise ValueError("batches: expected at least one image, got none")
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


def _class_sums(model: nn.Module, batches: Iterable, least: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Of standardised ground-truth columns, by class: their sums [classes,i], summed squared lengths, and number."""
    layer, classes = _class_layer(model), int(model.num_classes)  # type: ignore[arg-type]
    sums, squares, counts = torch.zeros(classes, 1), torch.zeros(classes), torch.zeros(classes).double()
    for observed in collect(model, batches, layers=[layer]):
        columns = standardised(observed.own_columns(layer).cpu().double())
        of_class = F.one_hot(observed.labels.cpu(), classes).double().T  # [classes, b]
        sums, squares = sums + of_class @ columns, squares + of_class @ columns.square().sum(1)
        counts = counts + of_class.sum(1)
    check_counts(counts, least)
    return sums, squares, counts


def check_counts(counts: Tensor, least: int = 1) -> None:
    few = (counts < least).nonzero().flatten().tolist()
    if few:
        which = f"{'class' if len(few) == 1 else 'classes'} {', '.join(map(str, few))}"
        raise ValueError(f"batches: expected at least {least} images of every class, got fewer of {which}")


def _class_layer(model: nn.Module) -> str:
    name = class_layer(model, int(model.num_classes))  # type: ignore[arg-type]
    if name is None:
        raise ValueError("model: expected a last routed layer with the classes as parents; it has no such columns")
    return name


@drawing
def draw_gt_column_correlations(numbers: GroundTruthCorrelations, classes: Sequence[str] | None = None) -> Figure:
    """Correlations between images, which are sorted by class; half of them, as they are symmetric (figure 2).

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.gt_column_correlations(model, cr.data.load("digits"), count=20)
    >>> figure = cr.analysis.draw_gt_column_correlations(numbers)
    """
    order = numbers.labels.argsort(stable=True)
    figure = picture(4.2, 3.6)
    ((axes,),) = grid(figure, 1, 1)
    drawn = _matrix(axes, _lower_half(numbers.correlations[order][:, order]))
    present, counts = numbers.labels[order].unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    names = [name_of(int(label), classes) for label in present]
    for end in ends[:-1].tolist():
        axes.plot([-0.5, end - 0.5], [end - 0.5, end - 0.5], color="white", linewidth=0.5)
        axes.plot([end - 0.5, end - 0.5], [end - 0.5, len(order) - 0.5], color="white", linewidth=0.5)
    middles = (ends - counts / 2 - 0.5).tolist()
    axes.set_xticks(middles, names, rotation=0 if short_names(classes) else 90)
    axes.set_yticks(middles, names)
    axes.set(xlabel="class of image", ylabel="class of image")
    colour_bar(figure, drawn, axes, "correlation of coefficients")
    return figure


@drawing
def draw_class_correlations(numbers: ClassCorrelations, classes: Sequence[str] | None = None) -> Figure:
    """Mean correlation within and between classes; half of it, as it is symmetric (figure 3).

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.class_correlations(model, cr.data.load("digits"))
    >>> figure = cr.analysis.draw_class_correlations(numbers)
    """
    return _by_class(_lower_half(numbers.correlations), "class", "class", classes)


@drawing
def draw_master_correlations(numbers: MasterCorrelations, classes: Sequence[str] | None = None) -> Figure:
    """Mean correlation of master columns with the images of each class (figure 5).

    >>> import capsroute as cr
    >>> model, digits = cr.create_model("capsnet_small", image_size=8), cr.data.load("digits")
    >>> numbers = cr.analysis.master_correlations(model, cr.inference.accumulate(model, digits), digits)
    >>> figure = cr.analysis.draw_master_correlations(numbers)
    """
    return _by_class(numbers.correlations, "master column", "class of images", classes)


def _by_class(matrix: Tensor, vertical: str, horizontal: str, classes: Sequence[str] | None) -> Figure:
    figure = picture(4.4, 3.7)
    ((axes,),) = grid(figure, 1, 1)
    drawn = _matrix(axes, matrix)
    count = len(matrix)
    if count <= 20:
        names = [name_of(at, classes) for at in range(count)]
        axes.set_xticks(range(count), names, rotation=0 if short_names(classes) else 90)
        axes.set_yticks(range(count), names)
    if count <= 12:
        _write_values(axes, matrix)
    axes.set(xlabel=horizontal, ylabel=vertical)
    colour_bar(figure, drawn, axes, "mean correlation of coefficients")
    return figure


def _matrix(axes: Axes, matrix: Tensor) -> AxesImage:
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(matrix.numpy(), cmap=HEAT, vmin=min(0.0, float(matrix.nan_to_num(0).min())), vmax=1)


def _write_values(axes: Axes, matrix: Tensor) -> None:
    """Every value in its cell, dark on light and light on dark."""
    for row, values in enumerate(matrix.tolist()):
        for column, value in enumerate(values):
            if value == value:
                colour = "black" if value > 0.55 else "white"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=5.5)


def _lower_half(matrix: Tensor) -> Tensor:
    above = torch.ones_like(matrix, dtype=torch.bool).triu(1)
    return matrix.masked_fill(above, torch.nan)


@run_figure(
    "gt_column_correlations",
    "Coefficients of images",
    "Correlations between the ground-truth columns of the coefficients of {100 training} images, sorted by class. "
    "After Zhao et al. 2019, figure 2.",
    takes_images,
    has_columns,
    place=30,
)
def _gt_column_correlations_of(run: Run) -> Made:
    numbers = gt_column_correlations(run.model, run.training_batches(100))
    return numbers, draw_gt_column_correlations(numbers, run.test.classes)


@run_figure(
    "class_correlations",
    "Coefficients of classes",
    "The same, averaged over the pairs of different images of each two classes, of {5000 training} images. "
    "After Zhao et al. 2019, figure 3.",
    takes_images,
    has_columns,
    place=31,
)
def _class_correlations_of(run: Run) -> Made:
    numbers = class_correlations(run.model, run.training_batches(5000))
    return numbers, draw_class_correlations(numbers, run.test.classes)


@run_figure(
    "master_correlations",
    "Master coefficients",
    "Correlations between each column of the master coefficients and the ground-truth columns of "
    "{5000 training} images, averaged by class. After Zhao et al. 2019, figure 5.",
    takes_images,
    has_columns,
    has_master,
    place=32,
)
def _master_correlations_of(run: Run) -> Made:
    made = run.quick_master()
    assert made is not None
    numbers = master_correlations(run.model, made, run.training_batches(5000))
    return numbers, draw_master_correlations(numbers, run.test.classes)
