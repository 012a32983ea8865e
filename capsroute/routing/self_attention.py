"""Self-attention routing (Mazzia, Salvetti & Chiaberge 2021, Efficient-CapsNet): votes attend to their own sum, once.

S_j  <- sum_i V_ij
c_ij <- softmax over parents of  V_ij . S_j / sqrt(a o) + prior_ij
s_j  <- sum_i c_ij V_ij,       v_j <- (1 - exp(-|s_j|)) s_j / |s_j|
"""

from torch import Tensor

from capsroute.form.attention.operators import attention_step, by_own_sums, self_attention
from capsroute.form.rows.squash import exponential_squash
from capsroute.routing.checks import matching
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes

__all__ = ["exponential_squash", "self_attention_routing"]


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
        prior = matching("prior", prior, votes, "ij", shared=True, widen=False)
    scale = (votes.rows * votes.columns) ** -0.5
    found = self_attention(votes, prior, scale) or _by_questions(votes, prior, scale)
    return Routed(*found, None, None)


def _by_questions(votes: Votes, prior: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    sums = votes.aggregate_alike(1.0)
    if prior is None:  # a step of inverted attention, from the sums
        attended, c = attention_step(votes, sums, scale, True)
        return exponential_squash(attended, (2, 3)), c  # type: ignore[return-value]
    return by_own_sums(votes.agreement, votes.aggregate, sums, prior.to(votes.statistics_dtype), scale)
