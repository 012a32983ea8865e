"""Curves: what iterations do (001, figure 4), training by epoch, and accuracy under changed images."""

from __future__ import annotations

from matplotlib.figure import Figure

from capsroute.analysis.draw.style import drawing, grid, picture, plot
from capsroute.analysis.iterations import ByIterations
from capsroute.analysis.robustness import Robustness

__all__ = ["draw_by_iterations", "draw_robustness"]


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
