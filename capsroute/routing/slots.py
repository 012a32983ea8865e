"""One step of slot attention (Locatello et al. 2020, algorithm 1): slots compete for inputs, then each takes a mean.

    A_ij <- softmax over parents of scale k_i . q_j, plus eps
    A_ij <- A_ij / sum_i A_ij
    s_j  <- sum_i A_ij v_i

The softmax is over parents, as in dynamic routing; the mean over children makes a slot the same however many inputs it
explains. `cr.layers.SlotAttention` repeats the step. Both sums run over children, so that they can be made a few
children at a time: nothing of size children x parents is then stored, forwards or backwards.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from capsroute.form.dispatch import autocast_is_on
from capsroute.form.operations import is_transformed
from capsroute.routing.checks import check_finite, check_no_nan, check_positive, check_probabilities
from capsroute.routing.normalise import or_one
from capsroute.routing.routed import Routed

# Coefficients of one call up to this many numbers are stored; of more, a piece of this many at a time is made, and made
# again on the way back.
PIECE = 1 << 24


def slot_routing(
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    scale: float | None = None,
    eps: float = 1e-8,
    mask: Tensor | None = None,
    coefficients: bool = True,
) -> Routed:
    """Share each input out among slots, and give each slot the weighted mean of the inputs' values.

    keys [b,i,d], values [b,i,e], queries [b,j,d] -> poses [b,j,1,e], coefficients [b,i,j], which sum to 1 over
    children. `scale` is 1 / sqrt(d) unless given. `mask` [b,i] leaves out children where it is false (a number between
    0 and 1 weighs them); where it leaves out all, poses and coefficients are zero. `coefficients=False` leaves them
    out of the result; long inputs then store nothing of size children x parents.

    >>> import torch, capsroute as cr
    >>> routed = cr.slot_routing(torch.randn(2, 49, 16), torch.randn(2, 49, 32), torch.randn(2, 5, 16))
    >>> routed.poses.shape, routed.coefficients.sum(1).allclose(torch.ones(2, 5))
    (torch.Size([2, 5, 1, 32]), True)
    """
    wide = _check(keys, values, queries, mask)
    check_positive("eps", eps)
    scale = keys.shape[2] ** -0.5 if scale is None else scale
    check_finite("scale", scale)
    device = keys.device.type
    with torch.autocast(device, enabled=False) if autocast_is_on(keys.device) else nullcontext():
        keys, values, queries = keys.to(wide), values.to(wide), scale * queries.to(wide)
        mask = None if mask is None else mask.to(wide).unsqueeze(2)  # [b, i, 1]
        (batch, children, _), parents = keys.shape, queries.shape[1]
        whole = coefficients or torch.compiler.is_compiling() or is_transformed(keys, values, queries)
        if whole or batch * children * parents <= PIECE:
            weights = _weights(keys, queries, mask, eps)
            weights = weights / or_one(weights.sum(1, keepdim=True))
            poses = torch.bmm(weights.mT, values)
            return Routed(poses.unsqueeze(2), weights if coefficients else None, None, None)
        return Routed(_in_pieces(keys, values, queries, mask, eps).unsqueeze(2), None, None, None)


def _weights(keys: Tensor, queries: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """What each child gives to each slot, before the slots' means: [b,i,j]."""
    shares = torch.bmm(keys, queries.mT).softmax(2) + eps
    return shares if mask is None else shares * mask


def _in_pieces(keys: Tensor, values: Tensor, queries: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """Poses [b,j,e], a few children at a time."""
    length = max(1, PIECE // (keys.shape[0] * queries.shape[1]))
    masks = [None] * -(-keys.shape[1] // length) if mask is None else mask.split(length, 1)

    def sums(k: Tensor, v: Tensor, q: Tensor, m: Tensor | None) -> tuple[Tensor, Tensor]:
        weights = _weights(k, q, m, eps)
        return torch.bmm(weights.mT, v), weights.sum(1)

    total, weight = torch.zeros_like(queries[:, :, :1]), torch.zeros_like(queries[:, :, 0])
    for k, v, m in zip(keys.split(length, 1), values.split(length, 1), masks):
        more, heavier = checkpoint(sums, k, v, queries, m, use_reentrant=False, preserve_rng_state=False)
        total, weight = total + more, weight + heavier
    return total / or_one(weight).unsqueeze(2)


def _check(keys: Tensor, values: Tensor, queries: Tensor, mask: Tensor | None) -> torch.dtype:
    """The dtype of the sums, after a look at shapes, dtypes, devices and at NaN."""
    given = {"keys": keys, "values": values, "queries": queries}
    for name, letters in (("keys", "[b,i,d]"), ("values", "[b,i,e]"), ("queries", "[b,j,d]")):
        tensor = given[name]
        if not isinstance(tensor, Tensor) or tensor.dim() != 3 or not tensor.is_floating_point():
            what = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)
            raise ValueError(f"{name}: expected a floating-point tensor {letters}, got {what}")
        if tensor.device != keys.device:
            raise ValueError(f"{name}: expected a tensor on {keys.device}, as the keys are, got {tensor.device}")
        check_no_nan(name, tensor)
    (batch, children, features), parents = keys.shape, queries.shape[1]
    for name, expected, letters in (
        ("values", (batch, children, values.shape[2]), "[b,i,e]"),
        ("queries", (batch, parents, features), "[b,j,d]"),
    ):
        if tuple(given[name].shape) != expected:
            raise ValueError(f"{name}: expected shape {expected} {letters}, got {tuple(given[name].shape)}")
    if parents < 1:
        raise ValueError(f"queries: expected at least one slot, got shape {tuple(queries.shape)}")
    if mask is not None and (not isinstance(mask, Tensor) or tuple(mask.shape) != (batch, children)):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(f"mask: expected shape {(batch, children)} [b,i], got {got}")
    if mask is not None:
        check_no_nan("mask", mask)
        check_probabilities("mask", mask)
    wide = torch.promote_types(torch.promote_types(keys.dtype, values.dtype), queries.dtype)
    return torch.promote_types(wide, torch.float32)
