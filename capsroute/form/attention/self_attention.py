"""Self-attention as two iterations of the routing loop: the sums of all votes, times a scale, are the last query.

So its kernels are those of dynamic routing, with a prior of the logits, and a squash of its own for the last sums.
"""

from torch import Tensor

from capsroute.form.launch import on_device
from capsroute.form.launches.stored_votes import ResidentPlan
from capsroute.form.loop import calls
from capsroute.form.loop.operators import is_shared, loses_digits
from capsroute.form.loop.plain import Prior, Schedule
from capsroute.form.loop.shared import shared_backward, shared_forward
from capsroute.form.sizes import operand_dtype, sizes_of

IN_PARTS = "of sums of children that share transforms, multiplied in parts, a loop keeps fewer digits"


def reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why a list u [b,i,a,k] and transforms W [i,j,k,o] or [1,j,k,o] have no kernels, if anything."""
    found = calls.loop_reasons(u, W, 2)
    if loses_digits(u, W):
        found.append(IN_PARTS)
    return found


def makes_coefficients_again(u: Tensor, W: Tensor) -> bool:
    """Whether the way back over transforms of each child's own reads no coefficients."""
    operands = calls.Operands(u, W, sizes_of(u, W), None)  # for a plan alone, wherever they lie
    return not is_shared(u, W) and isinstance(calls.stored_plan(operands), ResidentPlan)


def _schedule(prior: Tensor | None, scale: float) -> Schedule:
    return Schedule(2, 1 if prior is None else 2, 1.0, 0.0, 1.0, False, scale, by_sums=True)


def _stride(prior: Tensor) -> int:
    """Numbers from one child to the next of a contiguous prior [i,j], or [1,j]."""
    return 0 if prior.shape[0] == 1 else prior.shape[1]


@on_device
def forward(u: Tensor, W: Tensor, prior: Tensor | None, scale: float, save: bool) -> tuple[Tensor, ...]:
    """Poses [b,j,a,o] and coefficients [b,i,j]; then what the gradient needs."""
    how = _schedule(prior, scale)
    added = None if prior is None else Prior(prior.contiguous(), _stride(prior), prior)
    if is_shared(u, W):
        return shared_forward(u, W, how, added)
    operands = calls.operands_of(u, W, None)
    # Votes that are not small beside the transforms are made again: kept, they would lie beside all gradients.
    keep = save and 2 * operands.sizes.b * operands.sizes.a <= operands.sizes.k
    return calls.per_child_forward(operands, calls.stored_plan(operands), how, save, keep, added)


@on_device
def backward(
    grads: tuple[Tensor, ...], tensors: tuple[Tensor, Tensor, Tensor | None], kept: tuple, scale: float, save: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients by children, transforms and the prior, from that of the poses."""
    (g, *_), (u, W, prior), shared = grads, tensors, is_shared(*tensors[:2])
    how, added = _schedule(prior, scale), None
    if prior is not None:
        (b, i), j = u.shape[:2], W.shape[1]
        each = u.new_empty((b, i, j) if shared else (i, j, b), dtype=operand_dtype(u, W))
        added = Prior(prior.contiguous(), _stride(prior), each, 0 if shared else 2)
        del each
    if shared:
        du, dW = shared_backward(g, None, u, W, kept[:2], how, added)
    else:
        operands = calls.operands_of(u, W, None)
        plan = calls.stored_plan(operands)
        kept = (kept[0], *kept) if isinstance(plan, ResidentPlan) else kept  # in the place of coefficients
        du, dW = calls.per_child_backward(g, None, operands, kept, plan, how, added)
    if prior is None or added is None or not prior.requires_grad:
        return du, dW, None
    added.add_up()
    by_prior = added.gradient
    return du, dW, (by_prior if added.stride else by_prior.sum(0, keepdim=True)).to(prior.dtype)
