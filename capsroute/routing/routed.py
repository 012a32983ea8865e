"""What every routing algorithm returns, and the mark it bears."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

from capsroute.form.dispatch import autocast_is_on, check_reachable
from capsroute.routing.checks import check_no_nan
from capsroute.votes import Votes, check_votes


def register_output(kind: type) -> None:
    """Let `torch.export.save` write programs that return the named tuple `kind`."""
    _pytree._register_namedtuple(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")


F = TypeVar("F", bound=Callable)


class Routed(NamedTuple):
    """The parents, and how the children were shared out among them.

    >>> import torch, capsroute as cr
    >>> poses, coefficients, scores, variances = cr.dynamic_routing(cr.DenseVotes(torch.randn(2, 6, 3, 4)))
    >>> poses.shape, coefficients.shape, scores
    (torch.Size([2, 3, 1, 4]), torch.Size([2, 6, 3]), None)
    """

    # The library always gives all four: compiling on torch 2.11 failed where some were left to their defaults.
    poses: Tensor  # [b, j, a, o]
    coefficients: Tensor | None  # [b, i, j], those that made the poses; None where a layer was not asked
    scores: Tensor | None = None  # [b, j], where the algorithm has them
    variances: Tensor | None = None  # [b, j, a, o], where the algorithm has them


register_output(Routed)


def routing(function: F) -> F:
    """Marks a routing function: its first argument is votes, and its statistics stay in float32 under autocast."""

    @functools.wraps(function)
    def checked(votes: Votes, *args: Any, **kwargs: Any) -> Any:
        check_votes(votes)
        device = votes.device
        check_reachable(function.__name__, votes.backend, device)
        if device.type == "cpu":  # elsewhere values are not looked at: asking each tensor takes a microsecond
            for name, tensor in votes.tensors().items():
                if tensor is not None:
                    check_no_nan(f"votes.{name}", tensor)
        # Leaving autocast costs more than asking whether it is on.
        on = autocast_is_on(device)
        with torch.autocast(device.type, enabled=False) if on else nullcontext():
            return function(votes.keeping(), *args, **kwargs)

    return checked  # type: ignore[return-value]
