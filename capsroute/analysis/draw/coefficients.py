"""Pictures of routing coefficients by class, and of class probabilities without routing (000, figures 2, 3, 5 to 7)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from capsroute.analysis.coefficients import (
    ClassCorrelations,
    ClassProbabilities,
    GroundTruthCorrelations,
    MasterCorrelations,
    TuningCurves,
)
from capsroute.analysis.draw.style import COLOURS, HEAT, colour_bar, drawing, grid, name_of, picture, show

__all__ = [
    "draw_class_correlations",
    "draw_class_probabilities",
    "draw_gt_column_correlations",
    "draw_master_correlations",
    "draw_tuning_curves",
]


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
    axes.set_xticks(middles, names, rotation=0 if _short(classes) else 90)
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


@drawing
def draw_class_probabilities(
    numbers: ClassProbabilities, images: Tensor, classes: Sequence[str] | None = None
) -> Figure:
    """A column for each of the images [b,c,h,w]: the image, and below its class probabilities under each routing.

    >>> import torch, capsroute as cr
    >>> model, images = cr.create_model("capsnet_small", image_size=8), torch.rand(5, 1, 8, 8)
    >>> numbers = cr.analysis.class_probabilities({"dynamic": model}, images, torch.arange(5))
    >>> figure = cr.analysis.draw_class_probabilities(numbers, images)
    """
    rows, columns, count = (numbers.size(axis) for axis in ("routing", "image", "class"))
    figure = picture(1.35 * columns + 0.6, 1.1 + 1.15 * rows)
    axes = grid(figure, 1 + rows, columns)
    for column in range(columns):
        label = int(numbers.labels[column])
        show(axes[0][column], images[column])
        axes[0][column].set_title(name_of(label, classes))
        for row in range(rows):
            bars = axes[1 + row][column]
            colours = [COLOURS[0] if at == label else "0.6" for at in range(count)]
            bars.bar(range(count), numbers.probabilities[row, column].tolist(), color=colours)
            bars.set(ylim=(0, 1), yticks=[0, 0.5, 1])
            ticks = range(count) if count <= 10 else [label]
            bars.set_xticks(ticks, [name_of(at, classes) for at in ticks], rotation=0 if _short(classes) else 90)
            bars.tick_params(labelsize=6, labelleft=column == 0, labelbottom=row == rows - 1)
    for row, name in enumerate(numbers.routings):
        axes[1 + row][0].set_ylabel(f"{name}\nprobability")
    return figure


@drawing
def draw_tuning_curves(numbers: TuningCurves, classes: Sequence[str] | None = None) -> Figure:
    """Mean class probabilities of the images of each class, a panel for each routing (figure 7).

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.tuning_curves({"dynamic": model}, cr.data.load("digits", "test"))
    >>> figure = cr.analysis.draw_tuning_curves(numbers)
    """
    panels, count = numbers.size("routing"), numbers.size("class")
    figure = picture(2.9 * panels + 0.5, 2.6 if _short(classes) else 3.1)
    axes = grid(figure, 1, panels, sharey=True)[0]
    shades = colormaps["viridis"](torch.linspace(0, 0.85, count).numpy())
    for one, routing, curves in zip(axes, numbers.routings, numbers.probabilities):
        for label, (curve, shade) in enumerate(zip(curves.tolist(), shades)):
            dash = ("-", "--", ":")[label % 3]
            one.plot(range(count), curve, color=shade, linestyle=dash, marker=".", markersize=4)
            # Each curve is named at the class it is about, where it should have its peak; long names have no room.
            if count <= 20 and _short(classes):
                text = name_of(label, classes)
                one.annotate(text, (label, curve[label]), (0, 3), textcoords="offset points", ha="center", color=shade)
        one.set(title=routing, xlabel="class capsule", ylim=(0, 1.08))
        one.grid(alpha=0.25, linewidth=0.5)
        if count <= 20:
            ticks = [name_of(at, classes) for at in range(count)]
            one.set_xticks(range(count), ticks, rotation=0 if _short(classes) else 90)
    axes[0].set_ylabel("mean probability")
    return figure


def _by_class(matrix: Tensor, vertical: str, horizontal: str, classes: Sequence[str] | None) -> Figure:
    figure = picture(4.4, 3.7)
    ((axes,),) = grid(figure, 1, 1)
    drawn = _matrix(axes, matrix)
    count = len(matrix)
    if count <= 20:
        names = [name_of(at, classes) for at in range(count)]
        axes.set_xticks(range(count), names, rotation=0 if _short(classes) else 90)
        axes.set_yticks(range(count), names)
    if count <= 12:
        _write_values(axes, matrix)
    axes.set(xlabel=horizontal, ylabel=vertical)
    colour_bar(figure, drawn, axes, "mean correlation of coefficients")
    return figure


def _matrix(axes: Axes, matrix: Tensor):
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


def _short(classes: Sequence[str] | None) -> bool:
    return classes is None or max(map(len, classes)) <= 2
