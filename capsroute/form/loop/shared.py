"""Dynamic and max-min routing over transforms that all children share: a whole loop is one kernel, its derivative one.

Shared transforms never meet the children. With children u_i, queries q_j and coefficients c_ij,

    logits  u_i . (q_j W_j^T)        sums  (sum_i c_ij u_i) W_j

so an iteration is two products of a sample's children [i, f] with something as small as its parents [j, f], f = (a, k):
one program holds a sample, its parents in registers, and walks over its children, which stay in the cache. Between the
walks parents pass through W, some at a time. What passes from one step to the next goes through memory that this
program alone reads.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.attention.kernels import operand
from capsroute.form.cost import CORES, holds_samples
from capsroute.form.exponential import exponential
from capsroute.form.launch import Launch, kernel, kind_of
from capsroute.form.lengths import squashed, squashed_gradient
from capsroute.form.loop.max_min import parts, shares, slope, stretched, summed
from capsroute.form.plan import Sizes, operand_dtype, power_of_2, precision, sizes_of
from capsroute.form.tiles import there

__all__ = ["shared_backward", "shared_forward", "shared_reasons"]

OVER_MAP = "transforms are shared by all children of a map, whose passes are matrix products already"
SHARED = "transforms are shared by many children of few samples, whose passes are matrix products already"
MOST_PARENTS = 256  # in a product
MOST = 1 << 13  # numbers of all parents that one program holds: [j, f]
TILE = 1 << 13  # of logits that it holds at once: [i, j]
STEP = 1 << 10  # of a product with some transforms, for each warp: [j, a, k, o]
SMALL = tl.constexpr(2.0**-80)


@triton.jit
def transforms(W, j, J, K: tl.constexpr, O: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr):
    """W of parents j [JC, 1]: [JC, 1, KP, OP]."""
    j, k = j[:, :, None, None], tl.arange(0, KP)[None, None, :, None]
    o = tl.arange(0, OP)[None, None, None, :]
    return tl.load(W + (j * K + k) * O + o, mask=(j < J) & (k < K) & (o < O), other=0.0).to(tl.float32)


@triton.jit
def through(x, Wt):
    """[JC, AP, KP] -> [JC, AP, OP]."""
    return tl.sum(x[:, :, :, None] * Wt, axis=2)


@triton.jit
def back(x, Wt):
    """[JC, AP, OP] -> [JC, AP, KP]."""
    return tl.sum(x[:, :, None, :] * Wt, axis=3)


@triton.jit
def poses_of(j, stride, A: tl.constexpr, N: tl.constexpr, AP: tl.constexpr, NP: tl.constexpr, J):
    """Where the poses of parents j [JC, 1] lie, `stride` from one to the next, and which there are: [JC, AP, NP]."""
    a, n = tl.arange(0, AP)[None, :, None], tl.arange(0, NP)[None, None, :]
    return j[:, :, None] * stride + a * N + n, (j[:, :, None] < J) & (a < A) & (n < N)


@triton.jit
def children(u, b, i0, I, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr):
    """A tile of a sample's children [IC, FP]."""
    i, f = i0 + tl.arange(0, IC)[:, None], tl.arange(0, FP)[None, :]
    return tl.load(u + (b * I + i) * F + f, mask=(i < I) & (f < F), other=0.0)


@triton.jit
def parents(
    x, stride, J, F: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr
):
    """All parents of a sample [JP, FP], as an operand."""
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    return operand(tl.load(x + j * stride + f, mask=(j < J) & (f < F), other=0.0), DT, PRECISION)


@triton.jit
def raised(x, DT: tl.constexpr, PRECISION: tl.constexpr):
    """An operand x [JP, FP] as it is to be multiplied, and a factor of the products.

    Where float32 is multiplied in parts, the lower ones of numbers below 2^-109 are lost: those are raised by a power
    of two. The gradient of parents is of that kind where transforms are 1e-20.
    """
    if DT == tl.float32 and PRECISION != "tf32":
        low = tl.max(tl.max(tl.abs(x), axis=1), axis=0) < SMALL
        return x * tl.where(low, 1.0 / SMALL, 1.0), tl.where(low, SMALL, 1.0)
    else:
        return x, 1.0


