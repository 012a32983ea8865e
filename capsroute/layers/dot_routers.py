"""Routers of plain weighted sums of votes: dynamic, max-min, pooling, and those whose coefficients are given."""

from typing import Any

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.pose import ACTIVATIONS, PoseLayerNorm, activated
from capsroute.layers.router import Router, register_routing
from capsroute.naming import check_one_of
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least, check_bounds, check_finite
from capsroute.routing.normalise import max_min, over_weighted_children
from capsroute.votes import Votes


@register_routing("dynamic")
class DynamicRouter(Router):
    """`cr.dynamic_routing`."""

    activation = "squash"
    competes_over = "parents"
    takes_coefficients = True
    container_rows = "softmax"
    accumulates = "softmax"

    def __init__(self, iterations: int = 3, stop_gradient: bool = False):
        super().__init__()
        check_at_least("iterations", iterations, 1)
        self.iterations, self.stop_gradient = iterations, stop_gradient

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        return algorithms.dynamic_routing(votes, self.iterations, self.stop_gradient)


@register_routing("max_min")
class MaxMinRouter(Router):
    """`cr.max_min_routing`. Gradients stop before the last iteration unless told otherwise: docs/differences.md says
    why."""

    activation = "squash"
    competes_over = "parents"
    takes_coefficients = True
    container_rows = "max_min"
    accumulates = "max_min"
    sums_votes = True

    def __init__(self, iterations: int = 3, lower: float = 0.0, upper: float = 1.0, stop_gradient: bool = True):
        super().__init__()
        check_at_least("iterations", iterations, 1)
        check_bounds(lower, upper)
        self.iterations, self.lower, self.upper, self.stop_gradient = iterations, lower, upper, stop_gradient

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        return algorithms.max_min_routing(votes, self.iterations, self.lower, self.upper, self.stop_gradient)

    def fresh_std(self, children: int, parents: int, k: int, o: int) -> float:
        """The first sum runs over all children at full weight: a fan-in rule keeps it near the middle of the squash
        whatever their number."""
        return (children * o) ** -0.5

    def first_coefficient(self, children: int, parents: int) -> float:
        return 1.0

    def normalise_rows(self, means: Tensor) -> Tensor:
        return max_min(means, self.lower, self.upper)

    def uniform(self) -> Router:
        return self.altered(iterations=1)


class _GivenRouter(Router):
    """A weighted sum of votes and an activation, with coefficients that no vote can change."""

    adapts = False
    takes_coefficients = True
    container_rows = "none"
    activation: str | None

    def __init__(self, activation: str | None):
        super().__init__()
        check_one_of("activation", activation, ACTIVATIONS)
        self.activation = activation

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if self.activation == "affine_layer_norm":
            if pose is None:
                raise ValueError("pose: 'affine_layer_norm' has one scale and shift per number of the pose, got None")
            self.layer_norm = PoseLayerNorm(*pose)

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None, coefficients: bool = True) -> Routed:
        """Given coefficients look at no parents: every step is the whole routing."""
        return self.forward(votes, scores)

    def uniform(self) -> Router:
        raise ValueError(f"routing: {self.name!r} has given coefficients, which routing did not make")

    def route(self, votes: Votes, coefficients: Tensor | float) -> Routed:
        """coefficients [i,j], [b,i,1], or one number for all."""
        c = votes.filled(coefficients)
        norm = self.layer_norm if self.activation == "affine_layer_norm" else algorithms.pose_layer_norm
        return Routed(activated(votes.aggregate(c), self.activation, norm), c, None, None)


@register_routing("fast")
class FastRouter(_GivenRouter):
    """`cr.fast_routing` with coefficients [i,j] that are kept as a buffer, or learned.

    `activation` is what the replaced routing did to its weighted sum: "squash", "layer_norm" (Tsai 2020),
    "affine_layer_norm" (its released code) or None.
    """

    undecayed = ("coefficients",)
    competes_over = "parents"

    def __init__(self, learned: bool = False, activation: str | None = "squash"):
        super().__init__(activation)
        self.learned = learned
        self.coefficients: Tensor

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if children is None:
            raise ValueError("routing: 'fast' needs one coefficient per child, so the number of children must be fixed")
        super().build(children, parents, pose)
        uniform = torch.full((children, parents), 1 / parents)
        if self.learned:
            self.coefficients = nn.Parameter(uniform)
        else:
            self.register_buffer("coefficients", uniform)

    def given_coefficients(self) -> Tensor:
        return self.coefficients

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        if self.activation == "squash":
            return algorithms.fast_routing(votes, self.coefficients)
        return self.route(votes, self.coefficients)


@register_routing("uniform")
class UniformRouter(_GivenRouter):
    """`cr.uniform_routing`: the control that is trained without routing. Parents, or children, share equally.

    `activation` and `competes_over` are those of the routing that it stands beside.
    """

    def __init__(self, activation: str | None = "squash", competes_over: str = "parents"):
        super().__init__(activation)
        if competes_over not in ("parents", "children"):
            raise ValueError(f"competes_over: expected 'parents' or 'children', got {competes_over!r}")
        self.competes_over = competes_over

    @property
    def mask_kind(self) -> str | None:
        """Equal shares of the children that are there need to know which are."""
        return "probability" if self.competes_over == "children" else None

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        if self.activation == "squash" and self.competes_over == "parents":
            return algorithms.uniform_routing(votes)
        if self.mask_kind is None or scores is None:
            return self.route(votes, self.first_coefficient(votes.children, votes.parents))
        return self.route(votes, over_weighted_children(torch.zeros_like(scores).unsqueeze(2), scores))  # [b, i, 1]


@register_routing("pooling")
class PoolingRouter(Router):
    """`cr.pooling_routing`; `activation="squash"` squashes the pooled capsule as Zhao & Huang 2019 do for class
    capsules. Scores, where given, say how much a child counts, in [0, 1]."""

    mask_kind = "probability"
    competes_over = "children"
    takes_coefficients = True
    container_rows = "none"  # means of weights that add up to one over the children do so too
    activation: str | None

    def __init__(
        self, iterations: int = 1, sharpness: float = 1.0, activation: str | None = None, stop_gradient: bool = False
    ):
        super().__init__()
        if activation not in (None, "squash"):
            raise ValueError(f"activation: expected None or 'squash', got {activation!r}")
        check_at_least("iterations", iterations, 1)
        check_finite("sharpness", sharpness)
        self.iterations, self.sharpness = iterations, sharpness
        self.activation, self.stop_gradient = activation, stop_gradient

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        options = (self.iterations, self.sharpness, self.stop_gradient)
        routed = algorithms.pooling_routing(votes, *options, weights=scores)
        if not self.squashes:
            return routed
        poses = algorithms.squash(routed.poses, (2, 3))
        return Routed(poses, routed.coefficients, routed.scores, routed.variances)

    def uniform(self) -> Router:
        return self.altered(sharpness=0.0)
