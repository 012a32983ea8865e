"""Dynamic and max-min routing over transforms that all children share, and all steps of inverted attention.

Shared transforms never meet the children. With children u_i, queries q_j and coefficients c_ij,

    logits  u_i . (q_j W_j^T)        sums  (sum_i c_ij u_i) W_j

so an iteration is two products of a sample's children [i, f] with something as small as its parents [j, f], f = (a, k):
a walk over its children, with all parents in registers, and between walks a step, in which parents pass through W.

Where samples are many, one program makes the whole loop of one (`shared_loop`). Where they are few, children are shared
out: walks and steps are kernels of their own (`shared_walk`, `shared_parents`), which leave and add up partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.cost import adds_in_halves, holds_samples, splits_samples, walks_alone
from capsroute.form.launch import Launch, LaunchSequence, in_turn, kernel, kind_of
from capsroute.form.launches.shared_transforms import (
    STEP,
    SharedPlan,
    shared_launch,
    shared_plan,
    shared_pose,
    shared_step_launch,
)
from capsroute.form.loop.plain import Prior, Schedule, no_prior
from capsroute.form.loop.walks import (
    across,
    back,
    load_sum,
    parents,
    poses_of,
    through,
    together,
    total_of,
    transforms,
    walk,
    walk_alone,
    walk_alone_back,
    walk_back,
)
from capsroute.form.rows.totals import total as total_parts
from capsroute.form.sizes import Sizes, loop_precision, operand_dtype, sizes_of
from capsroute.form.tiles import there
from capsroute.form.updates import updated, updated_gradient

OVER_MAP = "transforms are shared by all children of a map, whose passes are matrix products already"
SHARED = "transforms are shared by many children of few samples, whose passes are matrix products already"
MOST_PARENTS = 256  # in a product
MOST = 1 << 13  # numbers of all parents that one program holds: [j, f]


@triton.jit
def step(x, W, poses, queries, kept, jc, b, t, B, J, scale, T, NORM, A, K, O, AP, KP, OP):
    """Between two walks, for parents jc of a sample: children's sums x [JC, AP, KP] through W, squashed, and back.

    Or NORMalised: then the query is the last pose alone, times the scale.
    """
    so = b * (J * A * O)
    Wt = transforms(W, jc, J, K, O, KP, OP)
    at, mask = poses_of(jc, A * K, A, K, AP, KP, J)
    out, held = poses_of(jc, A * O, A, O, AP, OP, J)
    v = updated(through(x, Wt), held, A * O, NORM, t == T - 1)
    if t == T - 1:
        tl.store(poses + so + out, v, mask=held)
    else:
        if NORM:
            v = v * scale
        else:
            before = held & there(0, t)[:, :, None]
            v += tl.load(queries + (t - 1) * (B * J * A * O) + so + out, mask=before, other=0.0)
        tl.store(queries + t * (B * J * A * O) + so + out, v, mask=held)
        tl.store(kept + (T + t) * (B * J * A * K) + b * (J * A * K) + at, back(v, Wt), mask=mask)


@triton.jit
def step_back(total, W, g, queries, kept, by_parents, by_queries, dW, out_W, jc, b, n, B, J, scale, T, NORM, A, K, O,
              AP, KP, OP, STOP):  # fmt: skip
    """The derivative of `step` T - 1 - n, for parents jc: `total` [JC, AP, KP] is from the walk behind it (n > 0).

    It ends with STOP at n = 1, where the query behind the last walk is a constant, and only W gets its part. That is
    added up in dW [b,j,k,o]; the last step leaves it in out_W.
    """
    t, to, so = T - 1 - n, b * (J * A * K), b * (J * A * O)
    Wt = transforms(W, jc, J, K, O, KP, OP)
    at, mask = poses_of(jc, A * K, A, K, AP, KP, J)
    out, held = poses_of(jc, A * O, A, O, AP, OP, J)
    to_W, those = poses_of(jc, K * O, K, O, KP, OP, J)
    to_W += b * (J * K * O)
    by_W = tl.load(dW + to_W, mask=those & there(0, n)[:, :, None], other=0.0).to(tl.float32)
    by_queries += so + out
    if n == 0:
        gv = tl.load(g + so + out, mask=held, other=0.0).to(tl.float32)
    else:
        q = tl.load(queries + t * (B * J * A * O) + so + out, mask=held, other=0.0)
        by_W += across(total, q)
        gv = through(total, Wt)
        if NORM:
            gv = gv * scale
        else:
            gv += tl.load(by_queries, mask=held & there(1, n)[:, :, None], other=0.0)
    # Threads that hold the same numbers do not wait for each other: one that reads late must not find them changed.
    tl.debug_barrier()
    if not NORM:
        tl.store(by_queries, gv, mask=held & there(0, n)[:, :, None])
    if n < (1 if STOP else T):
        weighted = tl.load(kept + t * (B * J * A * K) + to + at, mask=mask, other=0.0)
        x = updated_gradient(through(weighted, Wt), gv, held, A * O, NORM, n == 0)
        by_W += across(weighted, x)
        tl.store(by_parents + to + at, back(x, Wt), mask=mask)
    if n == (1 if STOP else T - 1):
        tl.store(out_W + to_W, by_W, mask=those)
    else:
        tl.store(dW + to_W, by_W, mask=those)


@triton.jit
def add_mean(by_parents, by_children, rest, du, b, start, stop, I, J, first, F, FP, JP, IC):
    """What the first iteration adds to the gradient of children: it takes all of them alike."""
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    X = tl.load(by_parents + b * (J * F) + j * F + f, mask=(j < J) & (f < F), other=0.0)
    mean = first * tl.sum(X, axis=0, keep_dims=True)
    for i0 in range(start, stop, IC):
        i = i0 + tl.arange(0, IC)[:, None]
        at, mask = (b * I + i) * F + f, (i < I) & (f < F)
        tl.store(du + at, load_sum(by_children, rest, at, mask) + mean, mask=mask)


@kernel("B", "I", "lower", "upper", "first", "scale", "p_i")
def shared_loop(u, W, poses, c, queries, kept, prior, B, I, J, lower, upper, first, scale, p_i, NORM: tl.constexpr,
                STORE: tl.constexpr, T: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, FP: tl.constexpr, JP: tl.constexpr,
                IC: tl.constexpr, JC: tl.constexpr, G: tl.constexpr, SOFTMAX: tl.constexpr, DT: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample. Queries [t,b,j,a,o] are kept, and of children [t,b,j,a,k] their weighted sums of every
    iteration, and behind them the queries passed back through W. And the last c [b,i,j], if STORE. The prior [i,j] of
    logits (SOFTMAX 2) has p_i numbers from one child to the next."""
    in_turn()
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    size, to = B * J * F, b * (J * F)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    mean = tl.broadcast_to(first * total_of(u, b, 0, I, I, F, FP, IC), (JP, FP))
    tl.store(kept + to + j * F + f, mean, mask=(j < J) & (f < F))
    for t in range(T):
        tl.debug_barrier()
        for j0 in range(0, J, JC):
            jc = j0 + tl.arange(0, JC)[:, None]
            at, mask = poses_of(jc, F, A, K, AP, KP, J)
            x = tl.load(kept + t * size + to + at, mask=mask, other=0.0)
            step(x, W, poses, queries, kept, jc, b, t, B, J, scale, T, NORM, A, K, O, AP, KP, OP)
        tl.debug_barrier()
        if t < T - 1:
            Y = parents(kept + (T + t) * size + to, F, J, F, JP, FP, DT, PRECISION)
            last = there(T - 3 if STORE else T, t)
            total = walk(u, c, Y, b, I, J, last, lower, upper, SOFTMAX, F, FP, JP, IC, G, DT, PRECISION, prior=prior,
                         p_i=p_i)  # fmt: skip
            tl.store(kept + (t + 1) * size + to + j * F + f, total, mask=(j < J) & (f < F))


