"""Self-attention routing (Mazzia, Salvetti & Chiaberge 2021, Efficient-CapsNet): votes attend to their own sum, once.

S_j  <- sum_i V_ij
c_ij <- softmax over parents of  V_ij . S_j / sqrt(a o) + prior_ij
s_j  <- sum_i c_ij V_ij,       v_j <- (1 - exp(-|s_j|)) s_j / |s_j|
"""

import torch
from torch import Tensor

from capsroute.form import statistics_dtype
from capsroute.form.attention.operators import attention_step
from capsroute.form.checks import check_axes, check_floating
from capsroute.form.rows.squash import norm_of
from capsroute.routing.checks import matching
from capsroute.routing.normalise import masked_over_parents
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes

SHORT = 1e-4  # below it four terms of a series are exact in float64


def exponential_squash(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """(1 - exp(-|x|)) x / |x|, the norm taken over `dims`: steeper than `cr.squash` near zero, where it is x itself.

    >>> import torch, capsroute as cr
    >>> cr.exponential_squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).norm(dim=-1)
    tensor([0.9933, 0.0000])
    """
    check_floating("x", x)
    dims = check_axes("dims", dims, x)
    wide = x.to(statistics_dtype(x))
    norm, zero = norm_of(wide, dims)
    # Near zero by its series: 1 / norm has no finite derivative at the smallest numbers there are.
    small, large = norm.clamp_max(SHORT), norm.clamp_min(SHORT)
    series = 1 - small * (1 / 2 - small * (1 / 6 - small / 24))
    factor = torch.where(norm > SHORT, -torch.expm1(-large) / large, series)
    return (wide * torch.where(zero, 1.0, factor)).to(x.dtype)


@routing
def self_attention_routing(votes: Votes, prior: Tensor | None = None) -> Routed:
    """Route in one pass by the dot product of each vote with the sum of its parent's votes.

    votes [b,i,j,a,o], prior [i,j] (or [1,j], shared by all children) or None -> poses [b,j,a,o], coefficients [b,i,j].
    A prior of -inf is "never": a child that may go nowhere gives nothing to anyone.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 3, 8, 16))
    >>> cr.self_attention_routing(votes, torch.zeros(6, 3)).poses.shape
    torch.Size([2, 3, 1, 16])
    """
    if prior is not None:
        prior = matching("prior", prior, votes, "ij", shared=True)
    sums = votes.aggregate_alike(1.0)
    scale = (votes.rows * votes.columns) ** -0.5
    if prior is None:  # a step of inverted attention, from the sums
        attended, c = attention_step(votes, sums, scale, True)
    else:
        c = masked_over_parents(votes.agreement(sums * scale) + prior)  # [b, i, j]
        attended = votes.aggregate(c)
    return Routed(exponential_squash(attended, (2, 3)), c, None, None)
