"""Self-routing and its derivative as sequences of kernels, over transforms of each child's own or shared by all.

Parents of shared transforms that no program holds pass through matrix products, between kernels of their shares.
"""

import torch
from torch import Tensor

from capsroute.form.contractions import plain
from capsroute.form.contractions.gradients import transforms_gradient
from capsroute.form.contractions.kernels import SINGLE, WIDE, aggregate_plane, grid_reasons, operand_reasons
from capsroute.form.cost import is_wide
from capsroute.form.launch import LaunchSequence, kind_of, on_device
from capsroute.form.launches.self_routing import MOST_HELD, SharesPlan, shares_plan
from capsroute.form.loop.operators import is_shared
from capsroute.form.rows.totals import total
from capsroute.form.self_routing.kernels import (
    add_shares,
    children_back,
    few_back,
    parents_back,
    share_out,
    slopes_of_plane,
    weigh,
)
from capsroute.form.self_routing.shared import holds_parents, shared_backward, shared_forward
from capsroute.form.sizes import Sizes, operand_dtype, precision, sizes_of


def reasons(u: Tensor, W: Tensor, activations: Tensor, logits: Tensor) -> list[str]:
    """Why the kernels do not apply to linear votes, if anything."""
    s = sizes_of(u, W)
    found = operand_reasons(u, W, (s.b, s.j, s.a, s.o), (s.b, s.i, s.j))
    if torch.float64 in (activations.dtype, logits.dtype) and not found:
        found.append(WIDE)
    if s.j > MOST_HELD:
        found.append(f"a program holds all parents of a child, {MOST_HELD} at most, here {s.j}")
    if is_shared(u, W):
        return found
    if is_wide(s.a, s.k, s.o):
        found.append("poses are so wide that votes are better stored")
    return found + grid_reasons(s.j, s.b)


def _walks(s: Sizes, u: Tensor, W: Tensor) -> bool:
    """Whether programs hold all parents of a sample, and walk over its children."""
    return is_shared(u, W) and holds_parents(s, operand_dtype(u, W))


@on_device
def forward(u: Tensor, W: Tensor, activations: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """Shares r [b,i,j], poses [b,j,a,o] and scores [b,j]; then what backward needs.

    That is what each parent received [b,j], the sum of activations [b], and weights c [i,j,b], or over shared
    transforms c [b,i,j] or what `shared_forward` keeps.
    """
    s, listed = sizes_of(u, W), is_shared(u, W)
    if _walks(s, u, W):
        return shared_forward(u, W, activations, logits)
    tensors = [t.contiguous() for t in (u, W, activations, logits)]
    u, W, activations, logits = tensors
    plan = shares_plan(s, operand_dtype(u, W), precision(), listed)
    run = LaunchSequence(plan.sequences, kind_of(*tensors), *(t.dtype for t in tensors))
    r = u.new_empty((s.b, s.i, s.j), dtype=torch.float32)
    received, scores, active = r.new_empty((s.b, s.j)), r.new_empty((s.b, s.j)), r.new_empty(s.b)
    part, part_a = (t.new_empty((plan.share.splits, *t.shape)) for t in (received, active))
    run(share_out, plan.share, activations, logits, r, part, part_a, s.b, s.i, s.j, plan.share.tiles)
    run(add_shares, plan.add, part, part_a, received, active, scores, s.b, s.j, plan.share.splits)
    c = r.new_empty((s.b, s.i, s.j) if listed else (s.i, s.j, s.b))
    run(weigh, plan.weigh, activations, r, received, c, s.b, s.i, s.j, LISTED=listed)
    if listed:
        run.end()
        return r, plain.aggregate(c, u, W), scores, received, active, c
    launch = plan.contractions.aggregate
    sums = r.new_empty((launch.splits, s.b, s.j, s.a, s.o))
    run(aggregate_plane, launch, u, W, c, sums, s.b, s.i, s.j, launch.tiles, 0)
    poses = total(sums, run=run)
    run.end()
    return r, poses, scores, received, active, c


@on_device
def backward(
    grads: tuple[Tensor | None, ...], tensors: tuple[Tensor, ...], kept: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Gradients by children, transforms, activations and logits."""
    (g_r, g, g_scores), poses = grads[:3], kept[0]
    g = torch.zeros_like(poses) if g is None else g.contiguous()
    s, listed = sizes_of(*tensors[:2]), is_shared(*tensors[:2])
    if _walks(s, *tensors[:2]):
        return shared_backward((g, g_scores, g_r), tensors, kept)
    tensors = tuple(t.contiguous() for t in tensors)
    (u, W, activations, logits), (_, scores, received, active, c) = tensors, (t.contiguous() for t in kept)
    dtype, poses, scored = operand_dtype(u, W), poses.contiguous(), g_scores is not None
    plan = shares_plan(s, dtype, precision(), listed)
    g_scores = scores if g_scores is None else g_scores.contiguous()
    given, strides = (scores, (0, 0, 0)) if g_r is None else (g_r, g_r.stride())
    kind = kind_of(*tensors, g, g_scores, given, poses, scores, received, active, c, *strides)
    run = LaunchSequence(plan.sequences, kind, "back", *(t.dtype for t in tensors), g_r is None)
    known, copied = torch.empty_like(received), plan.few is None and not listed and dtype != g.dtype
    x = torch.empty_like(g, dtype=dtype) if copied else g
    run(parents_back, plan.known, poses, g, received, known, x, s.b, s.j, COPY=copied)
    if listed:
        by_c = plain.agreement(u, W, g)
        du, dW = plain.grad_children(c, W, g).to(u.dtype), plain.grad_transforms(c, u, g, True).to(W.dtype)
    else:
        by_c = torch.empty_like(c)
        du, dW = _gradients(run, plan, s, u, W, c, x, by_c)
    da, dl = torch.empty_like(activations), torch.empty_like(logits)
    run(
        slopes_of_plane, plan.slopes, activations, logits, by_c, known, received, active, scores, g_scores, given, da,
        dl, s.b, s.i, s.j, plan.slopes.tiles, int(scored), *strides, GIVEN=g_r is not None, LISTED=listed,
    )  # fmt: skip
    run.end()
    return du, dW, da, dl


def _gradients(
    run: LaunchSequence, plan: SharesPlan, s: Sizes, u: Tensor, W: Tensor, c: Tensor, x: Tensor, by_c: Tensor
) -> tuple[Tensor, Tensor]:
    """By children and transforms; and those by the weights, by_c [i,j,b]."""
    launch = plan.few or plan.children
    du = u.new_empty((launch.splits, *u.shape), dtype=u.dtype if launch.splits == 1 else torch.float32)
    if plan.few is not None:
        dW = torch.empty_like(W)
        run(few_back, launch, u, W, c, x, by_c, du, dW, s.b, s.i, s.j)
        return total(du, u.dtype, run=run), dW
    run(children_back, launch, u, W, c, x, by_c, du, s.b, s.i, s.j, launch.tiles)
    du, launch = total(du, u.dtype, run=run), plan.contractions.transforms
    dW = W.new_empty((launch.splits, *W.shape), dtype=W.dtype if launch.splits == 1 else torch.float32)
    terms = c, c, c, x, x
    strides = 1, s.j * s.b, s.b
    run(transforms_gradient, launch, *terms, u, dW, s.b, s.i, s.j, launch.tiles, *strides, **SINGLE)
    return du, total(dW, W.dtype, run=run)
