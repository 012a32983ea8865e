"""One step of inverted attention for more parents than one program holds, by the planes of the routing loop.

Coefficients pass between kernels as a plane [i,j,p]; going back they are made again, as in `attention.gradients`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.form.contractions.kernels import aggregate_plane
from capsroute.form.launch import LaunchSequence, kind_of
from capsroute.form.launches import LoopPlan
from capsroute.form.loop.calls import Operands, agreement_of, operands_of, term_gradients
from capsroute.form.loop.planes import normalise_plane, normalise_plane_backward
from capsroute.form.plan import operand_dtype

__all__ = ["planes_backward", "planes_forward"]

SINGLE = {"T": 2, "FIRST": False, "LOGITS": True}  # one term of coefficients, one of logits


def planes_forward(
    u: Tensor, W: Tensor, parents: Tensor, scale: float, window: tuple[int, int, int], coefficients: bool
) -> tuple[Tensor, Tensor]:
    """As `calls.attention_forward`."""
    operands = operands_of(u, W, window)
    plan, q = operands.plan(planes=True), (parents * scale).to(operand_dtype(u, W)).contiguous()
    run = LaunchSequence(plan.sequences, kind_of(operands.u, operands.W, q), u.dtype, W.dtype, "attention")
    c = _coefficients(run, plan, operands, q)
    part = _aggregated(run, plan, operands, c)
    run.end()
    return part.sum(0), c.permute(2, 0, 1).contiguous() if coefficients else c.new_empty(0)


def planes_backward(
    g: Tensor, u: Tensor, W: Tensor, parents: Tensor, scale: float, window: tuple[int, int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """As `calls.attention_backward`."""
    operands = operands_of(u, W, window)
    s, plan, dtype = operands.sizes, operands.plan(planes=True), operand_dtype(u, W)
    q, x = (parents * scale).to(dtype).contiguous(), g.to(dtype).contiguous()
    run = LaunchSequence(plan.sequences, kind_of(operands.u, operands.W, q, x), u.dtype, W.dtype, "attention back")
    c = _coefficients(run, plan, operands, q)
    gl = _agreement(run, plan, operands, x)
    assert plan.normalise is not None  # parents come in tiles
    numbers = (s.b, s.i, s.j, 0, 0, 0.0, 1.0)
    run(normalise_plane_backward, plan.normalise, gl, c, gl, gl, *numbers, SOFTMAX=True, STORE=False)
    dq = _aggregated(run, plan, operands, gl).sum(0)
    du, dW = term_gradients(run, (c.permute(2, 0, 1), c, gl, x, q), operands, plan, SINGLE)
    return du, dW, (dq * scale).to(parents.dtype)


def _agreement(run: LaunchSequence, plan: LoopPlan, operands: Operands, q: Tensor) -> Tensor:
    s = operands.sizes
    out = q.new_empty((s.i, s.j, s.b), dtype=torch.float32)
    agreement_of(run, plan.agreement, operands, q, out, 0)
    return out


def _coefficients(run: LaunchSequence, plan: LoopPlan, operands: Operands, q: Tensor) -> Tensor:
    s, c = operands.sizes, _agreement(run, plan, operands, q)
    assert plan.normalise is not None  # parents come in tiles
    run(normalise_plane, plan.normalise, c, c, s.b, s.i, s.j, 0, 0.0, 1.0, SOFTMAX=True)
    return c


def _aggregated(run: LaunchSequence, plan: LoopPlan, operands: Operands, c: Tensor) -> Tensor:
    u, W, s, _ = operands
    part = u.new_empty((plan.forward.splits, s.b, s.j, s.a, s.o), dtype=torch.float32)
    run(aggregate_plane, plan.forward, u, W, c, part, s.b, s.i, s.j, plan.forward.tiles, 0)
    return part
