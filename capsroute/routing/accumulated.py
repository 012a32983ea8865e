"""The loop that dynamic and max-min routing share: agreement with the accumulated parents, repeated.

The logits are linear in the parents, b_ij = V_ij . (v_1 + ... + v_t), so the loop carries one accumulated query
[b,j,a,o] instead of logits [b,i,j].
"""

from collections.abc import Callable

import torch
from torch import Tensor

from capsroute.routing.fused import fused_loop
from capsroute.routing.routed import Routed
from capsroute.routing.squash import squash
from capsroute.routing.stored import stored_loop
from capsroute.votes import Votes

__all__ = ["accumulated_routing", "plain_loop"]


def accumulated_routing(
    votes: Votes, first: float, normalise: Callable[[Tensor], Tensor], iterations: int, stop_gradient: bool
) -> Routed:
    """Start with every coefficient at `first`; then, repeatedly, normalise the agreement with the parents so far."""
    how = (votes, first, normalise, iterations, stop_gradient)
    return Routed(*(fused_loop(*how) or stored_loop(*how) or plain_loop(*how)), None, None)


def plain_loop(
    votes: Votes, first: float, normalise: Callable[[Tensor], Tensor], iterations: int, stop_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The loop, one contraction at a time."""
    c = torch.full((), first, dtype=votes.statistics_dtype, device=votes.device)
    c = c.expand(votes.batch, votes.children, votes.parents)
    backend = getattr(votes, "backend", "auto")
    poses = query = squash(votes.aggregate(c), (2, 3), backend)
    for iteration in range(1, iterations):
        if iteration > 1:
            query = query + poses
        c = normalise(votes.agreement(query.detach() if stop_gradient else query))
        poses = squash(votes.aggregate(c.detach() if stop_gradient else c), (2, 3), backend)
    return poses, c
