"""All steps of inverted attention over a list as one call: by kernels of the routing loop, or by columns of parents.

What a loop knows and a step does not: transforms and children get one gradient, not one a step that are added up, and
LayerNorm of the poses belongs to the kernels that make them.
"""

from typing import Any

import torch
from torch import Tensor

from capsroute.form.attention.calls import COEFFICIENTS
from capsroute.form.attention.columns import columns_backward, columns_forward
from capsroute.form.attention.few import few_steps_backward, few_steps_forward
from capsroute.form.contractions.kernels import grid_reasons, operand_reasons
from capsroute.form.cost import adds_samples, walks_samples
from capsroute.form.launch import LaunchSequence, kind_of, on_device
from capsroute.form.launches.attention_steps import FewPlan, few_plan
from capsroute.form.launches.stored_votes import ColumnPlan, ResidentPlan, column_plan, resident_plan
from capsroute.form.loop.operators import is_shared
from capsroute.form.loop.plain import Schedule
from capsroute.form.loop.shared import shared_backward, shared_forward, walk_reasons
from capsroute.form.loop.split import votes_backward, votes_forward
from capsroute.form.sizes import Sizes, loop_precision, operand_dtype, sizes_of

STEPS = "steps of a layer of this size have faster kernels of their own"


def whole_reasons(u: Tensor, W: Tensor, iterations: int) -> list[str]:
    """Why all steps are not one call for a list u [b,i,a,k] and transforms W [i,j,k,o] or [1,j,k,o], if anything."""
    s, dtype = sizes_of(u, W), operand_dtype(u, W)
    reasons = operand_reasons(u, W, (iterations * s.b * s.j, s.a, s.o))
    if iterations < 2:
        reasons.append("one step has no agreement to fuse")
    if s.b * s.i * s.j >= 1 << 31:
        reasons.append(COEFFICIENTS)
    if reasons:
        return reasons
    if not is_shared(u, W):
        if grid_reasons(s.j):
            return grid_reasons(s.j)
        if s.b * s.i * s.j * max(iterations, s.a * s.o) >= 1 << 31:
            return ["votes or coefficients have 2^31 elements or more, beyond the kernels' 32-bit offsets"]
        return [] if _plan(s, dtype) is not None else [STEPS]
    return walk_reasons(s, iterations, dtype) or ([] if adds_samples(s) else [STEPS])


def _plan(s: Sizes, dtype: torch.dtype) -> ResidentPlan | ColumnPlan | FewPlan | None:
    """Of transforms for each child."""
    small = resident_plan(s, dtype, loop_precision())
    if small is not None and (small.step is not None or walks_samples(s)):
        return small
    return column_plan(s) or few_plan(s) or small


def _schedule(s: Sizes, iterations: int, scale: float, coefficients: bool) -> Schedule:
    return Schedule(iterations, True, 1 / s.j, 0.0, 1.0, False, scale, coefficients)


@on_device
def whole_forward(u: Tensor, W: Tensor, iterations: int, scale: float, coefficients: bool) -> tuple[Tensor, ...]:
    """Poses [b,j,a,o], the last coefficients [b,i,j] if asked for, else none; then what the gradient needs."""
    s, how = sizes_of(u, W), _schedule(sizes_of(u, W), iterations, scale, coefficients)
    if is_shared(u, W):
        return shared_forward(u, W, how)
    u, W, dtype = u.contiguous(), W.contiguous(), operand_dtype(u, W)
    plan = _plan(s, dtype)
    if isinstance(plan, FewPlan):
        return few_steps_forward(plan, u, W, s, iterations, scale, coefficients)
    if isinstance(plan, ColumnPlan):
        return columns_forward(plan, u, W, s, iterations, scale)
    assert plan is not None
    poses = u.new_empty((s.b, s.j, s.a, s.o), dtype=torch.float32)
    c = poses.new_empty((s.i, s.j, s.b) if coefficients else (0, 0, 0)).permute(2, 0, 1)
    sums = poses.new_empty((iterations, *poses.shape))
    queries = poses.new_empty((iterations - 1, *poses.shape), dtype=dtype)
    run = LaunchSequence(plan.sequences, kind_of(u, W), u.dtype, W.dtype, how)
    votes_forward(run, plan, u, W, s, dtype, (poses, c, sums, queries), how)
    run.end()
    return poses, c, sums, queries, poses.new_empty(0)


@on_device
def whole_backward(
    grads: tuple[Tensor, ...], tensors: tuple[Tensor, Tensor], kept: Any, iterations: int,
    scale: float, coefficients: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by children and transforms, from that of the poses."""
    (g, *_), (u, W), s = grads, tensors, sizes_of(*tensors)
    how = _schedule(s, iterations, scale, coefficients)
    if is_shared(u, W):
        return shared_backward(g, None, u, W, kept[1:], how)
    u, W, g, dtype = u.contiguous(), W.contiguous(), g.contiguous(), operand_dtype(u, W)
    plan = _plan(s, dtype)
    if isinstance(plan, FewPlan):
        return few_steps_backward(plan, g, u, W, s, kept[1:], iterations, scale)
    if isinstance(plan, ColumnPlan):
        return columns_backward(plan, g, u, W, s, kept, iterations, scale)
    assert plan is not None
    run = LaunchSequence(plan.sequences, kind_of(u, W, g), u.dtype, W.dtype, "back", how)
    gradients = votes_backward(run, plan, u, W, s, dtype, g, None, kept[1:3], how)
    run.end()
    return gradients
