"""All steps of inverted attention over a list as one call: by kernels of the routing loop, or by columns of parents.

What a loop knows and a step does not: transforms and children get one gradient, not one a step that are added up,
LayerNorm of the poses belongs to the kernels that make them, and coefficients are kept, not made three times.
"""

from typing import Any

import torch
from torch import Tensor

from capsroute.form.attention.calls import COEFFICIENTS
from capsroute.form.attention.columns import columns_backward, columns_forward
from capsroute.form.attention.few import few_steps_backward, few_steps_forward
from capsroute.form.contractions.kernels import grid_reasons, operand_reasons
from capsroute.form.cost import adds_samples, attends_in_passes, walks_samples
from capsroute.form.launch import on_device
from capsroute.form.launches.attention_steps import FewPlan, few_plan
from capsroute.form.launches.stored_votes import ColumnPlan, ResidentPlan, column_plan, resident_plan
from capsroute.form.loop.calls import Operands, loop_reasons, per_child_backward, per_child_forward
from capsroute.form.loop.operators import is_shared
from capsroute.form.loop.plain import Schedule
from capsroute.form.loop.shared import shared_backward, shared_forward, walk_reasons
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
        if _plan(s, dtype) is None:
            return loop_reasons(u, W, iterations) or ([] if attends_in_passes(s) else [STEPS])
        if grid_reasons(s.j):
            return grid_reasons(s.j)
        if s.b * s.i * s.j * max(iterations, s.a * s.o) >= 1 << 31:
            return ["votes or coefficients have 2^31 elements or more, beyond the kernels' 32-bit offsets"]
        return []
    return walk_reasons(s, iterations, dtype) or ([] if adds_samples(s) else [STEPS])


def _plan(s: Sizes, dtype: torch.dtype) -> ResidentPlan | ColumnPlan | FewPlan | None:
    """Of transforms for each child; None where the passes of the loop take them, or steps one by one."""
    small = resident_plan(s, dtype, loop_precision())
    if small is not None and (small.step is not None or walks_samples(s)):
        return small
    return column_plan(s) or few_plan(s) or small


def _schedule(s: Sizes, iterations: int, scale: float, coefficients: bool) -> Schedule:
    return Schedule(iterations, True, 1 / s.j, 0.0, 1.0, False, scale, coefficients)


@on_device
def whole_forward(
    u: Tensor, W: Tensor, iterations: int, scale: float, coefficients: bool, save: bool
) -> tuple[Tensor, ...]:
    """Poses [b,j,a,o], the last coefficients [b,i,j] if asked for; then what the gradient needs, if it is to `save`."""
    s, how = sizes_of(u, W), _schedule(sizes_of(u, W), iterations, scale, coefficients)
    if is_shared(u, W):
        return shared_forward(u, W, how)
    u, W = u.contiguous(), W.contiguous()
    plan = _plan(s, operand_dtype(u, W))
    if isinstance(plan, FewPlan):
        return few_steps_forward(plan, u, W, s, iterations, scale, coefficients)
    if isinstance(plan, ColumnPlan):
        return columns_forward(plan, u, W, s, iterations, scale)
    return per_child_forward(Operands(u, W, s, None), plan, how, save and plan is None)


@on_device
def whole_backward(
    grads: tuple[Tensor, ...], tensors: tuple[Tensor, Tensor], kept: Any, iterations: int,
    scale: float, coefficients: bool, save: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by children and transforms, from that of the poses."""
    (g, *_), (u, W), s = grads, tensors, sizes_of(*tensors)
    how = _schedule(s, iterations, scale, coefficients)
    if is_shared(u, W):
        return shared_backward(g, None, u, W, kept[:2], how)
    u, W, g = u.contiguous(), W.contiguous(), g.contiguous()
    plan = _plan(s, operand_dtype(u, W))
    if isinstance(plan, FewPlan):
        return few_steps_backward(plan, g, u, W, s, kept[1:], iterations, scale)
    if isinstance(plan, ColumnPlan):
        return columns_backward(plan, g, u, W, s, kept, iterations, scale)
    return per_child_backward(g, None, Operands(u, W, s, None), kept, plan, how)
