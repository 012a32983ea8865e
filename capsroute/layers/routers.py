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


class Router(nn.Module):
    """One routing algorithm with its options. `build` makes its parameters once a layer knows its sizes."""

    name: str
    # What scores the algorithm takes and gives: None, "logit" or "probability".
    score_kind: str | None = None
    # Whether the poses it gives are squashed, so that their length is a probability.
    squashes = False

    def build(self, children: int | None, parents: int) -> None:
        """Make parameters for this many children (None: any number) and parents."""

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        """Route: votes [b,i,j,a,o], scores [b,i] where the algorithm has them."""
        raise NotImplementedError

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None) -> Routed:
        """One step from the parents' poses of the previous step (None: the first)."""
        self.check_steps()
        raise NotImplementedError

    def check_steps(self) -> None:
        """Whether `step` makes sense for this algorithm; a ValueError that says why, if not."""
        if type(self).step is Router.step:
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

    def __init__(self, iterations: int = 3, lower: float = 0.0, upper: float = 1.0, stop_gradient: bool = True):
        super().__init__()
        self.iterations, self.lower, self.upper, self.stop_gradient = iterations, lower, upper, stop_gradient

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        return algorithms.max_min_routing(votes, self.iterations, self.lower, self.upper, self.stop_gradient)


class FastRouter(Router):
    """`cr.fast_routing` with coefficients [i,j] that are kept as a buffer, or learned."""

    name = "fast"
    squashes = True

    def __init__(self, learned: bool = False):
        super().__init__()
        self.learned = learned
        self.coefficients: Tensor

    def build(self, children: int | None, parents: int) -> None:
        if children is None:
            raise ValueError("routing: 'fast' needs one coefficient per child, so the number of children must be fixed")
        uniform = torch.full((children, parents), 1 / parents)
        if self.learned:
            self.coefficients = nn.Parameter(uniform)
        else:
            self.register_buffer("coefficients", uniform)

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        return algorithms.fast_routing(votes, self.coefficients)


class PoolingRouter(Router):
    """`cr.pooling_routing`; `activation="squash"` squashes the pooled capsule as 002 does for class capsules."""

    name = "pooling"

    def __init__(self, iterations: int = 1, sharpness: float = 1.0, activation: str | None = None):
        super().__init__()
        if activation not in (None, "squash"):
            raise ValueError(f"activation: expected None or 'squash', got {activation!r}")
        self.iterations, self.sharpness, self.activation = iterations, sharpness, activation
        self.squashes = activation == "squash"

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        routed = algorithms.pooling_routing(votes, self.iterations, self.sharpness)
        return routed._replace(poses=algorithms.squash(routed.poses, (2, 3))) if self.squashes else routed


class InvertedAttentionRouter(Router):
    """`cr.inverted_attention_routing`, stepped `iterations` times when the layer stands alone.

    `scale=True` multiplies the agreement by 1/sqrt(a*o) as the released code does; `norm=None` is LayerNorm over the
    pose, `norm="none"` leaves it out (ablation A of 001).
    """

    name = "inverted_attention"

    def __init__(self, iterations: int = 2, scale: bool = False, norm: str | Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        if isinstance(norm, str) and norm != "none":
            raise ValueError(f"norm: expected None, 'none', a module or a function, got {norm!r}")
        self.iterations, self.scale = iterations, scale
        self.norm = norm

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        routed = self.step(votes, scores, None)
        for _ in range(1, self.iterations):
            routed = self.step(votes, scores, routed.poses)
        return routed

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None) -> Routed:
        scale = 1 / math.sqrt(votes.rows * votes.columns) if self.scale else None
        norm = nn.Identity() if self.norm == "none" else self.norm
        return algorithms.inverted_attention_routing(votes, parents, scale, norm)  # type: ignore[arg-type]


class EMRouter(Router):
    """`cr.em_routing` with learned beta_use and beta_activate [j]; children without scores count as active."""

    name = "em"
    score_kind = "probability"

    def __init__(self, iterations: int = 3, variance_floor: float = 1e-4):
        super().__init__()
        self.iterations, self.variance_floor = iterations, variance_floor

    def build(self, children: int | None, parents: int) -> None:
        self.beta_use = nn.Parameter(torch.zeros(parents))
        self.beta_activate = nn.Parameter(torch.zeros(parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        if scores is None:
            scores = torch.ones(votes.batch, votes.children, dtype=votes.statistics_dtype, device=votes.device)
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
    """`cr.heinsen_routing` with learned betas [i or 1, j]; children without scores count as always on."""

    name = "heinsen"
    score_kind = "logit"

    def __init__(self, iterations: int = 3, eps: float = 1e-5):
        super().__init__()
        self.iterations, self.eps = iterations, eps

    def build(self, children: int | None, parents: int) -> None:
        self.beta_use = nn.Parameter(torch.zeros(children or 1, parents))
        self.beta_ignore = nn.Parameter(torch.zeros(children or 1, parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        if scores is None:
            shape = (votes.batch, votes.children)
            scores = torch.full(shape, torch.inf, dtype=votes.statistics_dtype, device=votes.device)
        # Betas for a free number of parents are one column, the same for all.
        use, ignore = (beta.expand(-1, votes.parents) for beta in (self.beta_use, self.beta_ignore))
        return algorithms.heinsen_routing(votes, scores, use, ignore, self.iterations, self.eps)


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
