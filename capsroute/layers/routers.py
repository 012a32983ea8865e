"""Routing algorithms as modules: a name, options, and the few parameters (betas) that some algorithms learn.

A layer takes `routing=` as a name, as a dict of a name and options, or as a router.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.norm import PoseLayerNorm
from capsroute.routing import Routed
from capsroute.votes import Votes

__all__ = [
    "DynamicRouter",
    "EMRouter",
    "FastRouter",
    "HeinsenRouter",
    "InvertedAttentionRouter",
    "MaxMinRouter",
    "PoolingRouter",
    "Router",
    "list_routings",
    "make_router",
]

# Learned layers keep variances well above what float32 can lose to cancellation.
VARIANCE_FLOOR = 1e-4


class Router(nn.Module):
    """One routing algorithm with its options. `build` makes its parameters once a layer knows its sizes."""

    name: str
    # What scores the algorithm takes and gives: None, "logit" or "probability".
    score_kind: str | None = None
    # Whether the scores it gives say which class is there.
    scores_classes = False
    # Whether the poses it gives are squashed, so that their length is a probability.
    squashes = False
    # What primary capsules go through before it: an `activation` of PrimaryCapsules.
    child_activation: str | None = None

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        """Make parameters for this many children (None: any number) and parents with poses of this size."""

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        """Route: votes [b,i,j,a,o], scores [b,i] where the algorithm has them."""
        raise NotImplementedError

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None) -> Routed:
        """One step from the parents' poses of the previous step (None: the first)."""
        self.check_steps()
        raise NotImplementedError

    def can_step(self) -> bool:
        """Whether the algorithm can be stepped from poses alone."""
        return type(self).step is not Router.step

    def check_steps(self) -> None:
        """Whether `step` makes sense for this algorithm; a ValueError that says why, if not."""
        if not self.can_step():
            raise ValueError(
                f"routing: {self.name!r} keeps state over its own iterations and cannot be stepped from poses alone; "
                "use schedule='sequential', or routing='inverted_attention' for schedule='concurrent'"
            )

    def config(self) -> dict:
        """Name and options, as plain data that `make_router` takes back."""
        options = [p for p in inspect.signature(type(self).__init__).parameters if p != "self"]
        return {"name": self.name, **{option: getattr(self, option) for option in options}}

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.config().items() if key != "name")


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

    `activation` is what the replaced routing did to its weighted sum: "squash", "layer_norm" (001) or None.
    """

    name = "fast"

    def __init__(self, learned: bool = False, activation: str | None = "squash"):
        super().__init__()
        if activation not in ("squash", "layer_norm", None):
            raise ValueError(f"activation: expected 'squash', 'layer_norm' or None, got {activation!r}")
        self.learned, self.activation = learned, activation
        self.squashes = activation == "squash"
        self.child_activation = activation
        self.coefficients: Tensor

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if children is None:
            raise ValueError("routing: 'fast' needs one coefficient per child, so the number of children must be fixed")
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
        return Routed(algorithms.pose_layer_norm(total) if self.activation else total, c)

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None) -> Routed:
        """Given coefficients look at no parents: every step is the whole routing."""
        return self.forward(votes, scores)


class PoolingRouter(Router):
    """`cr.pooling_routing`; `activation="squash"` squashes the pooled capsule as 002 does for class capsules."""

    name = "pooling"

    def __init__(self, iterations: int = 1, sharpness: float = 1.0, activation: str | None = None):
        super().__init__()
        if activation not in (None, "squash"):
            raise ValueError(f"activation: expected None or 'squash', got {activation!r}")
        self.iterations, self.sharpness, self.activation = iterations, sharpness, activation
        self.squashes = activation == "squash"
        self.child_activation = activation

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        routed = algorithms.pooling_routing(votes, self.iterations, self.sharpness)
        return routed._replace(poses=algorithms.squash(routed.poses, (2, 3))) if self.squashes else routed


class InvertedAttentionRouter(Router):
    """`cr.inverted_attention_routing`, stepped `iterations` times when the layer stands alone.

    `scale=True` multiplies the agreement by 1/sqrt(a*o) as the released code does. `norm` is None for LayerNorm over
    the pose, "affine" for one that learns a scale and a shift (the released code), "none" to leave it out (ablation A
    of 001), or a module or function. `activations=True` gives capsules the activations of EM routing (ablation C):
    a child counts as much as it is active, and a parent is active as far as the votes for it agree.
    """

    name = "inverted_attention"

    def __init__(
        self,
        iterations: int = 2,
        scale: bool = False,
        norm: str | Callable[[Tensor], Tensor] | None = None,
        activations: bool = False,
    ):
        super().__init__()
        if isinstance(norm, str) and norm not in ("none", "affine"):
            raise ValueError(f"norm: expected None, 'affine', 'none', a module or a function, got {norm!r}")
        self.iterations, self.scale, self.activations = iterations, scale, activations
        self.norm = norm
        self.score_kind = "probability" if activations else None
        self.child_activation = "affine_layer_norm" if norm == "affine" else "layer_norm"

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if self.norm == "affine":
            if pose is None:
                raise ValueError("pose: norm='affine' has one scale and shift per number of the pose, got None")
            self.layer_norm = PoseLayerNorm(*pose)
        if self.activations:
            self.beta_use = nn.Parameter(torch.zeros(parents))
            self.beta_activate = nn.Parameter(torch.zeros(parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        votes = votes.hoisted()
        routed = self.step(votes, scores, None)
        for _ in range(1, self.iterations):
            routed = self.step(votes, scores, routed.poses)
        return routed

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None) -> Routed:
        scale = 1 / math.sqrt(votes.rows * votes.columns) if self.scale else None
        routed = algorithms.inverted_attention_routing(votes, parents, scale, self.normalise)
        return self._activate(votes, scores, routed) if self.activations else routed

    def normalise(self, poses: Tensor) -> Tensor:
        """What `norm` says, of poses [..., a, o]."""
        if self.norm == "affine":
            return self.layer_norm(poses)
        if self.norm == "none":
            return poses
        return (self.norm or algorithms.pose_layer_norm)(poses)  # type: ignore[operator]

    def _activate(self, votes: Votes, scores: Tensor | None, routed: Routed) -> Routed:
        """Children count by their activations; the parents' come from the cost of describing the votes, as in EM."""
        assert routed.coefficients is not None
        active = _ones(votes) if scores is None else scores.to(votes.statistics_dtype)
        weights = routed.coefficients * active.unsqueeze(2)
        _, variances = votes.moments(weights)
        variances = variances.clamp_min(VARIANCE_FLOOR)
        spread = votes.rows * votes.columns * self.beta_use + 0.5 * variances.log().sum((2, 3))
        logits = algorithms.hinton_temperature(self.iterations - 1) * (self.beta_activate - spread * weights.sum(1))
        return Routed(self.normalise(votes.aggregate(weights)), routed.coefficients, logits.sigmoid(), variances)


