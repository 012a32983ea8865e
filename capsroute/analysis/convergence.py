"""How routing converges: agreement, entropy of the coefficients and movement of the parents, iteration by iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from capsroute.analysis.named import Named
from capsroute.analysis.tracing import Step, trace_routing
from capsroute.layers import Router
from capsroute.models import ImageModel
from capsroute.routing import lengths

__all__ = ["RoutingConvergence", "routing_convergence"]


@dataclass(frozen=True, eq=False)
class RoutingConvergence(Named):
    """What each iteration of one layer did; positions of a convolutional layer are averaged."""

    axes: ClassVar = {
        "agreement": ("image", "iteration", "parent"),
        "entropy": ("image", "iteration"),
        "movement": ("image", "iteration"),
        "lengths": ("image", "iteration", "parent"),
    }
    agreement: Tensor  # mean cosine between a parent and the votes for it, weighted by coefficient times length
    entropy: Tensor  # of a child's coefficients, mean over children: 1 all the same, 0 decided
    movement: Tensor  # distance of all parents from where they were, in parts of their length; NaN at first
    lengths: Tensor  # of the parents' poses


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
