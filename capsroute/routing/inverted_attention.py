"""Inverted dot-product attention routing (Tsai 2020, procedure 1): one step, or several of a layer that stands alone.

    r_ij <- softmax over parents of p_j . V_ij        (p_j the parents' poses of the previous step)
    p_j  <- LayerNorm(sum_i r_ij V_ij)

Parents start at zero, so the first coefficients are uniform, 1 / parents. Who steps when is the model's business
(procedure 2): see `cr.layers.CapsuleStack`.
"""

from collections.abc import Callable

from torch import Tensor

from capsroute.form.attention.operators import attention_loop, attention_step, first_step
from capsroute.form.rows.layer_norm import layer_norm
from capsroute.routing.checks import check_at_least, check_finite, matching
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


def pose_layer_norm(poses: Tensor) -> Tensor:
    """LayerNorm over the whole pose (a and o together), eps 1e-5, no affine: [..., a, o] -> [..., a, o]."""
    return layer_norm(poses, axes=2)


@routing
def inverted_attention_routing(
    votes: Votes,
    parents: Tensor | None = None,
    scale: float | None = None,
    norm: Callable[[Tensor], Tensor] | None = None,
    coefficients: bool = True,
    iterations: int = 1,
) -> Routed:
    """One step, or `iterations` of them, each from the poses before: parents compete for each child's attention.

    votes [b,i,j,a,o], parents [b,j,a,o] or None for the first step -> poses [b,j,a,o], coefficients [b,i,j].
    `scale` multiplies the agreement (the released code has 1/sqrt(a*o)); `norm` replaces LayerNorm over the pose.
    `coefficients=False` leaves them out: on a GPU a step then stores nothing of size children x parents. Several steps
    in one call are faster on a GPU than as many calls: transforms get one gradient, not one a step, for which the
    coefficients are kept.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 4, 4), torch.randn(6, 3, 4, 4))
    >>> first = cr.inverted_attention_routing(votes)
    >>> second = cr.inverted_attention_routing(votes, first.poses)
    >>> second.poses.shape
    torch.Size([2, 3, 4, 4])
    >>> cr.inverted_attention_routing(votes, iterations=2).poses.allclose(second.poses)
    True
    """
    check_at_least("iterations", iterations, 1)
    if scale is not None:
        check_finite("scale", scale)
    if norm is not None and not callable(norm):
        raise ValueError(f"norm: expected a module or function of poses, or None for LayerNorm, got {norm!r}")
    scale = 1.0 if scale is None else float(scale)
    if parents is not None:
        parents = matching("parents", parents, votes, "bjao")
    if parents is None and norm is None and iterations > 1:
        found = attention_loop(votes, iterations, scale, coefficients)
        if found is not None:
            return Routed(*found, None, None)
    for left in range(iterations, 0, -1):
        sums, c = _step(votes, parents, scale, coefficients and left == 1)
        parents = pose_layer_norm(sums) if norm is None else _same_shape(norm(sums), sums)
    return Routed(parents, c if coefficients else None, None, None)  # type: ignore[arg-type]


def _step(votes: Votes, parents: Tensor | None, scale: float, coefficients: bool) -> tuple[Tensor, Tensor | None]:
    if parents is None:
        return first_step(votes, coefficients)
    return attention_step(votes, parents.to(votes.statistics_dtype), scale, coefficients)


def _same_shape(poses: Tensor, sums: Tensor) -> Tensor:
    if poses.shape != sums.shape:
        got, expected = tuple(poses.shape), tuple(sums.shape)
        raise ValueError(f"norm: expected one that gives poses {expected} [b,j,a,o] for such sums, got {got}")
    return poses
