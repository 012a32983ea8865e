"""Dynamic and max-min routing over transforms that all children share: a whole loop is one kernel, its derivative one.

Shared transforms never meet the children. With children u_i, queries q_j and coefficients c_ij,

    logits  u_i . (q_j W_j^T)        sums  (sum_i c_ij u_i) W_j

so an iteration is two products of a sample's children [i, f] with something as small as its parents [j, f], f = (a, k):
one program holds a sample, its parents in registers, and walks over its children, which stay in the cache. Between the
walks parents pass through W, some at a time. What passes from one step to the next goes through memory that this
program alone reads.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from capsroute.form.cost import holds_samples
from capsroute.form.launch import kernel, kind_of
from capsroute.form.launches import STEP, shared_launch, shared_pose
from capsroute.form.lengths import squashed, squashed_gradient
from capsroute.form.loop.walks import back, children, parents, poses_of, through, transforms, walk, walk_back
from capsroute.form.plan import Sizes, operand_dtype, precision, sizes_of
from capsroute.form.tiles import there

__all__ = ["shared_backward", "shared_forward", "shared_reasons"]

OVER_MAP = "transforms are shared by all children of a map, whose passes are matrix products already"
SHARED = "transforms are shared by many children of few samples, whose passes are matrix products already"
MOST_PARENTS = 256  # in a product
MOST = 1 << 13  # numbers of all parents that one program holds: [j, f]


@kernel("B", "I", "lower", "upper", "first")
def shared_loop(u, W, poses, c, sums, queries, kept, B, I, J, lower, upper, first, T: tl.constexpr, A: tl.constexpr,
                K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr, JC: tl.constexpr, G: tl.constexpr,
                SOFTMAX: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample. Sums [t,b,j,a,o] and queries are kept, and of children [t,b,j,a,k] too: their weighted
    sums of every iteration, and behind them the queries passed back through W."""
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    size, to, so = B * J * F, b * (J * F), b * (J * A * O)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    some = tl.zeros((IC, FP), tl.float32)
    for i0 in range(0, I, IC):
        some += children(u, b, i0, I, F, FP, IC).to(tl.float32)
    mean = first * tl.sum(some, axis=0, keep_dims=True)
    tl.store(kept + to + j * F + f, tl.broadcast_to(mean, (JP, FP)), mask=(j < J) & (f < F))
    for t in range(T):
        tl.debug_barrier()
        for j0 in range(0, J, JC):
            jc = j0 + tl.arange(0, JC)[:, None]
            Wt = transforms(W, jc, J, K, O, KP, OP)
            at, mask = poses_of(jc, F, A, K, AP, KP, J)
            out, held = poses_of(jc, A * O, A, O, AP, OP, J)
            s = through(tl.load(kept + t * size + to + at, mask=mask, other=0.0), Wt)
            tl.store(sums + t * (B * J * A * O) + so + out, s, mask=held)
            v = tl.reshape(squashed(tl.reshape(s, (JC, AP * OP))), (JC, AP, OP))
            if t == T - 1:
                tl.store(poses + so + out, v, mask=held)
            else:
                v += tl.load(
                    queries + (t - 1) * (B * J * A * O) + so + out, mask=held & there(0, t)[:, :, None], other=0.0
                )
                tl.store(queries + t * (B * J * A * O) + so + out, v, mask=held)
                tl.store(kept + (T + t) * size + to + at, back(v, Wt), mask=mask)
        tl.debug_barrier()
        if t < T - 1:
            Y = parents(kept + (T + t) * size + to, F, J, F, JP, FP, DT, PRECISION)
            total = walk(u, c, Y, b, I, J, there(T - 3, t), lower, upper, SOFTMAX, F, FP, JP, IC, G, DT, PRECISION)
            tl.store(kept + (t + 1) * size + to + j * F + f, total, mask=(j < J) & (f < F))


