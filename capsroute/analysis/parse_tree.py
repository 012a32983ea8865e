"""The parse tree of one image: which primary capsules, and where, make up each class capsule.

A parent is a sum of votes, s_j = sum_i w_ij V_ij. Child i's share of it is w_ij V_ij . s_j / |s_j|^2, what it adds
along the sum; shares add up to one over the children. Through several routed layers shares multiply along the paths
and add up over them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.analysis.figures import Made, Named, Run, along, has_routing, run_figure, takes_images
from capsroute.analysis.style import COLOURS, Axes, Figure, colour_bar, drawing, grid, name_of, overlay, picture, show
from capsroute.analysis.tracing import LayerTrace, Step, Traced, child_places, routed_names, spread, trace_routing
from capsroute.layers import CapsuleConv2d, Router
from capsroute.models import ImageModel
from capsroute.routing.checks import check_at_least


@dataclass(frozen=True, eq=False)
class ParseTree(Named):
    """Which primary capsules make up each class capsule."""

    image: Tensor = field(metadata=along("channel, row, column"))
    # Of each primary capsule in each class capsule; they add up to one.
    shares: Tensor = field(metadata=along("class, capsule, map row, map column"))
    # Shares summed over types of capsule, spread over the image's pixels.
    maps: Tensor = field(metadata=along("class, row, column"))
    scores: Tensor = field(metadata=along("class"))
    rows: Tensor = field(metadata=along("map row"))  # where the primary capsules look, in pixels
    columns: Tensor = field(metadata=along("map column"))


@torch.no_grad()
def parse_tree(model: ImageModel, image: Tensor) -> ParseTree:
    """The parse tree of an image [c,h,w].

    >>> import torch, capsroute as cr
    >>> tree = cr.analysis.parse_tree(cr.create_model("capsnet_small", image_size=8), torch.rand(1, 8, 8))
    >>> tree.shares.shape
    torch.Size([10, 8, 2, 2])
    >>> torch.allclose(tree.shares.sum((1, 2, 3)), torch.ones(10), atol=1e-4)
    True
    """
    first, traced = routed_names(model)[0], trace_routing(model, image[None])
    primary = traced.layers[first].children[0]
    if primary.dim() != 6:
        raise ValueError(f"model: expected primary capsules in a map over the image, {model.name!r} has a list")
    shares = primary_shares(traced, -1)[0].unflatten(1, (primary.shape[1], *primary.shape[4:]))
    places = child_places(model, first)
    maps = spread(shares.sum(1), places, model.input_shape[1:])
    return ParseTree(image, shares, maps, traced.output.scores[0], places.rows, places.columns)


def primary_shares(traced: Traced, iteration: int) -> Tensor:
    """Shares [b,class,i] of the primary capsules in the class capsules after an iteration (-1: the last)."""
    scores = traced.output.scores
    wide = torch.promote_types(scores.dtype, torch.float32)  # as routing's own sums are
    own = torch.eye(scores.shape[1], dtype=wide, device=scores.device)
    shares = own.expand(len(scores), -1, -1)  # [b, class, class]
    for trace in reversed(traced.layers.values()):
        shares = trickle(shares, trace, iteration)
    return shares


def trickle(shares: Tensor, trace: LayerTrace, iteration: int) -> Tensor:
    """Shares of a layer's parents [b,class,j] handed down to its children [b,class,i]."""
    # A layer with given coefficients has one step, whichever iteration the others are in.
    step, layer = trace.steps[min(iteration, len(trace.steps) - 1)], trace.layer
    down = child_shares(step, layer.routing).to(shares.dtype)  # [b or b*L, i, j]
    if not isinstance(layer, CapsuleConv2d):
        return torch.einsum("bcj,bij->bci", shares, down)
    poses = trace.children[0]
    down = down.unflatten(0, (len(poses), -1))  # [b, L, n*K, m]
    shares = shares.unflatten(2, (layer.out_capsules, -1))  # [b, class, m, L]
    paths = torch.einsum("bcml,blim->bcil", shares, down).flatten(0, 1)  # [b*class, n*K, L]
    children = F.fold(paths, poses.shape[4:], layer.kernel_size, padding=layer.padding, stride=layer.stride)
    return children.unflatten(0, shares.shape[:2]).flatten(2)


def child_shares(step: Step, router: Router) -> Tensor:
    """What part of each parent's sum of votes comes from each child [b,i,j]; zero where that sum is zero."""
    weights = step.weights(router)
    total = step.votes.aggregate(weights)  # [b, j, a, o]
    square = total.square().sum((2, 3)).unsqueeze(1)  # [b, 1, j]
    along = weights * step.votes.agreement(total)
    return torch.where(square > 0, along / torch.where(square > 0, square, 1.0), 0.0)


@drawing
def draw_parse_tree(numbers: ParseTree, classes: Sequence[str] | None = None, tops: int = 3) -> Figure:
    """Lines from places of the image to the most likely class capsules: the thicker, the more comes from there.

    What a place gives to a class is its share times the class's score; the maps below show it for every place.

    >>> import torch, capsroute as cr
    >>> tree = cr.analysis.parse_tree(cr.create_model("capsnet_small", image_size=8), torch.rand(1, 8, 8))
    >>> figure = cr.analysis.draw_parse_tree(tree)
    """
    check_at_least("tops", tops, 1)
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
        colour = COLOURS[order % len(COLOURS)]
        _draw_branches(tree, numbers, given[order], given.max(), (x, crown), colour)
        tree.scatter([x], [crown], s=40 + 400 * float(parts[name]), color=colour, zorder=3)
        text = f"{name_of(name, classes)}: {float(scores[name]):.2f}"
        tree.annotate(text, (x, crown), (0, 14), textcoords="offset points", ha="center")
    tree.set(xlim=(-0.3 * width, 1.3 * width), ylim=(height, 1.45 * crown))
    maps = numbers.maps.cpu()[best] * parts[best][:, None, None]
    axes = grid(below, 1, len(best))[0]
    for order, name in enumerate(best.tolist()):
        drawn = overlay(axes[order], numbers.image, maps[order], 0.0, float(maps.nan_to_num(0).max()))
        axes[order].set_title(name_of(name, classes), color=COLOURS[order % len(COLOURS)])
    colour_bar(below, drawn, axes, "share x score")
    return figure


def _draw_branches(
    tree: Axes, numbers: ParseTree, given: Tensor, most: Tensor, crown: tuple[float, float], colour: str
) -> None:
    """A line from each place (row, column) to the class capsule."""
    starts = torch.cartesian_prod(numbers.rows.cpu().double(), numbers.columns.cpu().double()).flip(1).tolist()
    widths = (4 * given.flatten() / most.clamp_min(1e-12)).tolist()
    from matplotlib.collections import LineCollection

    lines = [[start, crown] for start in starts]
    tree.add_collection(LineCollection(lines, linewidths=widths, colors=colour, alpha=0.45, zorder=2))


@run_figure(
    "parse_tree",
    "Parse tree",
    "Where in the image the primary capsules lie that make up the three most likely class capsules: the thicker the "
    "line, the larger the part of the class capsule's sum of votes that comes from there.",
    takes_images,
    has_routing,
    place=41,
)
def _parse_tree_of(run: Run) -> Made:
    sample = run.sample(1)
    numbers = parse_tree(run.model, sample.images[0])
    numbers = replace(numbers, image=sample.images[0])
    return numbers, draw_parse_tree(numbers, run.test.classes)
