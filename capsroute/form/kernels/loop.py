"""Dynamic and max-min routing as a sequence of kernels: one pass and one small reduction an iteration, and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.kernels.contractions import tensor_reasons
from capsroute.form.kernels.gradients import children_gradient, transforms_gradient
from capsroute.form.kernels.passes import backward_pass, forward_pass, uniform_pass
from capsroute.form.kernels.plan import LoopPlan, Sizes, loop_plan, operand_dtype, padded, precision, sizes_of
from capsroute.form.kernels.reductions import sum_and_squash, sum_and_squash_backward

__all__ = ["Schedule", "loop_backward", "loop_forward", "loop_reasons"]


class Schedule(NamedTuple):
    """What is repeated: softmax or max-min over parents, from coefficients `first`, gradients through all or the last."""

    iterations: int
    softmax: bool
    first: float
    lower: float
    upper: float
    stop_gradient: bool


def loop_reasons(u: Tensor, W: Tensor, iterations: int) -> list[str]:
    """Why the fused loop does not apply, if anything."""
    s, pose = sizes_of(u, W), padded(sizes_of(u, W))
    reasons = tensor_reasons(u, W)
    if s.b * s.i * s.j * iterations >= 1 << 31:
        reasons.append("coefficients of all iterations have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if iterations < 2:
        reasons.append("one iteration has no agreement to fuse")
    if W.shape[0] == 1 and s.i > 1:
        reasons.append("transforms are shared by all children, whose passes are matrix products already")
    if s.j * pose["OP"] > 256:
        reasons.append(f"accumulators of all parents are held at once: at most 256 columns, here {s.j * pose['OP']}")
    if pose["AP"] > 32 or pose["KP"] > 32:
        reasons.append(f"a child's pose has at most 32 rows and 32 columns, here {s.a} and {s.k}")
    return reasons


def loop_forward(u: Tensor, W: Tensor, how: Schedule, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """poses [b,j,a,o] and coefficients [b,i,j]; then what the backward pass needs: sums, queries, earlier coefficients.

    Coefficients lie in memory as [i,j,b], in which order the kernels read them.
    """
    u, W = u.contiguous(), W.contiguous()
    s, T = sizes_of(u, W), how.iterations
    plan, dtype = _plan(s, u, W)
    pose = (s.b, s.j, s.a, s.o)
    sums = u.new_empty((T, *pose), dtype=torch.float32)
    queries = u.new_empty((T - 1, *pose), dtype=dtype)
    keep = save and how.softmax and not how.stop_gradient
    earlier = u.new_empty((T - 2 if keep else 0, s.i, s.j, s.b), dtype=dtype)
    last = u.new_empty((s.i, s.j, s.b), dtype=torch.float32)
    poses, query = (u.new_empty(pose, dtype=torch.float32) for _ in range(2))
    part = u.new_empty((max(plan.uniform.splits, plan.forward.splits), *pose), dtype=torch.float32)

    launch = plan.uniform
    uniform_pass[launch.grid](u, W, part, s.b, s.i, launch.tiles, how.first, **launch.options)
    for t in range(T):
        if t > 0:
            launch, store = plan.forward, t == T - 1 or keep
            c = last if t == T - 1 or not keep else earlier[t - 1]
            forward_pass[launch.grid](
                u, W, queries[t - 1], c, part, s.b, s.i, launch.tiles, how.lower, how.upper,
                SOFTMAX=how.softmax, STORE=store, **launch.options,
            )  # fmt: skip
        reduce, at = plan.reduce, min(t, T - 2)
        sum_and_squash[reduce.grid](
            part,
            sums[t],
            query,
            queries[at],
            poses,
            s.b,
            launch.splits,
            FIRST=t == 0,
            LAST=t == T - 1,
            **reduce.options,
        )
    return poses, last.permute(2, 0, 1), sums, queries, earlier


def loop_backward(
    g_poses: Tensor | None, g_c: Tensor | None, u: Tensor, W: Tensor, saved: tuple[Tensor, ...], how: Schedule
) -> tuple[Tensor, Tensor]:
    """Gradients by u and W, from those of the poses and of the coefficients (None: zero)."""
    u, W = u.contiguous(), W.contiguous()
    c, sums, queries, earlier = saved
    s, T = sizes_of(u, W), how.iterations
    plan, dtype = _plan(s, u, W)
    last = c.permute(1, 2, 0)  # [i, j, b]
    g_poses = torch.zeros_like(sums[0]) if g_poses is None else g_poses.contiguous()
    if how.stop_gradient:
        return _backward_of_last(g_poses, g_c, u, W, last, sums, queries, s, plan, dtype, how)
    if not how.softmax:
        earlier = u.new_empty((T - 2, s.i, s.j, s.b), dtype=dtype)
    logits = u.new_empty((T - 1, s.i, s.j, s.b), dtype=dtype)
    x = u.new_empty((T, s.b, s.j, s.a, s.o), dtype=dtype)  # gradients of the sums, the first iteration's last
    total = torch.empty_like(sums[0])
    part = u.new_empty((plan.backward.splits, *sums.shape[1:]), dtype=torch.float32)
    for t in range(T - 1, -1, -1):
        g, now = x[(t - 1) % T], c_now(last, earlier, t, T)
        _squash_backward(plan, part, sums[t], g_poses, total, g, how.first if t == 0 else 1.0, t, T)
        if t > 0:
            _pass_backward(
                plan,
                u,
                W,
                queries[t - 1],
                g,
                now,
                g_c if t == T - 1 else None,
                logits[t - 1],
                part,
                how,
                store=t < T - 1,
            )
    terms = (last, earlier, logits, x, queries)
    return _gradients(terms, u, W, s, plan, dict(T=T, FIRST=True, LOGITS=True))


def c_now(last: Tensor, earlier: Tensor, t: int, T: int) -> Tensor:
    """The coefficient plane of iteration t."""
    return last if t in (0, T - 1) else earlier[t - 1]


def _backward_of_last(g_poses, g_c, u, W, last, sums, queries, s, plan, dtype, how) -> tuple[Tensor, Tensor]:
    """Gradients of the last iteration alone: its coefficients and its query count as constants of the poses."""
    x = torch.empty_like(g_poses, dtype=dtype)
    _squash_backward(plan, sums, sums[-1], g_poses, x, x, 1.0, 1, 2)
    logits = u.new_empty((1 if g_c is not None else 0, s.i, s.j, s.b), dtype=dtype)
    if g_c is not None:
        part = u.new_empty((plan.backward.splits, *g_poses.shape), dtype=torch.float32)
        _pass_backward(plan, u, W, queries[-1], x, last, g_c, logits, part, how, store=False, stop=True)
    terms = (last, logits, logits, x, queries[-1])
    return _gradients(terms, u, W, s, plan, dict(T=2, FIRST=False, LOGITS=g_c is not None))


def _plan(s: Sizes, u: Tensor, W: Tensor) -> tuple[LoopPlan, torch.dtype]:
    dtype = operand_dtype(u, W)
    return loop_plan(s, dtype, precision()), dtype


def _squash_backward(plan, part, sums, g_poses, total, x, scale: float, t: int, T: int) -> None:
    launch = plan.reduce
    sum_and_squash_backward[launch.grid](
        part, sums, g_poses, total, x, sums.shape[0], plan.backward.splits, scale,
        LAST=t == T - 1, FRESH=t == T - 2, **launch.options,
    )  # fmt: skip


def _pass_backward(plan, u, W, q, g, c, g_c, logits, part, how, store: bool, stop: bool = False) -> None:
    launch = plan.backward
    strides = (0, 0, 0) if g_c is None else g_c.stride()
    backward_pass[launch.grid](
        u, W, q, g, c, c if g_c is None else g_c, c, logits, part, u.shape[0], u.shape[1], launch.tiles,
        how.lower, how.upper, *strides, SOFTMAX=how.softmax, STORE=store and not how.softmax,
        HAS_GC=g_c is not None, STOP=stop, **launch.options,
    )  # fmt: skip


def _gradients(terms, u: Tensor, W: Tensor, s: Sizes, plan: LoopPlan, which: dict) -> tuple[Tensor, Tensor]:
    du, dW = torch.empty_like(u), torch.empty_like(W)
    last = terms[0]
    strides = (last.stride(2), last.stride(0), last.stride(1))
    launch = plan.children
    children_gradient[launch.grid](*terms, W, du, s.b, s.i, s.j, *strides, **which, **launch.options)
    launch = plan.transforms
    transforms_gradient[launch.grid](*terms, u, dW, s.b, s.i, s.j, launch.tiles, *strides, **which, **launch.options)
    return du, dW
