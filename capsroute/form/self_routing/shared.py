"""Self-routing over transforms that all children share: they never meet the children.

With weights w_ij = a_i r_ij, of which parent j receives R_j, and c_ij = w_ij / R_j,

    x_j = sum_i c_ij u_i         p_j = x_j W_j         Y_j = p'_j W_j^T         u'_i = sum_j c_ij Y_j

where a ' is a gradient: so a sample is one walk over its children there, in which all parents are in registers, and one
back. Weights are divided by the largest that was met before they are multiplied, and sums follow it: those of 1e-30 are
as good as weights of one. Where samples are few, children are shared out (`SharedPlan`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.attention.kernels import operand
from capsroute.form.cost import adds_samples
from capsroute.form.launch import LaunchSequence, in_turn, kernel, kind_of
from capsroute.form.launches.self_routing import shared_plan
from capsroute.form.launches.shared_transforms import STEP, shared_pose
from capsroute.form.loop.shared import MOST, MOST_PARENTS
from capsroute.form.loop.walks import (
    across,
    add_product,
    add_raised,
    back,
    children,
    no_sums,
    parents,
    poses_of,
    raised,
    through,
    transforms,
    whole,
)
from capsroute.form.rows.totals import total as total_parts
from capsroute.form.self_routing.shares import or_one, shares, slopes
from capsroute.form.sizes import Sizes, operand_dtype, precision, sizes_of, sums_dtype
from capsroute.form.tiles import there


@triton.jit
def largest(x):
    """Of each column of x [N, JP], whatever its sign: [1, JP]."""
    return tl.max(tl.abs(x), axis=0, keep_dims=True)


@triton.jit
def add_scaled(total, scale, weights, U, G, IC, JP, FP, PRECISION):
    """The total of `add_product` times a scale of each parent [1, JP], and more."""
    scale = tl.trans(scale)
    total = total * (scale if G == 1 else scale[None, :, :])
    return add_product(total, weights, U, G, IC, JP, FP, PRECISION)


@triton.jit
def walk(u, activations, logits, r, b, start, stop, I, J, F, FP, JP, IC, G, DT, PRECISION):
    """Over a sample's children, from one to another; their shares are stored in r [b,i,j].

    The largest weight of each parent [1, JP]; in units of it what the parent receives [1, JP], and the sum of its
    children [JP, FP]; and the sum of activations [1, 1].
    """
    high, received = tl.zeros((1, JP), tl.float32), tl.zeros((1, JP), tl.float32)
    active = tl.zeros((1, 1), tl.float32)
    total = no_sums(G, JP, FP, DT, PRECISION)
    for i0 in range(start, stop, IC):
        i, j = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        at, mask = (b * I + i) * J + j, (i < I) & (j < J)
        some = shares(tl.load(logits + at, mask=mask, other=0.0), J, JP)
        tl.store(r + at, some, mask=mask)
        a = tl.load(activations + b * I + i, mask=i < I, other=0.0).to(tl.float32)
        U = operand(children(u, b, i0, I, F, FP, IC), DT, PRECISION)
        weights = a * some
        higher = tl.maximum(high, largest(weights))
        unit = or_one(higher)
        weights, scale = weights / unit, high / unit
        received = received * scale + tl.sum(weights, axis=0, keep_dims=True)
        active += tl.sum(a, axis=0, keep_dims=True)
        total = add_scaled(total, scale, operand(weights, DT, PRECISION), U, G, IC, JP, FP, PRECISION)
        high = higher
    return high, received, active, whole(total, G)


@triton.jit
def finish(x, W, poses, jc, b, J, A, K, O, AP, KP, OP):
    """Poses of parents jc, of their children's mean x [JC, AP, KP]."""
    to, held = poses_of(jc, A * O, A, O, AP, OP, J)
    s = through(x, transforms(W, jc, J, K, O, KP, OP))
    tl.store(poses + b * (J * A * O) + to, s, mask=held)


