"""Pictures of routing: coupling heatmaps (002, table 3), the parse tree, and convergence over iterations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from capsroute.analysis.convergence import RoutingConvergence
from capsroute.analysis.draw.style import (
    COLOURS,
    colour_bar,
    drawing,
    grid,
    label_outer,
    name_of,
    overlay,
    picture,
    show,
)
from capsroute.analysis.heatmaps import CouplingMaps
from capsroute.analysis.parse_tree import ParseTree

__all__ = ["draw_coupling_maps", "draw_parse_tree", "draw_routing_convergence"]

SPAN = 0.005  # of entropy that an axis shows at least


@drawing
def draw_coupling_maps(numbers: CouplingMaps, classes: Sequence[str] | None = None) -> Figure:
    """Images above, the coupling to the predicted class over them below (mean over groups for routing pooling).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_coupling_maps(cr.analysis.coupling_maps(model, torch.rand(4, 1, 8, 8)))
    """
    count = numbers.size("image")
    by_class = classes is None or numbers.size("parent") == len(classes)
    chosen = numbers.maps[torch.arange(count), numbers.predictions.cpu()] if by_class else numbers.maps.mean(1)
    seen = chosen[~chosen.isnan()]
    figure = picture(0.95 * count + 1.5, 2.15)
    axes = grid(figure, 2, count)
    for at in range(count):
        show(axes[0][at], numbers.images[at])
        axes[0][at].set_title(name_of(int(numbers.predictions[at]), classes))
        drawn = overlay(axes[1][at], numbers.images[at], chosen[at], float(seen.min()), float(seen.max()))
    label_outer(axes[0][0], "input")
    label_outer(axes[1][0], "coupling to\nprediction" if by_class else "coupling,\nmean of groups")
    colour_bar(figure, drawn, [*axes[0], *axes[1]], "coefficient")
    return figure


@drawing
def draw_parse_tree(numbers: ParseTree, classes: Sequence[str] | None = None, tops: int = 3) -> Figure:
    """Lines from places of the image to the most likely class capsules: the thicker, the more comes from there.

    What a place gives to a class is its share times the class's score; the maps below show it for every place.

    >>> import torch, capsroute as cr
    >>> tree = cr.analysis.parse_tree(cr.create_model("capsnet_small", image_size=8), torch.rand(1, 8, 8))
    >>> figure = cr.analysis.draw_parse_tree(tree)
    """
    scores = numbers.scores.cpu()
    parts = scores if scores.min() >= 0 and scores.max() <= 1 else scores.softmax(0)
    best = scores.topk(min(tops, len(scores))).indices
    given = (numbers.shares.cpu().sum(1) * parts[:, None, None])[best].clamp_min(0)  # [top, row, column]
    figure = picture(1.7 * len(best) + 1.4, 5.4)
    above, below = figure.subfigures(2, 1, height_ratios=(2, 1), squeeze=False)[:, 0]
    ((tree,),) = grid(above, 1, 1)
    height, width = numbers.image.shape[1:]
    show(tree, numbers.image)
    crown = -0.6 * height  # where the class capsules stand, above the image
    at = torch.linspace(-0.1, 1.1, len(best)) * width if len(best) > 1 else torch.tensor([width / 2])
    for order, (name, x) in enumerate(zip(best.tolist(), at.tolist())):
        tree.add_collection(_branches(numbers, given[order], given.max(), (x, crown), COLOURS[order]))
        tree.scatter([x], [crown], s=40 + 400 * float(parts[name]), color=COLOURS[order], zorder=3)
        text = f"{name_of(name, classes)}: {float(scores[name]):.2f}"
        tree.annotate(text, (x, crown), (0, 14), textcoords="offset points", ha="center")
    tree.set(xlim=(-0.3 * width, 1.3 * width), ylim=(height, 1.45 * crown))
    maps = numbers.maps.cpu()[best] * parts[best][:, None, None]
    axes = grid(below, 1, len(best))[0]
    for order, name in enumerate(best.tolist()):
        drawn = overlay(axes[order], numbers.image, maps[order], 0.0, float(maps.nan_to_num(0).max()))
        axes[order].set_title(name_of(name, classes), color=COLOURS[order])
    colour_bar(below, drawn, axes, "share x score")
    return figure


def _branches(
    numbers: ParseTree, given: Tensor, most: Tensor, crown: tuple[float, float], colour: str
) -> LineCollection:
    """A line from each place (row, column) to the class capsule."""
    starts = torch.cartesian_prod(numbers.rows.cpu().double(), numbers.columns.cpu().double()).flip(1).tolist()
    widths = (4 * given.flatten() / most.clamp_min(1e-12)).tolist()
    return LineCollection([[start, crown] for start in starts], linewidths=widths, colors=colour, alpha=0.45, zorder=2)


@drawing
def draw_routing_convergence(numbers: RoutingConvergence) -> Figure:
    """Agreement, entropy and movement over iterations: the mean over images, and where 80 % of them lie.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.routing_convergence(model, torch.rand(4, 1, 8, 8))
    >>> figure = cr.analysis.draw_routing_convergence(numbers)
    """
    figure = picture(7.2, 2.3)
    winner = numbers.lengths[:, -1].argmax(1)
    rows = torch.arange(numbers.size("image"), device=winner.device)
    others = torch.ones_like(numbers.lengths[:, -1], dtype=torch.bool)
    others[rows, winner] = False
    rest = numbers.agreement.transpose(1, 2)[others].unflatten(0, (len(rows), -1)) if others.any() else None
    axes = grid(figure, 1, 3)[0]
    _band(axes[0], numbers.agreement[rows, :, winner], 0, "longest parent")
    if rest is not None:
        _band(axes[0], rest.mean(1), 1, "the others")
        axes[0].legend()
    _band(axes[1], numbers.entropy, 0, "")
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(min(low, high - SPAN), high)  # coefficients that stay uniform are a flat line
    _band(axes[2], numbers.movement, 0, "")
    labels = ("agreement (mean cosine)", "entropy of coefficients\n(1 = uniform)", "movement of parents\n(relative)")
    for one, label in zip(axes, labels):
        one.set(xlabel="iteration", ylabel=label, xticks=range(1, numbers.size("iteration") + 1))
        one.grid(alpha=0.25, linewidth=0.5)
    return figure


def _band(axes, values: Tensor, at: int, name: str) -> None:
    """Mean and the middle 80 % of values [image, iteration]."""
    values = values.double().cpu()
    iterations = range(1, values.shape[1] + 1)
    low, high = values.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), 0).numpy()
    axes.fill_between(iterations, low, high, color=COLOURS[at], alpha=0.2, linewidth=0)
    axes.plot(iterations, values.mean(0).numpy(), color=COLOURS[at], marker="os"[at], label=name)
