"""What every routing algorithm is as a module: a name, options, the few parameters that some algorithms learn, and what
it says about itself. Other rooms ask a router; they never ask what class it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from capsroute.layers.pose import ACTIVATIONS
from capsroute.naming import make_named, options_of
from capsroute.routing import Routed
from capsroute.routing.normalise import over_parents
from capsroute.votes import Votes

# Learned layers keep variances well above what float32 can lose to cancellation.
VARIANCE_FLOOR = 1e-4


UNDECLARED: Final[Any] = object()

_EXPECTED = {
    "activation": "'squash', 'exponential_squash', 'layer_norm', 'affine_layer_norm', None, or the function that it is",
    "competes_over": "'parents' or 'children'",
    "takes_coefficients": "True, or to the reason why it does not",
    "container_rows": "'softmax' or 'none', or give it a normalise_rows of its own",
}


class Router(nn.Module):
    """One routing algorithm with its options, and what others need to know of it.

    A router of one's own is a subclass with a `forward`, registered by `register_routing`. What it does not say is
    refused where it is needed, never guessed.

    >>> import torch, capsroute as cr
    >>> @cr.layers.register_routing("halves")
    ... class Halves(cr.layers.Router):
    ...     activation, competes_over = "squash", "parents"
    ...     def forward(self, votes, scores=None, **options):
    ...         c = votes.filled(0.5)
    ...         return cr.Routed(cr.squash(votes.aggregate(c), (2, 3)), c)
    >>> layer = cr.layers.CapsuleLinear(6, 2, 4, 4, routing="halves")
    >>> layer(torch.randn(3, 6, 1, 4)).poses.shape
    torch.Size([3, 2, 1, 4])
    >>> cr.inference.refusal(layer).split(";")[0]
    "routing: 'halves' does not say its takes_coefficients"
    """

    name: str
    # Rows and columns of the children's poses; a layer says them before it calls `build`.
    in_pose: tuple[int, int] | None = None
    # What scores the algorithm takes and gives: None, "logit" or "probability".
    score_kind: str | None = None
    # Whether the scores it gives say which class is there.
    scores_classes = False
    # Its parameters that weight decay spares: benefits, costs and coefficients have no reason to be small.
    undecayed: tuple[str, ...] = ()
    # Whether it is faster where nobody looks at the coefficients: `forward(..., coefficients=False)`.
    spares_coefficients = False
    # Whether parents at different positions of a map compete for a child: `forward(..., normalise=, first=)`.
    competes_over_positions = False
    # How coefficients come of logits that add up votes . squashed parents (Sabour 2017), "softmax" or "max_min", where
    # that is all there is to it, so that whoever has the votes can route them again; None for other algorithms.
    accumulates: str | None = None
    # Whether it sums up the votes of all children at full weight, so that sums grow with their number.
    sums_votes = False
    # Whether the coefficients depend on the input.
    adapts = True
    # Whether the convolution that makes primary capsules for it has a bias.
    child_bias = True
    # What it does to the weighted sum of votes.
    activation: str | Callable[[Tensor], Tensor] | None = UNDECLARED
    # Among whom a unit of weight is shared out: "parents" or "children".
    competes_over: str = UNDECLARED
    # Whether its poses are `activation` of a sum of votes weighted by its coefficients and nothing else, so that given
    # coefficients can take their place (fast inference): True, or why not.
    takes_coefficients: bool | str = UNDECLARED
    # How rows of coefficients that were averaged over many inputs are made coefficients again.
    container_rows: str = UNDECLARED

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Another `forward` is another algorithm: that it can be routed again by the same words is for it to say.
        if "forward" in vars(cls) and "accumulates" not in vars(cls):
            cls.accumulates = None

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        """Make parameters for this many children (None: any number) and parents with poses of this size."""

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        """Route: votes [b,i,j,a,o], scores [b,i] where the algorithm has them."""
        raise NotImplementedError(f"routing: {type(self).__name__} defines no forward(votes, scores)")

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None, coefficients: bool = True) -> Routed:
        """One step from the parents' poses of the previous step (None: the first); coefficients only if asked for."""
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

    # What it says about itself

    def declared(self, attribute: str) -> Any:
        """What the router says; a ValueError that names the attribute to set, where it says nothing, or nothing that
        is known."""
        value = getattr(self, attribute)
        if value is UNDECLARED:
            raise ValueError(self._says_nothing(attribute))
        check_declaration(type(self), attribute, value)
        return value

    @property
    def mask_kind(self) -> str | None:
        """The kind of scores by which a child can be left out (-inf or 0); None where there are no such scores."""
        return self.score_kind

    @property
    def parent_score_kind(self) -> str | None:
        """The kind of scores that it gives, where that is another than it takes."""
        return self.score_kind

    @property
    def squashes(self) -> bool:
        """Whether the poses it gives are squashed, so that their length is a probability."""
        return self.declared("activation") in ("squash", "exponential_squash")

    @property
    def child_activation(self) -> str | None:
        """What primary capsules go through before it: an `activation` of PrimaryCapsules."""
        activation = self.declared("activation")
        return activation if activation in ACTIVATIONS else None

    def fresh_std(self, children: int, parents: int, k: int, o: int) -> float:
        """Standard deviation of fresh transforms W [i,j,k,o]; docs/differences.md says how each was found."""
        return 0.1 if self.activation == "squash" else 1 / k

    def first_coefficient(self, children: int, parents: int) -> float:
        """The coefficient that every pair of a child and a parent has before they agree or disagree."""
        return 1 / max(1, {"parents": parents, "children": children}[self.declared("competes_over")])

    def refuses_coefficients(self) -> str | None:
        """Why given coefficients [i,j] cannot take the place of its own; None when they can."""
        if self.takes_coefficients is UNDECLARED:
            return self._says_nothing("takes_coefficients")
        if self.takes_coefficients is not True:
            return str(self.takes_coefficients)
        if self.activation is UNDECLARED:
            return self._says_nothing("activation")
        return None if self.activation in ACTIVATIONS else "its activation is a function that fast routing has not"

    def given_coefficients(self) -> Tensor | None:
        """The coefficients [i,j] that it was given, where it was."""
        return None

    def normalise_rows(self, means: Tensor) -> Tensor:
        """Coefficients [g,i,j] out of means of coefficients [g,i,j], row by row over parents."""
        return over_parents(means) if self.declared("container_rows") == "softmax" else means

    def uniform(self) -> Router:
        """The same with the same parameters, and coefficients that stay as they start: what routing adds is seen
        beside it."""
        if self.refuses_coefficients():
            mine = type(self).__name__
            raise ValueError(
                f"routing: {self.name!r} does not say what it is with equal coefficients; define {mine}.uniform, or "
                f"set {mine}.activation and {mine}.takes_coefficients where nothing but the coefficients changes"
            )
        options = {"activation": self.activation, "competes_over": self.declared("competes_over")}
        equal = make_router({"name": "uniform", **options})
        if self.activation == "affine_layer_norm":
            equal.layer_norm = self.layer_norm
        return equal

    def altered(self, **options: Any) -> Any:
        """The same with the same parameters and other options."""
        other = copy.copy(self)
        for option, value in options.items():
            setattr(other, option, value)
        return other

    def config(self) -> dict:
        """Name and options, as plain data that `make_router` takes back."""
        return {"name": self.name, **{option: getattr(self, option) for option in options_of(type(self))}}

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.config().items() if key != "name")

    def _says_nothing(self, attribute: str) -> str:
        where = f"{type(self).__name__}.{attribute}"
        return f"routing: {self.name!r} does not say its {attribute}; set {where} to {_EXPECTED[attribute]}"