class EMRouter(Router):
    """`cr.em_routing` with learned beta_use and beta_activate [j]; children without scores count as active."""

    name = "em"
    score_kind = "probability"
    scores_classes = True

    def __init__(self, iterations: int = 3, variance_floor: float = VARIANCE_FLOOR):
        super().__init__()
        self.iterations, self.variance_floor = iterations, variance_floor

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        self.beta_use = nn.Parameter(torch.zeros(parents))
        self.beta_activate = nn.Parameter(torch.zeros(parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        if scores is None:
            scores = _ones(votes)
        return algorithms.em_routing(
            votes,
            scores,
            self.beta_use,
            self.beta_activate,
            self.iterations,
            variance_floor=self.variance_floor,
            **competition,
        )


class HeinsenRouter(Router):
    """`cr.heinsen_routing` with learned betas [i or 1, j]; children without scores count as always on.

    `single_beta=True` makes the benefit to use and the cost to ignore one parameter, as the authors' code can.
    """

    name = "heinsen"
    score_kind = "logit"
    scores_classes = True

    def __init__(self, iterations: int = 3, eps: float = 1e-5, single_beta: bool = False):
        super().__init__()
        self.iterations, self.eps, self.single_beta = iterations, eps, single_beta

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        self.beta_use = nn.Parameter(torch.zeros(children or 1, parents))
        shape = self.beta_use.shape
        self.beta_ignore = self.beta_use if self.single_beta else nn.Parameter(torch.zeros(shape))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        if scores is None:
            shape = (votes.batch, votes.children)
            scores = torch.full(shape, torch.inf, dtype=votes.statistics_dtype, device=votes.device)
        # Betas for a free number of parents are one column, the same for all.
        use, ignore = (beta.expand(-1, votes.parents) for beta in (self.beta_use, self.beta_ignore))
        return algorithms.heinsen_routing(votes, scores, use, ignore, self.iterations, self.eps)


def _ones(votes: Votes) -> Tensor:
    """Scores [b,i] of children that are all active."""
    return torch.ones(votes.batch, votes.children, dtype=votes.statistics_dtype, device=votes.device)


_ROUTERS: dict[str, type[Router]] = {
    router.name: router
    for router in (
        DynamicRouter,
        MaxMinRouter,
        FastRouter,
        PoolingRouter,
        InvertedAttentionRouter,
        EMRouter,
        HeinsenRouter,
    )
}


def list_routings() -> list[str]:
    """The names that `routing=` takes.

    >>> from capsroute.layers import list_routings
    >>> "max_min" in list_routings()
    True
    """
    return list(_ROUTERS)


def make_router(routing: str | dict | Router) -> Router:
    """A router from a name, from `{"name": ..., option: value}`, or a copy of the router that is given.

    >>> from capsroute.layers import make_router
    >>> make_router({"name": "dynamic", "iterations": 1})
    DynamicRouter(iterations=1, stop_gradient=False)
    """
    if isinstance(routing, Router):
        return copy.deepcopy(routing)
    options = {"name": routing} if isinstance(routing, str) else dict(routing)
    name = options.pop("name", None)
    if name not in _ROUTERS:
        raise ValueError(f"routing: expected one of {', '.join(_ROUTERS)}, or a router, got {name!r}")
    known = list(inspect.signature(_ROUTERS[name].__init__).parameters)[1:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"routing: {name!r} has options {', '.join(known)}, got {', '.join(unknown)}")
    return _ROUTERS[name](**options)
