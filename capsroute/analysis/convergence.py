"""How routing converges: agreement, entropy of the coefficients and movement of the parents, iteration by iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from capsroute.analysis.figures import Made, Run, has_routing, run_figure, takes_images
from capsroute.analysis.named_tensors import Named, along
from capsroute.analysis.style import COLOURS, Axes, Figure, drawing, grid, picture
from capsroute.analysis.tracing import Step, trace_routing
from capsroute.layers import Router
from capsroute.models import ImageModel
from capsroute.routing import lengths


@dataclass(frozen=True, eq=False)
class RoutingConvergence(Named):
    """What each iteration of one layer did; positions of a convolutional layer are averaged."""

    # Mean cosine between a parent and the votes for it, weighted by coefficient times length.
    agreement: Tensor = field(metadata=along("image, iteration, parent"))
    # Of a child's coefficients, mean over children: 1 all the same, 0 decided.
    entropy: Tensor = field(metadata=along("image, iteration"))
    # Distance of all parents from where they were, in parts of their length; NaN at first.
    movement: Tensor = field(metadata=along("image, iteration"))
    lengths: Tensor = field(metadata=along("image, iteration, parent"))  # of the parents' poses


@torch.no_grad()
def routing_convergence(
    model: ImageModel, images: Tensor, layer: str | None = None, iterations: int | None = None
) -> RoutingConvergence:
    """Watch a layer (None: the last) route images [b,c,h,w], optionally for more iterations than it is made for.

    Coefficients are scaled to add up to one before their entropy is taken: over the parents, over the children where
    children compete (routing pooling).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> result = cr.analysis.routing_convergence(model, torch.rand(2, 1, 8, 8), iterations=5)
    >>> result.agreement.shape, round(float(result.entropy[0, 0]), 4)
    (torch.Size([2, 5, 10]), 1.0)
    """
    traced = trace_routing(model, images, iterations)
    if layer is not None and layer not in traced.layers:
        raise ValueError(f"layer: expected one of {', '.join(traced.layers)}, got {layer!r}")
    trace = traced.layers[layer or list(traced.layers)[-1]]
    router, steps = trace.layer.routing, trace.steps

    def by_image(values: list[Tensor]) -> Tensor:  # each [b*positions, ...] -> [b, iteration, ...]
        stacked = torch.stack(values, 1)
        return stacked.unflatten(0, (len(images), -1)).mean(1)

    still = torch.full(steps[0].routed.poses.shape[:1], math.nan, device=images.device)
    moved = [still, *(_movement(before, after) for before, after in pairwise(steps))]
    return RoutingConvergence(
        by_image([agreement(step, router) for step in steps]),
        by_image([entropy(step, router) for step in steps]),
        by_image(moved),
        by_image([lengths(step.routed.poses) for step in steps]),
    )


def agreement(step: Step, router: Router) -> Tensor:
    """Mean cosine between each parent and the votes for it [b,j], weighted by coefficient times length.

    A vote adds that much to the parent. By coefficient alone, the many short votes of empty places decide the mean.
    """
    poses, weights = step.routed.poses, step.weights(router)  # [b, j, a, o], [b, i, j]
    along = (weights * step.votes.agreement(poses)).sum(1)
    most = (weights * step.votes.norms()).sum(1) * lengths(poses)
    return along / most.clamp_min(torch.finfo(poses.dtype).tiny)


def entropy(step: Step, router: Router) -> Tensor:
    """Entropy [b] of coefficients that add up to one, in parts of the largest possible one."""
    coefficients = step.routed.coefficients
    assert coefficients is not None
    axis = 1 if router.declared("competes_over") == "children" else 2
    count = coefficients.shape[axis]
    if count == 1:
        return coefficients.new_zeros(len(coefficients))
    shares = coefficients / coefficients.sum(axis, keepdim=True).clamp_min(torch.finfo(coefficients.dtype).tiny)
    return torch.special.entr(shares).sum(axis).mean(1) / math.log(count)


def _movement(before: Step, after: Step) -> Tensor:
    moved = (after.routed.poses - before.routed.poses).flatten(1).norm(dim=1)
    return moved / after.routed.poses.flatten(1).norm(dim=1).clamp_min(torch.finfo(moved.dtype).tiny)


SPAN = 0.005  # of entropy that an axis shows at least


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


def _band(axes: Axes, values: Tensor, at: int, name: str) -> None:
    """Mean and the middle 80 % of values [image, iteration]."""
    values = values.double().cpu()
    iterations = range(1, values.shape[1] + 1)
    low, high = values.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), 0).numpy()
    axes.fill_between(iterations, low, high, color=COLOURS[at], alpha=0.2, linewidth=0)
    axes.plot(iterations, values.mean(0).numpy(), color=COLOURS[at], marker="os"[at], label=name)


@run_figure(
    "routing_convergence",
    "Routing converges",
    "Agreement between votes and class capsules, entropy of the coefficients and movement of the class capsules over "
    "routing iterations: mean over {100 test} images, and where 80 % of them lie.",
    takes_images,
    has_routing,
    place=50,
)
def _routing_convergence_of(run: Run) -> Made:
    numbers = routing_convergence(run.model, run.sample(100).images, iterations=6)
    return numbers, draw_routing_convergence(numbers)