def check_declaration(router: type[Router], attribute: str, value: Any) -> None:
    """A word that nobody knows would count as its opposite: 'softmx' as no softmax."""
    known = {
        "activation": callable(value) or value in ACTIVATIONS,
        "competes_over": value in ("parents", "children"),
        "takes_coefficients": value is True or isinstance(value, str),
        "container_rows": value in ("softmax", "none") or router.normalise_rows is not Router.normalise_rows,
    }
    if not known[attribute]:
        raise ValueError(f"{router.__name__}.{attribute}: expected {_EXPECTED[attribute]}, got {value!r}")


def check_routed(router: Router, routed: Any, votes: Votes, coefficients: bool = True) -> Routed:
    """What a router gave, after a look at its type and shapes: an algorithm of one's own may have them wrong.

    A compiled or exported graph is not looked at: it must not depend on sizes.
    """
    if torch.compiler.is_compiling():
        return routed
    if not isinstance(routed, Routed):
        raise ValueError(_gives(router, type(routed).__name__, "a capsroute.Routed of poses and coefficients"))
    batch, parents = votes.batch, votes.parents
    pose = (batch, parents, votes.rows, votes.columns)
    expected = pose, (batch, votes.children, parents), (batch, parents), pose
    needed = True, coefficients, router.scores_classes, False
    for n, given in enumerate(routed):
        if needed[n] if given is None else tuple(given.shape) != expected[n]:
            found = f"{Routed._fields[n]} {None if given is None else tuple(given.shape)}"
            letters = ("[b,j,a,o]", "[b,i,j]", "[b,j]", "[b,j,a,o]")[n]
            raise ValueError(_gives(router, found, f"{expected[n]} {letters}"))
    return routed


def _gives(router: Router, found: str, expected: str) -> str:
    return f"routing: {getattr(router, 'name', type(router).__name__)!r} gives {found}, expected {expected}"


def all_active(votes: Votes) -> Tensor:
    """Scores [b,i] of children that are all active."""
    return torch.ones(votes.batch, votes.children, dtype=votes.statistics_dtype, device=votes.device)


_ROUTERS: dict[str, type[Router]] = {}
R = TypeVar("R", bound=type[Router])


def register_routing(name: str) -> Callable[[R], R]:
    """Make `routing=name` mean a class of routers, in layers, models and recipes. The class gets the name.

    >>> import capsroute as cr
    >>> @cr.layers.register_routing("five_times")
    ... class FiveTimes(cr.layers.DynamicRouter):
    ...     def __init__(self, iterations: int = 5):
    ...         super().__init__(iterations)
    >>> cr.layers.make_router("five_times")
    FiveTimes(iterations=5)
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name: expected letters, digits and underscores, got {name!r}")

    def register(router: R) -> R:
        if not (isinstance(router, type) and issubclass(router, Router)):
            raise ValueError(f"router: expected a subclass of capsroute.layers.Router, got {router!r}")
        before = _ROUTERS.get(name)
        # A class that is defined again, as a notebook does, takes its own place.
        if before is not None and (before.__module__, before.__qualname__) != (router.__module__, router.__qualname__):
            raise ValueError(f"name: {name!r} is {before.__module__}.{before.__qualname__} already; choose another")
        for attribute in _EXPECTED:
            value = getattr(router, attribute)
            if value is not UNDECLARED and not isinstance(value, property):
                check_declaration(router, attribute, value)
        router.name = name
        _ROUTERS[name] = router
        return router

    return register


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
    return make_named("routing", _ROUTERS, routing, also=", or a router")
