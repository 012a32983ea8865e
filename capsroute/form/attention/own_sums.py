"""Self-attention as two iterations of the routing loop: the sums of all votes, times a scale, are the last query.

So its kernels are those of dynamic routing, with a prior of the logits, and a squash of its own for the last sums.
"""

import torch
from torch import Tensor

from capsroute.form.launch import on_device
from capsroute.form.loop import calls
from capsroute.form.loop.operators import is_shared
from capsroute.form.loop.plain import Prior, Schedule
from capsroute.form.loop.shared import shared_backward, shared_forward
from capsroute.form.sizes import operand_dtype, precision

IN_PARTS = "of sums of children that share transforms, multiplied in parts, a loop keeps fewer digits"


def self_attention_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why a list u [b,i,a,k] and transforms W [i,j,k,o] or [1,j,k,o] have no kernels, if anything."""
    reasons = calls.loop_reasons(u, W, 2)
    if is_shared(u, W) and operand_dtype(u, W) == torch.float32 and precision() != "tf32":
        reasons.append(IN_PARTS)
    return reasons


def _schedule(prior: Tensor | None, scale: float) -> Schedule:
    return Schedule(2, 1 if prior is None else 2, 1.0, 0.0, 1.0, False, scale, by_sums=True)


def _prior(given: Tensor | None, u: Tensor, W: Tensor, back: bool) -> Prior | None:
    """With a place for its gradient, on the way back."""
    if given is None:
        return None
    given, (b, i), j = given.contiguous(), u.shape[:2], W.shape[1]
    each = (b, i, j) if is_shared(u, W) else (i, j, b)
    gradient = given.new_empty(each if back else 0, dtype=torch.float32)
    return Prior(given, 0 if given.shape[0] == 1 else j, gradient)


@on_device
def self_attention_forward(u: Tensor, W: Tensor, prior: Tensor | None, scale: float, save: bool) -> tuple[Tensor, ...]:
    """Poses [b,j,a,o] and coefficients [b,i,j]; then what the gradient needs."""
    how, prior = _schedule(prior, scale), _prior(prior, u, W, False)
    if is_shared(u, W):
        return shared_forward(u, W, how, prior)
    operands = calls.operands_of(u, W, None)
    return calls.per_child_forward(operands, calls.stored_plan(operands), how, save, save, prior)


@on_device
def self_attention_backward(
    grads: tuple[Tensor, ...], tensors: tuple[Tensor, Tensor, Tensor | None], kept: tuple, scale: float, save: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients by children, transforms and the prior, from that of the poses."""
    (g, *_), (u, W, given) = grads, tensors
    how, prior = _schedule(given, scale), _prior(given, u, W, True)
    if is_shared(u, W):
        du, dW = shared_backward(g, None, u, W, kept[:2], how, prior)
    else:
        operands = calls.operands_of(u, W, None)
        du, dW = calls.per_child_backward(g, None, operands, kept, calls.stored_plan(operands), how, prior)
    if given is None or prior is None or not given.requires_grad:
        return du, dW, None
    samples = 0 if is_shared(u, W) else 2
    by_prior = prior.gradient.sum(samples)
    return du, dW, (by_prior if prior.stride else by_prior.sum(0, keepdim=True)).to(given.dtype)
