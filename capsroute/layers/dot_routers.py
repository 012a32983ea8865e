"""Routers by dot products with plain sums of votes: dynamic, max-min, fast and pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.norm import PoseLayerNorm
from capsroute.layers.router import Router
from capsroute.routing import Routed
from capsroute.votes import Votes

__all__ = ["DynamicRouter", "FastRouter", "MaxMinRouter", "PoolingRouter"]

FAST_ACTIVATIONS = ("squash", "layer_norm", "affine_layer_norm", None)


class DynamicRouter(Router):
    """`cr.dynamic_routing`."""

    name = "dynamic"
    squashes = True
    child_activation = "squash"

    def __init__(self, iterations: int = 3, stop_gradient: bool = False):
        super().__init__()
        self.iterations, self.stop_gradient = iterations, stop_gradient

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        return algorithms.dynamic_routing(votes, self.iterations, self.stop_gradient)


class MaxMinRouter(Router):
    """`cr.max_min_routing`. Gradients stop before the last iteration unless told otherwise: docs/differences.md says
    why."""

    name = "max_min"
    squashes = True
    child_activation = "squash"

    def __init__(self, iterations: int = 3, lower: float = 0.0, upper: float = 1.0, stop_gradient: bool = True):
        super().__init__()
        self.iterations, self.lower, self.upper, self.stop_gradient = iterations, lower, upper, stop_gradient

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        return algorithms.max_min_routing(votes, self.iterations, self.lower, self.upper, self.stop_gradient)


class FastRouter(Router):
    """`cr.fast_routing` with coefficients [i,j] that are kept as a buffer, or learned.

    `activation` is what the replaced routing did to its weighted sum: "squash", "layer_norm" (001),
    "affine_layer_norm" (its released code) or None.
    """

    name = "fast"
    undecayed = ("coefficients",)

    def __init__(self, learned: bool = False, activation: str | None = "squash"):
        super().__init__()
        if activation not in FAST_ACTIVATIONS:
            raise ValueError(f"activation: expected one of {FAST_ACTIVATIONS}, got {activation!r}")
        self.learned, self.activation = learned, activation
        self.squashes = activation == "squash"
        self.child_activation = activation
        self.coefficients: Tensor

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if children is None:
            raise ValueError("routing: 'fast' needs one coefficient per child, so the number of children must be fixed")
        if self.activation == "affine_layer_norm":
            if pose is None:
                raise ValueError("pose: 'affine_layer_norm' has one scale and shift per number of the pose, got None")
            self.layer_norm = PoseLayerNorm(*pose)
        uniform = torch.full((children, parents), 1 / parents)
        if self.learned:
            self.coefficients = nn.Parameter(uniform)
        else:
            self.register_buffer("coefficients", uniform)

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        if self.squashes:
            return algorithms.fast_routing(votes, self.coefficients)
        c = self.coefficients.to(votes.statistics_dtype).expand(votes.batch, votes.children, votes.parents)
        total = votes.aggregate(c)
        if self.activation is not None:
            total = self.layer_norm(total) if self.activation != "layer_norm" else algorithms.pose_layer_norm(total)
        return Routed(total, c, None, None)

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None, coefficients: bool = True) -> Routed:
        """Given coefficients look at no parents: every step is the whole routing."""
        return self.forward(votes, scores)


class PoolingRouter(Router):
    """`cr.pooling_routing`; `activation="squash"` squashes the pooled capsule as 002 does for class capsules."""

    name = "pooling"

    def __init__(
        self, iterations: int = 1, sharpness: float = 1.0, activation: str | None = None, stop_gradient: bool = False
    ):
        super().__init__()
        if activation not in (None, "squash"):
            raise ValueError(f"activation: expected None or 'squash', got {activation!r}")
        self.iterations, self.sharpness = iterations, sharpness
        self.activation, self.stop_gradient = activation, stop_gradient
        self.squashes = activation == "squash"
        self.child_activation = activation

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        routed = algorithms.pooling_routing(votes, self.iterations, self.sharpness, self.stop_gradient)
        return routed._replace(poses=algorithms.squash(routed.poses, (2, 3))) if self.squashes else routed