@triton.jit
def add_raised(total, x, y, factor, DT: tl.constexpr, PRECISION: tl.constexpr):
    """total + x y, of which one is `raised`."""
    if DT == tl.float32 and PRECISION != "tf32":
        return total + tl.dot(x, y, input_precision=PRECISION) * factor
    else:
        return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def normalised(logits, J, SOFTMAX: tl.constexpr, lower, upper, JP: tl.constexpr):
    """Coefficients [IC, JP] from logits: softmax or max-min over parents; zero where there is no parent."""
    real = tl.arange(0, JP)[None, :] < J
    high = tl.max(tl.where(real, logits, -float("inf")), axis=1, keep_dims=True)
    if SOFTMAX:
        e = exponential(tl.where(real, logits - high, -float("inf")))
        return e / tl.sum(e, axis=1, keep_dims=True)
    else:
        low = tl.min(tl.where(real, logits, float("inf")), axis=1, keep_dims=True)
        return tl.where(real, stretched(logits, high, low, lower, upper), 0.0)


@triton.jit
def slopes(logits, c, g, J, SOFTMAX: tl.constexpr, lower, upper, JP: tl.constexpr):
    """The gradient of the logits [IC, JP] from that of the coefficients."""
    real = tl.arange(0, JP)[None, :] < J
    g = tl.where(real, g, 0.0)
    if SOFTMAX:
        return c * (g - tl.sum(c * g, axis=1, keep_dims=True))
    else:
        high = tl.max(tl.where(real, logits, -float("inf")), axis=1, keep_dims=True)
        low = tl.min(tl.where(real, logits, float("inf")), axis=1, keep_dims=True)
        each = shares(summed(parts(logits, g, high, low, real), 1))
        return tl.where(real, slope(logits, g, high, low, each, lower, upper), 0.0)