@kernel("B", "I")
def shared_whole(u, W, activations, logits, r, poses, scores, received, active, kept, B, I, J, A: tl.constexpr,
                 K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                 FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr, JC: tl.constexpr, G: tl.constexpr,
                 DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample.

    Shares r [b,i,j], poses [b,j,a,o], scores [b,j], what parents received [b,j], the sum of activations [b], and the
    children's means, kept [b,j,a,k].
    """
    in_turn()
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    mine = kept + b * (J * F)
    high, some, total_a, total = walk(u, activations, logits, r, b, 0, I, I, J, F, FP, JP, IC, G, DT, PRECISION)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    tl.store(mine + j * F + f, total / tl.trans(or_one(some)), mask=(j < J) & (f < F))
    j = tl.arange(0, JP)[None, :]
    R = some * high
    tl.store(received + b * J + j, R, mask=j < J)
    tl.store(scores + b * J + j, R / or_one(total_a), mask=j < J)
    tl.store(active + b + tl.zeros((1, 1), tl.int32), total_a)
    tl.debug_barrier()
    for j0 in range(0, J, JC):
        jc = j0 + tl.arange(0, JC)[:, None]
        at, mask = poses_of(jc, F, A, K, AP, KP, J)
        finish(tl.load(mine + at, mask=mask, other=0.0), W, poses, jc, b, J, A, K, O, AP, KP, OP)


@kernel("B", "I", "N")
def shared_some(u, activations, logits, r, high, received, active, part, B, I, J, N, F: tl.constexpr, FP: tl.constexpr,
                JP: tl.constexpr, IC: tl.constexpr, G: tl.constexpr, DT: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    """A program for a sample and N of its children: what `walk` finds, in high and received [share,b,j], active
    [share,b] and part [share,b,j,f]."""
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    start, stop = share * N, tl.minimum(share * N + N, I)
    top, some, total_a, total = walk(u, activations, logits, r, b, start, stop, I, J, F, FP, JP, IC, G, DT, PRECISION)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    to = share * B + b
    tl.store(part + to * (J * F) + j * F + f, total, mask=(j < J) & (f < F))
    j = tl.arange(0, JP)[None, :]
    tl.store(high + to * J + j, top, mask=j < J)
    tl.store(received + to * J + j, some, mask=j < J)
    tl.store(active + to + tl.zeros((1, 1), tl.int32), total_a)


@kernel("B", "S")
def shared_parents(W, high, some, some_a, part, poses, scores, received, active, kept, B, J, S, A: tl.constexpr,
                   K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                   JC: tl.constexpr, SP: tl.constexpr):  # fmt: skip
    """A program for a sample and JC parents: the S shares of `shared_some` together, and the rest of `shared_whole`."""
    in_turn()
    b, jc = tl.program_id(0), tl.program_id(1) * JC + tl.arange(0, JC)[:, None]
    j = tl.program_id(1) * JC + tl.arange(0, JC)[None, :]
    top, total_a = tl.zeros((1, JC), tl.float32), tl.zeros((1, 1), tl.float32)
    for first in range(0, S, SP):
        share = first + tl.arange(0, SP)[:, None]
        found = tl.load(high + (share * B + b) * J + j, mask=(share < S) & (j < J), other=0.0)
        top = tl.maximum(top, tl.max(found, axis=0, keep_dims=True))
        total_a += tl.sum(tl.load(some_a + share * B + b, mask=share < S, other=0.0), axis=0, keep_dims=True)
    at, mask = poses_of(jc, A * K, A, K, AP, KP, J)
    at += b * (J * A * K)
    R, x = tl.zeros((1, JC), tl.float32), tl.zeros((JC, AP, KP), kept.dtype.element_ty)
    for first in range(0, S, SP):
        share = first + tl.arange(0, SP)[:, None]
        to, those = (share * B + b) * J + j, (share < S) & (j < J)
        scale = tl.load(high + to, mask=those, other=0.0) / or_one(top)
        R += tl.sum(scale * tl.load(some + to, mask=those, other=0.0), axis=0, keep_dims=True)
        each = first + tl.arange(0, SP)[:, None, None, None]
        found = tl.load(part + each * (B * J * A * K) + at[None], mask=(each < S) & mask[None], other=0.0)
        x += tl.sum(scale[:, :, None, None] * found, axis=0)
    x = x / tl.trans(or_one(R))[:, :, None]
    tl.store(kept + at, x, mask=mask)
    R = R * top
    tl.store(received + b * J + j, R, mask=j < J)
    tl.store(scores + b * J + j, R / or_one(total_a), mask=j < J)
    tl.store(active + b + tl.zeros((1, 1), tl.int32), total_a, mask=there(tl.program_id(1), 1))
    finish(x, W, poses, jc, b, J, A, K, O, AP, KP, OP)


@triton.jit
def pull_back(W, g, kept, by_parents, dW, j0, b, mine, EACH, J, A, K, O, AP, KP, OP, JC):
    """Of JC parents: gradients of their poses pulled back through W, by_parents [j,a,k], and if EACH sample leaves its
    own, and this is `mine`, that by W, dW [b,j,k,o]."""
    jc = j0 + tl.arange(0, JC)[:, None]
    at, mask = poses_of(jc, A * K, A, K, AP, KP, J)
    to, held = poses_of(jc, A * O, A, O, AP, OP, J)
    x = tl.load(g + b * (J * A * O) + to, mask=held, other=0.0).to(tl.float32)
    tl.store(by_parents + at, back(x, transforms(W, jc, J, K, O, KP, OP)), mask=mask)
    if EACH and mine:
        to_W, those = poses_of(jc, K * O, K, O, KP, OP, J)
        mean = tl.load(kept + b * (J * A * K) + at, mask=mask, other=0.0)
        tl.store(dW + b * (J * K * O) + to_W, across(mean, x), mask=those)


@kernel("B", "I", "N", "scored", "gr_b", "gr_i", "gr_j")
def shared_back(u, W, activations, logits, g, g_scores, g_r, scores, received, active, kept, by_parents, dW, du, da, dl,
                B, I, J, N, scored, gr_b, gr_i, gr_j, GIVEN: tl.constexpr, READY: tl.constexpr, EACH: tl.constexpr,
                A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr, JC: tl.constexpr, DT: tl.constexpr,
                PRECISION: tl.constexpr):  # fmt: skip
    """A program for a sample and N of its children.

    du [b,i,a,k], da [b,i], dl [b,i,j] by the logits, and dW [b,j,k,o] of EACH sample, if asked. by_parents
    [share,b,j,a,k], of each program its own, unless another launch has made it READY, [b,j,a,k], and dW too.
    """
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    F: tl.constexpr = A * K
    if READY:
        by_parents += b * (J * F)
    else:
        by_parents += (share * B + b) * (J * F)
        for j0 in range(0, J, JC):
            mine = (j0 // JC) % tl.num_programs(1) == share
            pull_back(W, g, kept, by_parents, dW, j0, b, mine, EACH, J, A, K, O, AP, KP, OP, JC)
        tl.debug_barrier()
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    Y, factor = raised(parents(by_parents, F, J, F, JP, FP, DT, PRECISION), DT, PRECISION)
    mean = tl.load(kept + (b * J + j) * F + f, mask=(j < J) & (f < F), other=0.0)
    known = tl.trans((tl.sum(mean * Y.to(tl.float32), axis=1, keep_dims=True) * factor).to(tl.float32))
    j = tl.arange(0, JP)[None, :]
    R = tl.load(received + b * J + j, mask=j < J, other=0.0)
    known = tl.where(R == 0, 0.0, known)
    R = or_one(R)
    score = (j < J) & there(0, scored)
    total_a = tl.load(active + b + tl.zeros((1, 1), tl.int32))
    by_scores = tl.load(g_scores + b * J + j, mask=score, other=0.0) / or_one(total_a)
    const = tl.sum(by_scores * tl.load(scores + b * J + j, mask=score, other=0.0), axis=1, keep_dims=True)
    const = tl.where(total_a == 0, 0.0, const)
    for i0 in range(share * N, tl.minimum(share * N + N, I), IC):
        i = i0 + tl.arange(0, IC)[:, None]
        at, mask = (b * I + i) * J + j, (i < I) & (j < J)
        x = tl.load(logits + at, mask=mask, other=0.0)
        r = shares(x, J, JP)
        a = tl.load(activations + b * I + i, mask=i < I, other=0.0).to(tl.float32)
        U = operand(children(u, b, i0, I, F, FP, IC), DT, PRECISION)
        by_votes = tl.dot(U, tl.trans(Y), input_precision=PRECISION) * factor
        by_r = tl.zeros((IC, JP), tl.float32)
        if GIVEN:
            by_r += tl.load(g_r + b * gr_b + i * gr_i + j * gr_j, mask=mask, other=0.0)
        slope, by_a = slopes(x, r, a, (by_votes - known) / R + by_scores, by_r, const, GIVEN)
        tl.store(dl + at, slope, mask=mask)
        tl.store(da + b * I + i, by_a, mask=i < I)
        found = tl.zeros((IC, FP), tl.float32)
        found = add_raised(found, operand(a * r / R, DT, PRECISION), Y, factor, DT, PRECISION)
        tl.store(du + (b * I + i) * F + f, found, mask=(i < I) & (f < F))


@kernel("B")
def shared_parents_back(W, g, kept, by_parents, dW, B, J, EACH: tl.constexpr, A: tl.constexpr, K: tl.constexpr,
                        O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                        JC: tl.constexpr):  # fmt: skip
    """A program for a sample and JC parents: what `shared_back` needs of them."""
    in_turn()
    b, j0 = tl.program_id(0), tl.program_id(1) * JC
    pull_back(W, g, kept, by_parents + b * (J * A * K), dW, j0, b, True, EACH, J, A, K, O, AP, KP, OP, JC)


def holds_parents(s: Sizes, dtype: torch.dtype) -> bool:
    """Whether a program holds all parents of a sample, and some of their transforms, as operands of this dtype."""
    pose = shared_pose(s)
    transform = pose["AP"] * pose["KP"] * pose["OP"]
    most = MOST // 2 if dtype == torch.float32 and precision() != "tf32" else MOST  # in parts they leave the registers
    return pose["JP"] <= MOST_PARENTS and pose["JP"] * pose["FP"] <= most and transform <= 4 * STEP


def shared_forward(u: Tensor, W: Tensor, activations: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """As `calls.forward`; what is kept are the children's means [b,j,a,k]."""
    s, tensors = sizes_of(u, W), [t.contiguous() for t in (u, W, activations, logits)]
    u, W, activations, logits = tensors
    poses = u.new_empty((s.b, s.j, s.a, s.o), dtype=torch.float32)
    r, scores = poses.new_empty((s.b, s.i, s.j)), poses.new_empty((s.b, s.j))
    received, active = torch.empty_like(scores), poses.new_empty(s.b)
    kept = poses.new_empty((s.b, s.j, s.a, s.k), dtype=sums_dtype(u, W))
    plan = shared_plan(s, operand_dtype(u, W), precision())
    run = LaunchSequence(plan.sequences, kind_of(*tensors), *(t.dtype for t in tensors))
    results = poses, scores, received, active, kept
    if plan.step is None:
        run(shared_whole, plan.walk, *tensors, r, *results, s.b, s.i, s.j)
    else:
        splits = plan.walk.splits
        parts = [t.new_empty((splits, *t.shape)) for t in (received, received, active, kept)]
        run(shared_some, plan.walk, u, activations, logits, r, *parts, s.b, s.i, s.j, plan.walk.tiles)
        run(shared_parents, plan.step, W, *parts, *results, s.b, s.j, splits)
    run.end()
    return r, *results


def shared_backward(
    grads: tuple[Tensor, Tensor | None, Tensor | None], tensors: tuple[Tensor, ...], kept: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """As `calls.backward`, from gradients of poses, of scores and of shares."""
    (g, g_scores, g_r), (scores, received, active, means) = grads, kept[1:]
    s, tensors = sizes_of(*tensors[:2]), tuple(t.contiguous() for t in tensors)
    u, W, activations, logits = tensors
    plan = shared_plan(s, operand_dtype(u, W), precision())
    g, scored = g.contiguous(), g_scores is not None
    g_scores = scores if g_scores is None else g_scores.contiguous()
    given, strides = (scores, (0, 0, 0)) if g_r is None else (g_r, g_r.stride())
    saved = scores, received, active, means
    kind = kind_of(*tensors, g, g_scores, given, *saved)
    dtypes = (t.dtype for t in (*tensors, g, g_scores, given))
    each = s.b == 1 or adds_samples(s)
    run = LaunchSequence(plan.sequences, kind, "back", *dtypes, g_r is None, each)
    by_parents = g.new_empty((1 if plan.pull else plan.back.splits, s.b, s.j, s.a, s.k), dtype=torch.float32)
    dW = g.new_empty((s.b, *W.shape[1:]) if each else 0, dtype=W.dtype if s.b == 1 else torch.float32)
    du, da, dl = (torch.empty_like(t) for t in (u, activations, logits))
    if plan.pull is not None:
        run(shared_parents_back, plan.pull, W, g, means, by_parents, dW, s.b, s.j, EACH=each)
    run(
        shared_back, plan.back, *tensors, g, g_scores, given, *saved, by_parents, dW, du, da, dl, s.b, s.i, s.j,
        plan.back.tiles, int(scored), *strides, GIVEN=g_r is not None, READY=plan.pull is not None, EACH=each,
    )  # fmt: skip
    if each:
        dW = total_parts(dW, W.dtype, run=run)
    run.end()
    if not each:
        dW = torch.einsum("bjak,bjao->jko", means, g.to(means.dtype)).to(W.dtype)
    return du, dW[None], da, dl
