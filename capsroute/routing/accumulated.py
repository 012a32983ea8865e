"""The loop that dynamic and max-min routing share: agreement with the accumulated parents, repeated."""

import torch

from capsroute.form.loop.operators import fused_loop
from capsroute.form.loop.plain import Normalise, plain_loop
from capsroute.form.loop.stored import stored_loop
from capsroute.routing.routed import Routed
from capsroute.votes import Votes

__all__ = ["accumulated_routing"]


def accumulated_routing(
    votes: Votes, first: float, normalise: Normalise, iterations: int, stop_gradient: bool
) -> Routed:
    """Start with every coefficient at `first`; then, repeatedly, normalise the agreement with the parents so far.

    By kernels where they apply, over stored votes where they are small and on a CPU, else one question at a time.
    """
    how = (first, normalise, iterations, stop_gradient)
    found = fused_loop(votes, *how) or stored_loop(votes, *how)
    if found is None:
        c = torch.full((), first, dtype=votes.statistics_dtype, device=votes.device)
        c = c.expand(votes.batch, votes.children, votes.parents)
        found = plain_loop(votes.agreement, votes.aggregate, c, normalise, iterations, stop_gradient, votes.backend)
    return Routed(*found, None, None)
