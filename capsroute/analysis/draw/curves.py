"""Curves: what iterations do (001, figure 4), training by epoch, and accuracy under changed images."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsroute.analysis.draw.style import drawing, grid, picture, plot
from capsroute.analysis.epochs import TrainingCurves
from capsroute.analysis.iterations import ByIterations
from capsroute.analysis.robustness import Robustness

__all__ = ["draw_by_iterations", "draw_robustness", "draw_training_curves"]


@drawing
def draw_by_iterations(numbers: ByIterations) -> Figure:
    """Accuracy, time and memory over the number of routing iterations, a curve for each model or schedule.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.by_iterations(model, torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]), (1, 2))
    >>> figure = cr.analysis.draw_by_iterations(numbers)
    """
    figure = picture(7.2, 2.3)
    axes = grid(figure, 1, 3)[0]
    rows = (
        ("accuracy (%)", 100 * numbers.accuracy),
        (f"inference time (ms)\nbatch {numbers.batch}, {numbers.device}", numbers.milliseconds),
        ("memory of activations (MiB)", numbers.mebibytes),
    )
    for one, (label, values) in zip(axes, rows):
        plot(one, numbers.iterations, values, numbers.models)
        one.set(xlabel="routing iterations", ylabel=label, xticks=numbers.iterations.tolist())
    axes[0].set_ylim(top=min(100.5, axes[0].get_ylim()[1]))
    for one in axes[1:]:
        one.set_ylim(bottom=0)
    axes[0].legend()
    return figure


@drawing
def draw_robustness(numbers: Robustness) -> Figure:
    """Accuracy against rotation, shift and scale, a curve for each model.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.robustness(model, torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]), degrees=(0, 90))
    >>> figure = cr.analysis.draw_robustness(numbers)
    """
    figure = picture(7.2, 2.3)
    axes = grid(figure, 1, 3, sharey=True)[0]
    rows = (
        ("rotation (degrees)", numbers.degrees, numbers.rotation),
        ("shift (pixels)", numbers.pixels, numbers.shift),
        ("scale (factor)", numbers.factors, numbers.scale),
    )
    for one, (label, amounts, values) in zip(axes, rows):
        plot(one, amounts, 100 * values, numbers.models)
        one.set(xlabel=label, ylim=(0, 102))
    axes[0].set_ylabel("accuracy (%)")
    axes[0].legend()
    return figure


@drawing
def draw_training_curves(numbers: TrainingCurves) -> Figure:
    """Loss and accuracy by epoch: one run in training and validation, or several runs' validation beside each other.

    >>> import torch, capsroute as cr
    >>> curve = torch.tensor([[0.5, 0.2]])
    >>> numbers = cr.analysis.TrainingCurves(torch.tensor([1, 2]), curve, curve, 1 - curve, 1 - curve, ("run",))
    >>> figure = cr.analysis.draw_training_curves(numbers)
    """
    figure = picture(6.2, 2.5)
    axes = grid(figure, 1, 2)[0]
    rows = (
        ("loss", numbers.train_loss, numbers.validation_loss),
        ("accuracy (%)", 100 * numbers.train_accuracy, 100 * numbers.validation_accuracy),
    )
    for one, (label, train, validation) in zip(axes, rows):
        curves = {"training": train[0], "validation": validation[0]}
        if len(numbers.runs) > 1:
            measured = train if bool(validation.isnan().all()) else validation
            curves = dict(zip(numbers.runs, measured))
        curves = {name: curve for name, curve in curves.items() if not bool(curve.isnan().all())}
        if curves:
            plot(one, numbers.epochs, torch.stack(list(curves.values())), list(curves))
            one.legend()
        one.set(xlabel="epoch", ylabel=label)
        one.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