@triton.jit
def add_product(total, x, U, G: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    """total [G, JP, FP], or [JP, FP], and the sums of children U [IC, FP] with weights x [IC, JP], in G parts.

    A product as small as [16, 16] is work for two warps: all others would make the same again. So each has its own.
    """
    if G == 1:
        return tl.dot(tl.trans(x), U, total, input_precision=PRECISION)
    else:
        x = tl.permute(tl.reshape(x, (G, IC // G, JP)), (0, 2, 1))
        return tl.dot(x, tl.reshape(U, (G, IC // G, FP)), total, input_precision=PRECISION)


@triton.jit
def no_sums(G: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr):
    """Where `add_product` starts."""
    if G == 1:
        return tl.zeros((JP, FP), tl.float32)
    else:
        return tl.zeros((G, JP, FP), tl.float32)


@triton.jit
def whole(total, G: tl.constexpr):
    """The parts of `add_product` together: [JP, FP]."""
    if G == 1:
        return total
    else:
        return tl.sum(total, axis=0)


@triton.jit
def walk(u, c, Y, b, I, J, store, lower, upper, SOFTMAX: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
         JP: tl.constexpr, IC: tl.constexpr, G: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Over a sample's children: coefficients from the agreement with Y [JP, FP], kept if asked; their sums [JP, FP]."""
    total = no_sums(G, JP, FP)
    for i0 in range(0, I, IC):
        U = operand(children(u, b, i0, I, F, FP, IC), DT, PRECISION)
        logits = tl.dot(U, tl.trans(Y), input_precision=PRECISION)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP)
        i, j = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        tl.store(c + (b * I + i) * J + j, C, mask=(i < I) & (j < J) & store)
        total = add_product(total, operand(C, DT, PRECISION), U, G, IC, JP, FP, PRECISION)
    return whole(total, G)


@triton.jit
def walk_back(u, g_c, to, Y, X, b, I, J, given, more, lower, upper, SOFTMAX: tl.constexpr, F: tl.constexpr,
              FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr, G: tl.constexpr, DT: tl.constexpr,
              PRECISION: tl.constexpr, STOP: tl.constexpr):  # fmt: skip
    """The derivative of `walk`: X [JP, FP] is the gradient of the sums; returns that by Y. The children's goes `to`.

    It is added to what is there if `more`. g_c [b,i,j] is the gradient of the coefficients, if `given`; if STOP they
    are constants of the sums, and only g_c reaches Y.
    """
    X, factor = raised(X, DT, PRECISION)
    total = no_sums(G, JP, FP)
    for i0 in range(0, I, IC):
        U = operand(children(u, b, i0, I, F, FP, IC), DT, PRECISION)
        logits = tl.dot(U, tl.trans(Y), input_precision=PRECISION)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP)
        i, j = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        g = tl.load(g_c + (b * I + i) * J + j, mask=(i < I) & (j < J) & given, other=0.0)
        if not STOP:
            g = add_raised(g, U, tl.trans(X), factor, DT, PRECISION)
        slope = operand(slopes(logits, C, g, J, SOFTMAX, lower, upper, JP), DT, PRECISION)
        total = add_product(total, slope, U, G, IC, JP, FP, PRECISION)
        f = tl.arange(0, FP)[None, :]
        at, mask = to + (b * I + i) * F + f, (i < I) & (f < F)
        found = tl.load(at, mask=mask & more, other=0.0).to(tl.float32)
        found = add_raised(found, operand(C, DT, PRECISION), X, factor, DT, PRECISION)
        found = tl.dot(slope, Y, found, input_precision=PRECISION)
        tl.store(at, found, mask=mask)
    return whole(total, G)


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
    """du [b,i,a,k], and left [j,r,b,a,k], right [j,r,b,a,o], whose product over (r, b, a) is dW.

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
    pose, reasons = _padded(s), []
    if pose["JP"] > MOST_PARENTS or pose["JP"] * pose["FP"] > MOST or pose["AP"] * pose["KP"] * pose["OP"] > 4 * STEP:
        reasons.append(f"a program does not hold {s.j} parents of {s.a} x {s.k} and {s.a} x {s.o} numbers each")
    if 2 * iterations * s.b * s.j * s.a * max(s.k, s.o) >= 1 << 31:
        reasons.append("parents of all iterations have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    return reasons if reasons or holds_samples(s, iterations) else [SHARED]


def _padded(s: Sizes) -> dict[str, int]:
    """Sizes of one pose, and what they are padded to."""
    return {
        "A": s.a, "K": s.k, "O": s.o, "AP": power_of_2(s.a), "KP": power_of_2(s.k), "OP": power_of_2(s.o),
        "JP": max(16, power_of_2(s.j)), "FP": max(16, power_of_2(s.a * s.k)),
    }  # fmt: skip


@functools.lru_cache(maxsize=256)
def shared_launch(s: Sizes, dtype: torch.dtype, multiply: str) -> Launch:
    """A program for each sample: as many children in a tile, and warps for them, as registers hold."""
    pose = _padded(s)
    widest, product = max(pose["JP"], pose["FP"]), pose["JP"] * pose["FP"]
    alone = s.b <= CORES  # a program has a core to itself
    children = min(256 if alone and widest == 16 else 128, TILE // widest, max(16, power_of_2(s.i)))
    warps = 8 if children * widest > 4096 or product > 1024 or (alone and children * widest > 2048) else 4
    some = max(1, min(power_of_2(s.j), warps * STEP // (pose["AP"] * pose["KP"] * pose["OP"])))
    groups = max(1, min(children // 16, warps // (product // 128)))
    options = {
        **pose, "IC": children, "JC": some, "G": groups, "PRECISION": multiply,
        "num_warps": warps,
        "DT": tl.bfloat16 if dtype == torch.bfloat16 else tl.float32,
    }  # fmt: skip
    return Launch((s.b, 1, 1), 1, 1, options)


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
