"""Self-routing (Hahn, Pyeon & Kim 2019): a child alone decides where it goes; nothing is repeated, nothing agrees.

    r_ij <- softmax over parents of logits_ij           (the layer's: logits_ij = u_i . w_ij + b_ij)
    a_j  <- sum_i a_i r_ij / sum_i a_i
    p_j  <- sum_i a_i r_ij V_ij / sum_i a_i r_ij

A parent that receives nothing has pose zero; where no child is active all activations are zero.
"""

from torch import Tensor

from capsroute.form.self_routing import operators
from capsroute.routing.checks import check_probabilities, matching
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def self_routing(votes: Votes, activations: Tensor, logits: Tensor) -> Routed:
    """Share each child out by its own logits; parents are weighted means, activations weighted shares.

    votes [b,i,j,a,o], activations [b,i] in [0,1], logits [b,i,j] -> poses [b,j,a,o], coefficients r [b,i,j], scores
    (activations, which sum to 1 over parents) [b,j]. A logit of -inf is "never": a child whose logits all are gives
    nothing to anyone, +inf is "always".

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 3, 8, 16))
    >>> routed = cr.self_routing(votes, torch.rand(2, 6), torch.randn(2, 6, 3))
    >>> routed.poses.shape, routed.scores.sum(1).allclose(torch.ones(2))
    (torch.Size([2, 3, 1, 16]), True)
    """
    activations = matching("activations", activations, votes, "bi", widen=False)
    check_probabilities("activations", activations)
    logits = matching("logits", logits, votes, "bij", widen=False)
    r, poses, scores = operators.self_routing(votes, activations, logits)
    return Routed(poses, r, scores, None)
