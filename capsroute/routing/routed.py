"""What every routing algorithm returns, and what it asks of its arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from capsroute.form.ops import is_transformed
from capsroute.votes import Votes

__all__ = ["Routed", "check_at_least", "check_finite", "check_no_nan", "routing"]

F = TypeVar("F", bound=Callable)


class Routed(NamedTuple):
    """The parents, and how the children were shared out among them."""

    poses: Tensor  # [b, j, a, o]
    coefficients: (
        Tensor | None
    )  # [b, i, j], of the last iteration that made the poses; None where a layer was not asked
    scores: Tensor | None = None  # [b, j], where the algorithm has them
    variances: Tensor | None = None  # [b, j, a, o], where the algorithm has them


def routing(function: F) -> F:
    """Marks a routing function: its first argument is votes, and its statistics stay in float32 under autocast."""

    @functools.wraps(function)
    def checked(votes, *args, **kwargs):
        if not isinstance(votes, Votes):
            raise ValueError(
                f"votes: expected DenseVotes, LinearVotes or IdentityVotes, got {type(votes).__name__} "
                "(wrap a tensor [b,i,j,a,o] as cr.DenseVotes(V))"
            )
        for name in ("u", "W", "bias"):
            if getattr(votes, name, None) is not None:
                check_no_nan(f"votes.{name}", getattr(votes, name))
        with torch.autocast(votes.device.type, enabled=False):
            return function(votes, *args, **kwargs)

    return checked  # type: ignore[return-value]


def check_at_least(name: str, value: int, least: int) -> None:
    """A whole number of at least this much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")


def check_finite(name: str, value: float) -> None:
    """A number that is neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")


def check_no_nan(name: str, tensor: Tensor) -> None:
    """One NaN here would reach every parent of its sample. Looked at only where looking costs no synchronisation."""
    if torch.compiler.is_compiling() or type(tensor) not in (Tensor, torch.nn.Parameter) or is_transformed(tensor):
        return
    if tensor.device.type == "cpu" and bool(tensor.isnan().any()):
        where = tuple(tensor.isnan().nonzero()[0].tolist())
        raise ValueError(f"{name}: expected no NaN, found one at {list(where)} of shape {tuple(tensor.shape)}")
