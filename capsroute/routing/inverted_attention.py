"""Inverted dot-product attention routing (Tsai 2020, procedure 1): one step.

    r_ij <- softmax over parents of p_j . V_ij        (p_j the parents' poses of the previous step)
    p_j  <- LayerNorm(sum_i r_ij V_ij)

Parents start at zero, so the first coefficients are uniform, 1 / parents. Who steps when is the model's business
(procedure 2): see `cr.layers.CapsuleStack`.
"""

from collections.abc import Callable

from torch import Tensor

from capsroute.form.attention.operators import attention_step, first_step
from capsroute.form.rows.layer_norm import layer_norm
from capsroute.routing.checks import check_finite, matching
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


def pose_layer_norm(poses: Tensor) -> Tensor:
    """LayerNorm over the whole pose (a and o together), eps 1e-5, no affine: [..., a, o] -> [..., a, o]."""
    return layer_norm(poses.flatten(-2)).view_as(poses)


@routing
def inverted_attention_routing(
    votes: Votes,
    parents: Tensor | None = None,
    scale: float | None = None,
    norm: Callable[[Tensor], Tensor] | None = None,
    coefficients: bool = True,
) -> Routed:
    """One step: parents compete for each child's attention.

    votes [b,i,j,a,o], parents [b,j,a,o] or None for the first step -> poses [b,j,a,o], coefficients [b,i,j].
    `scale` multiplies the agreement (the released code has 1/sqrt(a*o)); `norm` replaces LayerNorm over the pose.
    `coefficients=False` leaves them out: on a GPU nothing of size children x parents is then stored.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 4, 4), torch.randn(6, 3, 4, 4))
    >>> first = cr.inverted_attention_routing(votes)
    >>> cr.inverted_attention_routing(votes, first.poses).poses.shape
    torch.Size([2, 3, 4, 4])
    """
    if scale is not None:
        check_finite("scale", scale)
    if norm is not None and not callable(norm):
        raise ValueError(f"norm: expected a module or function of poses, or None for LayerNorm, got {norm!r}")
    sums, c = first_step(votes) if parents is None else _step(votes, parents, scale, coefficients)
    return Routed((pose_layer_norm if norm is None else norm)(sums), c if coefficients else None, None, None)


def _step(votes: Votes, parents: Tensor, scale: float | None, coefficients: bool) -> tuple[Tensor, Tensor | None]:
    parents = matching("parents", parents, votes, "bjao")
    scale = 1.0 if scale is None else float(scale)
    return attention_step(votes, parents, scale, coefficients)