@kernel("B", "I", "given", "lower", "upper", "first", "scale", "p_i")
def shared_loop_backward(u, W, g, g_c, queries, kept, part, by_parents, by_queries, by_children, rest, dW, du, prior,
                         by_prior, B, I, J, given, lower, upper, first, scale, p_i, NORM: tl.constexpr,
                         HALVES: tl.constexpr, T: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                         AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, FP: tl.constexpr, JP: tl.constexpr,
                         IC: tl.constexpr, JC: tl.constexpr, G: tl.constexpr, SOFTMAX: tl.constexpr, STOP: tl.constexpr,
                         DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample: du [b,i,a,k], and dW [b,j,k,o] of this sample.

    part [b,j,a,k], by_parents [b,j,a,k], by_queries [b,j,a,o] and by_children [b,i,a,k] are gradients on their way; the
    latter in two HALVES, where du is the first and the `rest` the second. by_prior [b,i,j]: that of the logits.
    """
    in_turn()
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    ROUNDS: tl.constexpr = 1 if STOP else T - 1
    to = b * (J * F)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    for n in range(ROUNDS + 1):
        for j0 in range(0, J, JC):
            jc = j0 + tl.arange(0, JC)[:, None]
            at, mask = poses_of(jc, F, A, K, AP, KP, J)
            total = tl.load(part + to + at, mask=mask & there(0, n)[:, :, None], other=0.0)
            step_back(total, W, g, queries, kept, by_parents, by_queries, dW, dW, jc, b, n, B, J, scale, T, NORM,
                      A, K, O, AP, KP, OP, STOP)  # fmt: skip
        tl.debug_barrier()
        if n < ROUNDS:
            X = parents(by_parents + to, F, J, F, JP, FP, DT, PRECISION)
            Y = parents(kept + (2 * T - 2 - n) * (B * J * F) + to, F, J, F, JP, FP, DT, PRECISION)
            total = walk_back(u, g_c, by_children, Y, X, b, I, J, there(n, given), there(0, n), lower, upper, SOFTMAX,
                              F, FP, JP, IC, G, DT, PRECISION, STOP, rest=rest if HALVES else None, prior=prior,
                              p_i=p_i, by_prior=by_prior)  # fmt: skip
            tl.store(part + to + j * F + f, total, mask=(j < J) & (f < F))
        tl.debug_barrier()
    if not STOP:
        add_mean(by_parents, by_children, rest if HALVES else None, du, b, 0, I, I, J, first, F, FP, JP, IC)


@kernel("B", "I", "N", "t", "lower", "upper", "first", "p_i")
def shared_walk(u, c, kept, part, prior, B, I, J, N, t, lower, upper, first, p_i, FIRST: tl.constexpr,
                STORE: tl.constexpr, T: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, JP: tl.constexpr,
                IC: tl.constexpr, G: tl.constexpr, SOFTMAX: tl.constexpr, DT: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    """A program for a sample and N of its children: their sums part [share,b,j,f] for iteration t, by the query before.

    The first iteration takes all children alike.
    """
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    start, stop = share * N, tl.minimum(share * N + N, I)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    if FIRST:
        total = tl.broadcast_to(first * total_of(u, b, start, stop, I, F, FP, IC), (JP, FP))
    else:
        Y = parents(kept + ((T + t - 1) * B + b) * (J * F), F, J, F, JP, FP, DT, PRECISION)
        last = there(T - 2 if STORE else T, t)
        if IC == 1:
            total = walk_alone(u, c, Y, b, I, J, last, lower, upper, SOFTMAX, F, FP, JP, start, stop, prior, p_i)
        else:
            total = walk(u, c, Y, b, I, J, last, lower, upper, SOFTMAX, F, FP, JP, IC, G, DT, PRECISION, start, stop,
                         prior, p_i)  # fmt: skip
    tl.store(part + (share * B + b) * (J * F) + j * F + f, total, mask=(j < J) & (f < F))


@kernel("B", "I", "S", "t", "first", "scale")
def shared_parents(u, W, part, poses, queries, kept, B, I, J, S, t, first, scale, FIRST: tl.constexpr,
                   NORM: tl.constexpr, T: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                   AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, JC: tl.constexpr, SP: tl.constexpr,
                   IC: tl.constexpr):  # fmt: skip
    """A program for a sample and JC parents: the S shares of `shared_walk` together, and the step of iteration t.

    The FIRST iteration of few children, which takes all alike, needs no walk.
    """
    in_turn()
    b, jc = tl.program_id(0), tl.program_id(1) * JC + tl.arange(0, JC)[:, None]
    at, mask = poses_of(jc, A * K, A, K, AP, KP, J)
    at += b * (J * A * K)
    if FIRST:
        x = tl.zeros((IC, AP, KP), tl.float32)
        for i0 in range(0, I, IC):
            from_u, those = poses_of(i0 + tl.arange(0, IC)[:, None], A * K, A, K, AP, KP, I)
            x += tl.load(u + b * (I * A * K) + from_u, mask=those, other=0.0).to(tl.float32)
        x = tl.broadcast_to(first * tl.sum(x, axis=0, keep_dims=True), (JC, AP, KP))
    else:
        x = together(part + at, mask, S, B * J * A * K, SP)
    tl.store(kept + t * (B * J * A * K) + at, x, mask=mask)
    step(x, W, poses, queries, kept, jc, b, t, B, J, scale, T, NORM, A, K, O, AP, KP, OP)


@kernel("B", "I", "N", "n", "lower", "upper", "first", "p_i")
def shared_walk_backward(u, g_c, kept, part, by_parents, by_children, rest, du, prior, by_prior, B, I, J, N, n, lower,
                         upper, first, p_i, MEAN: tl.constexpr, GIVEN: tl.constexpr, HALVES: tl.constexpr,
                         T: tl.constexpr, F: tl.constexpr, FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr,
                         G: tl.constexpr, SOFTMAX: tl.constexpr, STOP: tl.constexpr, DT: tl.constexpr,
                         PRECISION: tl.constexpr):  # fmt: skip
    """A program for a sample and N of its children, the n-th walk back: part [share,b,j,f] and by_children [b,i,f].

    Behind the last of them the MEAN of the first iteration makes du of it.
    """
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    start, stop = share * N, tl.minimum(share * N + N, I)
    if MEAN:
        add_mean(by_parents, by_children, rest if HALVES else None, du, b, start, stop, I, J, first, F, FP, JP, IC)
    else:
        j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
        X = parents(by_parents + b * (J * F), F, J, F, JP, FP, DT, PRECISION)
        Y = parents(kept + ((2 * T - 2 - n) * B + b) * (J * F), F, J, F, JP, FP, DT, PRECISION)
        if IC == 1:
            total = walk_alone_back(u, g_c, by_children, Y, X, b, I, J, there(n, 1), there(0, n), lower, upper,
                                    SOFTMAX, F, FP, JP, STOP, GIVEN, start, stop, rest if HALVES else None, prior, p_i,
                                    by_prior)  # fmt: skip
        else:
            total = walk_back(u, g_c, by_children, Y, X, b, I, J, there(n, GIVEN), there(0, n), lower, upper, SOFTMAX,
                              F, FP, JP, IC, G, DT, PRECISION, STOP, start, stop, rest if HALVES else None, prior, p_i,
                              by_prior)  # fmt: skip
        tl.store(part + (share * B + b) * (J * F) + j * F + f, total, mask=(j < J) & (f < F))


@kernel("B", "S", "n", "scale")
def shared_parents_backward(W, g, queries, kept, part, by_parents, by_queries, dW, out_W, B, J, S, n, scale,
                            NORM: tl.constexpr, T: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                            AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, JC: tl.constexpr, SP: tl.constexpr,
                            IC: tl.constexpr, STOP: tl.constexpr):  # fmt: skip
    """A program for a sample and JC parents: the S shares of the walk before together, and the n-th step back."""
    in_turn()
    b, jc = tl.program_id(0), tl.program_id(1) * JC + tl.arange(0, JC)[:, None]
    at, mask = poses_of(jc, A * K, A, K, AP, KP, J)
    total = together(part + b * (J * A * K) + at, mask, tl.where(n == 0, 0, S), B * J * A * K, SP)
    step_back(total, W, g, queries, kept, by_parents, by_queries, dW, out_W, jc, b, n, B, J, scale, T, NORM, A, K,
              O, AP, KP, OP, STOP)  # fmt: skip


def walk_reasons(s: Sizes, iterations: int, dtype: torch.dtype) -> list[str]:
    """Why no program holds the parents of a sample and walks over some of its children, if anything."""
    if dtype == torch.float32 and loop_precision() != "tf32":  # operands in parts fill its shared memory
        return _held_reasons(s, iterations, MOST_PARENTS, MOST // 2)
    wide = dtype == torch.bfloat16 or walks_alone(s)
    return _held_reasons(s, iterations, 4 * MOST_PARENTS, 2 * MOST if wide else MOST)


def shared_reasons(s: Sizes, iterations: int) -> list[str]:
    """Why no program holds the parents of a sample and walks over all of its children, if anything."""
    reasons = _held_reasons(s, iterations, MOST_PARENTS, MOST)
    return reasons if reasons or holds_samples(s, iterations) else [SHARED]


def _held_reasons(s: Sizes, iterations: int, parents: int, most: int) -> list[str]:
    """Why no program holds that many parents of a sample, and numbers of theirs, if anything."""
    pose, reasons = shared_pose(s), []
    if pose["JP"] > parents or pose["JP"] * pose["FP"] > most or pose["AP"] * pose["KP"] * pose["OP"] > 4 * STEP:
        reasons.append(f"a program does not hold {s.j} parents of {s.a} x {s.k} and {s.a} x {s.o} numbers each")
    if max(2 * iterations * s.a * max(s.k, s.o), s.k * s.o) * s.b * s.j >= 1 << 31:
        reasons.append("parents of all iterations have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    return reasons


def _plan(s: Sizes, u: Tensor, W: Tensor, iterations: int) -> SharedPlan | None:
    """Of walks over shares of the children; None where one program is to walk over all of them."""
    if not _held_reasons(s, iterations, MOST_PARENTS, MOST) and not splits_samples(s, iterations):
        return None
    return shared_plan(s, operand_dtype(u, W), loop_precision())


def _launch(s: Sizes, u: Tensor, W: Tensor, norm: bool) -> Launch:
    """A program for each sample."""
    return (shared_step_launch if norm else shared_launch)(s, operand_dtype(u, W), loop_precision())


def shared_forward(
    u: Tensor, W: Tensor, how: Schedule, prior: Prior | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `calls.loop_forward`; what is kept differs, see `shared_loop`."""
    s, u, W, T, prior = sizes_of(u, W), u.contiguous(), W.contiguous(), how.iterations, prior or no_prior(W)
    poses = u.new_empty((s.b, s.j, s.a, s.o), dtype=torch.float32)
    c, sums = poses.new_empty((s.b, s.i, s.j) if how.coefficients else 0), poses.new_empty(0)  # made again from `kept`
    queries, kept = poses.new_empty((T - 1, *poses.shape)), poses.new_empty((2 * T - 1, s.b, s.j, s.a, s.k))
    plan, sizes, bounds = _plan(s, u, W, T), (s.b, s.i, s.j), (how.lower, how.upper, how.first)
    flags = {"STORE": how.coefficients, "T": T, "SOFTMAX": how.softmax}
    kind = kind_of(u, W, prior.given, prior.stride)
    if plan is None:
        operands = u, W, poses, c, queries, kept, prior.given, *sizes, *bounds, how.factor, prior.stride
        shared_loop(_launch(s, u, W, how.norm > 0), kind, *operands, NORM=how.norm, **flags)
        return poses, c, sums, queries, kept
    part, walk = kept.new_empty((plan.walk.splits, *kept.shape[1:])), plan.walk
    run = LaunchSequence(plan.sequences, kind, u.dtype, W.dtype, prior.given.dtype, how)
    for t in range(T):
        alike = t == 0 and plan.sums_first
        if not alike:
            of_walk = *sizes, walk.tiles, t, *bounds, prior.stride
            run(shared_walk, walk, u, c, kept, part, prior.given, *of_walk, FIRST=t == 0, **flags)
        numbers = *sizes, walk.splits, t, how.first, how.factor
        run(shared_parents, plan.step, u, W, part, poses, queries, kept, *numbers, FIRST=alike, NORM=how.norm, T=T)
    run.end()
    return poses, c, sums, queries, kept


def shared_backward(
    g: Tensor | None, g_c: Tensor | None, u: Tensor, W: Tensor, saved: Sequence[Tensor], how: Schedule,
    prior: Prior | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `calls.loop_backward`; saved are the queries, and what of children was kept."""
    s, u, W, T, (queries, kept) = sizes_of(u, W), u.contiguous(), W.contiguous(), how.iterations, saved
    g = torch.zeros_like(queries[0]) if g is None else g.contiguous()
    given, norm, stop = queries if g_c is None else g_c.contiguous(), how.norm, how.stop_gradient
    by_parents, by_queries = torch.empty_like(kept[0]), queries[0] if norm else torch.empty_like(queries[0])
    twice = norm > 0 and T == 2  # what is written once and added to once may be rounded in between
    half = twice and W.dtype == torch.bfloat16
    dW = queries.new_empty((s.b, *W.shape[1:]), dtype=W.dtype if half else torch.float32)  # of each sample
    by_children, rest, halves = _children(u, s, stop or twice)
    du = by_children if by_children.dtype == u.dtype else torch.empty_like(u)
    prior = prior or no_prior(W)
    plan, kind, has = _plan(s, u, W, T), kind_of(u, W, g, given, prior.given, prior.stride), g_c is not None
    bounds, flags = (how.lower, how.upper, how.first), {"HALVES": halves, "T": T, "SOFTMAX": how.softmax, "STOP": stop}
    if plan is None:
        shared_loop_backward(
            _launch(s, u, W, norm > 0), kind, u, W, g, given, queries, kept, torch.empty_like(by_parents), by_parents,
            by_queries, by_children, rest, dW, du, prior.given, prior.gradient, s.b, s.i, s.j, int(has), *bounds,
            how.factor, prior.stride, NORM=norm, **flags,
        )  # fmt: skip
        return du, total_parts(dW, W.dtype)[None]
    run = LaunchSequence(plan.sequences, kind, u.dtype, W.dtype, g.dtype, given.dtype, prior.given.dtype, has, how)
    walk, step, part = plan.back, plan.step, kept.new_empty((plan.back.splits, *by_parents.shape))
    out_W = torch.empty_like(W) if s.b == 1 else dW
    children = given, kept, part, by_parents, by_children, rest, du, prior.given, prior.gradient
    numbers = s.b, s.i, s.j, walk.tiles
    parents = W, g, queries, kept, part, by_parents, by_queries, dW, out_W, s.b, s.j, walk.splits
    for n in range(2 if stop else T):
        run(shared_parents_backward, step, *parents, n, how.factor, NORM=norm, T=T, STOP=stop)
        if n == 0 or not stop:
            mean = not stop and n == T - 1
            rounds = *numbers, n, *bounds, prior.stride
            run(shared_walk_backward, walk, u, *children, *rounds, MEAN=mean, GIVEN=has, **flags)
    run.end()
    return du, total_parts(out_W.view(s.b, *W.shape[1:]), W.dtype)[None]


def _children(u: Tensor, s: Sizes, once: bool) -> tuple[Tensor, Tensor, bool]:
    """Where the gradient of children is added up: float32, or in two halves of bfloat16, of which the first will be it.

    Float16 has not its range, and what is written once, or added to once (two steps of attention), needs no rest.
    """
    if u.dtype == torch.bfloat16 and not once and adds_in_halves(s):
        return torch.empty_like(u), torch.empty_like(u), True
    sums = torch.empty_like(u, dtype=u.dtype if once else torch.float32)
    return sums, sums, False