@kernel("B", "I", "given", "lower", "upper", "first")
def shared_loop_backward(u, W, g, g_c, sums, queries, kept, left, right, by_parents, by_queries, by_children, du, B, I,
                         J, given, lower, upper, first, T: tl.constexpr, A: tl.constexpr, K: tl.constexpr,
                         O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, FP: tl.constexpr,
                         JP: tl.constexpr, IC: tl.constexpr, JC: tl.constexpr, G: tl.constexpr, SOFTMAX: tl.constexpr,
                         STOP: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample.

    du [b,i,a,k], and left [j,r,b,a,k], right [j,r,b,a,o], whose product over (r, b, a) is dW.

    by_parents [b,j,a,k], by_queries [b,j,a,o] and by_children [b,i,a,k] are gradients on their way.
    """
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    ROUNDS: tl.constexpr = 1 if STOP else T - 1
    R: tl.constexpr = 2 if STOP else 2 * T - 1
    size, to, so = B * J * F, b * (J * F), b * (J * A * O)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    for n in range(ROUNDS + 1 - STOP):
        t = T - 1 - n
        for j0 in range(0, J, JC):
            jc = j0 + tl.arange(0, JC)[:, None]
            Wt = transforms(W, jc, J, K, O, KP, OP)
            at, mask = poses_of(jc, F, A, K, AP, KP, J)
            out, held = poses_of(jc, A * O, A, O, AP, OP, J)
            lt, _ = poses_of(jc, R * B * F, A, K, AP, KP, J)
            rt, _ = poses_of(jc, R * B * A * O, A, O, AP, OP, J)
            lt, rt = left + (2 * n * B + b) * F + lt, right + (2 * n * B + b) * (A * O) + rt
            if n == 0:
                gv = tl.load(g + so + out, mask=held, other=0.0).to(tl.float32)
            else:
                gv = through(tl.load(lt - B * F, mask=mask, other=0.0), Wt)
                gv += tl.load(by_queries + so + out, mask=held & there(1, n)[:, :, None], other=0.0)
                tl.store(by_queries + so + out, gv, mask=held)
            s = tl.load(sums + t * (B * J * A * O) + so + out, mask=held, other=0.0)
            x = squashed_gradient(tl.reshape(s, (JC, AP * OP)), tl.reshape(gv, (JC, AP * OP)))
            x = tl.reshape(x, (JC, AP, OP))
            tl.store(lt, tl.load(kept + t * size + to + at, mask=mask, other=0.0), mask=mask)
            tl.store(rt, x, mask=held)
            tl.store(by_parents + to + at, back(x, Wt), mask=mask)
            if n < ROUNDS:
                q = tl.load(queries + (t - 1) * (B * J * A * O) + so + out, mask=held, other=0.0)
                tl.store(rt + B * (A * O), q, mask=held)
        tl.debug_barrier()
        if n < ROUNDS:
            X = parents(by_parents + to, F, J, F, JP, FP, DT, PRECISION)
            Y = parents(kept + (T + t - 1) * size + to, F, J, F, JP, FP, DT, PRECISION)
            total = walk_back(u, g_c, by_children, Y, X, b, I, J, there(n, given), there(0, n), lower, upper, SOFTMAX,
                              F, FP, JP, IC, G, DT, PRECISION, STOP)  # fmt: skip
            tl.store(left + j * (R * B * F) + ((2 * n + 1) * B + b) * F + f, total, mask=(j < J) & (f < F))
        tl.debug_barrier()
    if not STOP:
        X = tl.load(by_parents + to + j * F + f, mask=(j < J) & (f < F), other=0.0)
        mean = first * tl.sum(X, axis=0, keep_dims=True)
        for i0 in range(0, I, IC):
            i = i0 + tl.arange(0, IC)[:, None]
            at, mask = (b * I + i) * F + f, (i < I) & (f < F)
            tl.store(du + at, tl.load(by_children + at, mask=mask, other=0.0) + mean, mask=mask)


def shared_reasons(s: Sizes, iterations: int) -> list[str]:
    """Why no program holds the parents of a sample, if anything."""
    pose, reasons = shared_pose(s), []
    if pose["JP"] > MOST_PARENTS or pose["JP"] * pose["FP"] > MOST or pose["AP"] * pose["KP"] * pose["OP"] > 4 * STEP:
        reasons.append(f"a program does not hold {s.j} parents of {s.a} x {s.k} and {s.a} x {s.o} numbers each")
    if 2 * iterations * s.b * s.j * s.a * max(s.k, s.o) >= 1 << 31:
        reasons.append("parents of all iterations have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    return reasons if reasons or holds_samples(s, iterations) else [SHARED]


def shared_forward(
    u: Tensor, W: Tensor, iterations: int, softmax: bool, lower: float, upper: float, first: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `calls.loop_forward`; what is kept differs, see `shared_loop`."""
    s, u, W, T = sizes_of(u, W), u.contiguous(), W.contiguous(), iterations
    poses = u.new_empty((s.b, s.j, s.a, s.o), dtype=torch.float32)
    c, sums = poses.new_empty((s.b, s.i, s.j)), poses.new_empty((T, *poses.shape))
    queries, kept = poses.new_empty((T - 1, *poses.shape)), poses.new_empty((2 * T - 1, s.b, s.j, s.a, s.k))
    launch = shared_launch(s, operand_dtype(u, W), precision())
    numbers = (s.b, s.i, s.j, lower, upper, first)
    shared_loop(launch, kind_of(u, W), u, W, poses, c, sums, queries, kept, *numbers, T=T, SOFTMAX=softmax)
    return poses, c, sums, queries, kept


def shared_backward(
    g: Tensor | None, g_c: Tensor | None, u: Tensor, W: Tensor, saved: tuple[Tensor, Tensor, Tensor], iterations: int,
    softmax: bool, lower: float, upper: float, first: float, stop_gradient: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `calls.loop_backward`."""
    s, u, W, T, (sums, queries, kept) = sizes_of(u, W), u.contiguous(), W.contiguous(), iterations, saved
    g = torch.zeros_like(sums[0]) if g is None else g.contiguous()
    given = sums if g_c is None else g_c.contiguous()
    terms = 2 if stop_gradient else 2 * T - 1
    left, right = g.new_empty((s.j, terms, s.b, s.a, s.k)), g.new_empty((s.j, terms, s.b, s.a, s.o))
    by_parents, by_queries = g.new_empty((s.b, s.j, s.a, s.k)), torch.empty_like(g)
    du = torch.empty_like(u)
    by_children = du if stop_gradient or u.dtype == torch.float32 else torch.empty_like(u, dtype=torch.float32)
    launch = shared_launch(s, operand_dtype(u, W), precision())
    shared_loop_backward(
        launch, kind_of(u, W, g, given), u, W, g, given, sums, queries, kept, left, right, by_parents, by_queries,
        by_children, du, s.b, s.i, s.j, int(g_c is not None), lower, upper, first, T=T, SOFTMAX=softmax,
        STOP=stop_gradient,
    )  # fmt: skip
    dW = torch.bmm(left.flatten(1, 3).mT, right.flatten(1, 3))  # [j, k, o]
    return du, dW.unsqueeze(0).to(W.dtype)
