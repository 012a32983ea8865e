"""Curves: what iterations do (001, figure 4), training by epoch, and accuracy under changed images."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsroute.analysis.draw.style import drawing, grid, picture, plot
from capsroute.analysis.epochs import TrainingCurves
from capsroute.analysis.iterations import ByIterations
from capsroute.analysis.robustness import Robustness

SPAN = 10  # percent of accuracy that an axis shows at least

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
    # A few images more or less are not to look like a cliff.
    middle, least = 100 * float(numbers.accuracy.max() + numbers.accuracy.min()) / 2, SPAN / 2
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(min(low, middle - least), min(100.5, max(high, middle + least)))
    for one, values in zip(axes[1:], (numbers.milliseconds, numbers.mebibytes)):
        one.set_ylim(0, 1.1 * float(values.max()))
    if len(numbers.models) > 1:
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
    """Loss and accuracy by epoch: one run in training and validation, or several runs beside each other, in
    validation where any of them has it.

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
            unseen = not bool(validation.isnan().all())
            label = f"{'validation' if unseen else 'training'} {label}"
            curves = dict(zip(numbers.runs, validation if unseen else train))
        curves = {name: curve for name, curve in curves.items() if not bool(curve.isnan().all())}
        if curves:
            plot(one, numbers.epochs, torch.stack(list(curves.values())), list(curves))
            one.legend()
        one.set(xlabel="epoch", ylabel=label)
        one.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
