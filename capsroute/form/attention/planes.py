"""One step of inverted attention for more parents than one program holds, by the planes of the routing loop.

Coefficients pass between kernels as a plane [i,j,p]; going back they are made again, as in `attention.gradients`.
"""

import torch
from torch import Tensor

from capsroute.form.contractions.gradients import both_gradients
from capsroute.form.contractions.kernels import aggregate_plane
from capsroute.form.launch import LaunchSequence, kind_of
from capsroute.form.launches.lists import LoopPlan, both_launch, uniform_launch
from capsroute.form.loop.calls import Operands, agreement_of, operands_of, term_gradients
from capsroute.form.loop.passes import uniform_pass
from capsroute.form.loop.planes import normalise_plane, normalise_plane_backward
from capsroute.form.rows.totals import total
from capsroute.form.sizes import operand_dtype, precision, sizes_of

SINGLE = {"T": 2, "FIRST": False, "LOGITS": True}  # one term of coefficients, one of logits
UNIFORM = {"T": 1, "FIRST": True, "LOGITS": False}  # coefficients that are all alike


def planes_forward(
    u: Tensor, W: Tensor, parents: Tensor, scale: float, window: tuple[int, int, int] | None, coefficients: bool
) -> tuple[Tensor, Tensor]:
    """As `calls.attention_forward`; without a window, of a list."""
    operands = operands_of(u, W, window)
    plan, q = operands.plan(planes=True), total(parents[None], operand_dtype(u, W), scale)
    run = LaunchSequence(plan.sequences, kind_of(operands.u, operands.W, q), u.dtype, W.dtype, "attention")
    c = _coefficients(run, plan, operands, q)
    part = _aggregated(run, plan, operands, c)
    run.end()
    return total(part), c.permute(2, 0, 1).contiguous() if coefficients else c.new_empty(0)


def planes_backward(
    g: Tensor, u: Tensor, W: Tensor, parents: Tensor, scale: float, window: tuple[int, int, int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `calls.attention_backward`."""
    operands = operands_of(u, W, window)
    s, plan, dtype = operands.sizes, operands.plan(planes=True), operand_dtype(u, W)
    q, x = total(parents[None], dtype, scale), total(g[None], dtype)
    run = LaunchSequence(plan.sequences, kind_of(operands.u, operands.W, q, x), u.dtype, W.dtype, "attention back")
    c = _coefficients(run, plan, operands, q)
    gl = _agreement(run, plan, operands, x)
    assert plan.normalise is not None  # parents come in tiles
    numbers = (s.b, s.i, s.j, 0, 0, 0.0, 1.0, 0)
    run(normalise_plane_backward, plan.normalise, gl, c, gl, gl, gl, *numbers, SOFTMAX=True, STORE=False)
    dq = _aggregated(run, plan, operands, gl)
    du, dW = _gradients(run, c, gl, x, q, operands, plan, SINGLE)
    return du, dW, total(dq, parents.dtype, scale)


def uniform_forward(u: Tensor, W: Tensor) -> Tensor:
    """Sums [b,j,a,o] of a first step over a list u [b,i,a,k]: every coefficient is 1 / j."""
    s, u, W = sizes_of(u, W), u.contiguous(), W.contiguous()
    launch = uniform_launch(s, operand_dtype(u, W), precision())
    part = u.new_empty((launch.splits, s.b, s.j, s.a, s.o), dtype=torch.float32)
    uniform_pass(launch, kind_of(u, W), u, W, part, s.b, s.i, launch.tiles, 1 / s.j)
    return total(part)


def uniform_backward(g: Tensor, u: Tensor, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by children and transforms, and none by parents."""
    operands = operands_of(u, W, None)
    u, W, s, _ = operands
    plan, x = operands.plan(planes=True), total(g[None], operand_dtype(u, W), 1 / s.j)
    run = LaunchSequence(plan.sequences, kind_of(u, W, x), u.dtype, W.dtype, "first step back")
    return *_gradients(run, x[:, 0], x, x, x, operands, plan, UNIFORM), g.new_empty(0)


def _gradients(
    run: LaunchSequence, c: Tensor, gl: Tensor, x: Tensor, q: Tensor, operands: Operands, plan: LoopPlan, which: dict
) -> tuple[Tensor, Tensor]:
    """By children and transforms, from planes c and gl [i,j,b] and poses x and q [b,j,a,o]."""
    u, W, s, shape = operands
    both = both_launch(s)
    if both is None or (shape is not None and not shape.covered):
        return term_gradients(run, (c.permute(2, 0, 1), c, gl, x, q), operands, plan, which)
    part, dW = u.new_empty((both.splits, *u.shape), dtype=torch.float32), torch.empty_like(W)
    run(both_gradients, both, c, c, gl, x, q, u, W, part, dW, s.b, s.i, s.j, 1, s.j * s.b, s.b, **which)
    run.end()
    du = total(part, u.dtype)
    return du if shape is None else du.permute(0, 1, 4, 5, 2, 3), dW


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
