"""Gaussian passes over votes (Heinsen, EM) that make every vote in registers: nothing is cancelled, nothing stored.

Where making votes costs more than reading them (`cost`), u are votes [f,j] that are STORED, v_b and v_i apart.

A program is one warp; lanes hold parents, and it walks over children, whose poses are the same for all lanes. A vote of
a 4x4 child costs 64 multiplications, less than reading it from memory would. With d = vote - centre, and f = (a,o):

    quadratic          [b,i,j] = constant[b,j] + sum over f of (linear d + square d^2)   density, gradient by weights
    weighted moments   [b,j,f]   mean of the votes, and squares about it
    power sums         [b,j,f] = sum over i of slope (1, pull, pull d)                   gradient by parents

where pull = 2 square d, the slope of a log-density by the vote: d^2 alone would overflow in sums of vast votes.

What parents bring lies with parents last, [b, rows, j]; transforms too, [i or 1, k*o, j].
"""

import triton
import triton.language as tl

from capsroute.form.exponential import exponential
from capsroute.form.launch import kernel

LOWEST = tl.constexpr(-3e38)  # a log-density that does not overflow
FEW = tl.constexpr(8)  # stored votes of so many children stay in the cache until they are read again

__all__ = ["power_sums", "quadratic", "rows_of", "vote", "weighted_moments", "zeros"]


@triton.jit
def rows_of(pointers, stride, mask, FIRST: tl.constexpr, N: tl.constexpr):
    """Rows FIRST .. FIRST + N of a table, each a tile of numbers."""
    rows = ()
    for n in tl.static_range(N):
        rows = rows + (tl.load(pointers + (FIRST + n) * stride, mask=mask, other=0.0).to(tl.float32),)
    return rows


@triton.jit
def zeros(N: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr):
    """N tiles of zeros."""
    rows = ()
    for _ in tl.static_range(N):
        rows = rows + (tl.zeros((IC, JT), tl.float32),)
    return rows


@triton.jit
def vote(U, Wt, bias, a: tl.constexpr, o: tl.constexpr, K: tl.constexpr, O: tl.constexpr, BIAS: tl.constexpr,
         STORED: tl.constexpr):  # fmt: skip
    """Entry (a, o) of the votes of a tile; products are added in the order of k, which is not left to a compiler.

    STORED: U are the votes themselves.
    """
    if STORED:
        v = U[a * O + o]
    else:
        if BIAS:
            v = tl.fma(U[a * K], Wt[o], bias[a * O + o])
        else:
            v = U[a * K] * Wt[o]
        for k in tl.static_range(1, K):
            v = tl.fma(U[a * K + k], Wt[k * O + o], v)
    return v


@kernel("I", "J", "NCH")
def quadratic(u, W, bias, parents, plane, gate, beta, given, out, out_gate, I, J, NCH, v_b, v_i, g_b, g_i, g_j,
              A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
              SHARED: tl.constexpr, STORED: tl.constexpr, BIAS: tl.constexpr, LINEAR: tl.constexpr, BETA: tl.constexpr,
              GIVEN: tl.constexpr, SOFTMAX: tl.constexpr, BACKWARD: tl.constexpr, SUMMED: tl.constexpr):  # fmt: skip
    """Rows of parents: centre, square, constant, then linear (LINEAR) and the gradient of weighted betas (BETA).

    SOFTMAX: what is stored is the softmax over parents. BACKWARD: plane holds that softmax R; the quadratic is the
    gradient of weights gate * R, `given` that of R itself, and what is stored is the gradient before the softmax.
    SUMMED: only its sum over parents is stored.
    """
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    ROWS: tl.constexpr = 2 * F + 1 + (F if LINEAR else 0) + (1 if BETA else 0)
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    table = parents + b * (ROWS * J) + j
    centre = rows_of(table, J, valid, 0, F)
    square = rows_of(table, J, valid, F, F)
    constant = tl.load(table + 2 * F * J, mask=valid, other=0.0)
    if LINEAR:
        linear = rows_of(table, J, valid, 2 * F + 1, F)
    if BETA:
        dots = tl.load(table + (ROWS - 1) * J, mask=valid, other=0.0)
    Wt = ()
    bs = ()
    if SHARED and not STORED:
        Wt = rows_of(W + j, J, valid, 0, K * O)
        bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        inside = (i < I) & valid
        U, Wi, bi = _votes_of(u, W, bias, b, i, j, I, J, v_b, v_i, inside, Wt, bs, A, K, O, SHARED, STORED, BIAS)
        total = tl.zeros((IC, JT), tl.float32)
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                d = vote(U, Wi, bi, a, o, K, O, BIAS, STORED) - centre[a * O + o]
                if LINEAR:
                    total += d * (linear[a * O + o] + square[a * O + o] * d)
                else:
                    total += square[a * O + o] * d * d
        total += constant
        if BETA:
            total += dots * tl.load(beta + i * J + j, mask=inside, other=0.0)
        at = (b * I + i) * J + j
        if SOFTMAX:
            # A child so far from all parents that no density is left belongs to all alike, as after any other tie.
            total = tl.where(valid, tl.where(total < LOWEST, LOWEST, total), -float("inf"))
            total = exponential(total - tl.max(total, axis=1, keep_dims=True))
            total = total / tl.sum(total, axis=1, keep_dims=True)
        if BACKWARD:
            R = tl.load(plane + at, mask=inside, other=0.0)
            tl.store(out_gate + b * I + i, tl.sum(R * total, axis=1, keep_dims=True), mask=i < I)
            total = total * tl.load(gate + b * I + i, mask=i < I, other=0.0)
            if GIVEN:
                total += tl.load(given + b * g_b + i * g_i + j * g_j, mask=inside, other=0.0)
            total = R * (total - tl.sum(R * total, axis=1, keep_dims=True))
        if SUMMED:
            total = tl.where(valid, total, 0.0)
            tl.store(out_gate + b * I + i, tl.sum(total, axis=1, keep_dims=True), mask=i < I)
        else:
            tl.store(out + at, total, mask=inside)


@triton.jit
def _product(x, y, IC: tl.constexpr):
    """x * y, rounded before it is summed over the children of a tile, which lie in several lanes.

    A product that is fused into a sum over lanes is rounded for all lanes but its own. Each lane then has a mean of its
    own, and distances from it do not add up to the rest that the gradient makes good.
    """
    return tl.fma(x, y, 0.0) if IC > 1 else x * y


@triton.jit
def _weights(plane, gate, b, i, j, I, p_b, p_i, p_j, inside, IC: tl.constexpr, GATE: tl.constexpr):
    x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
    if GATE:
        x = _product(x, tl.load(gate + b * I + i, mask=i < I, other=0.0), IC)
    return x


@triton.jit
def _votes_of(u, W, bias, b, i, j, I, J, v_b, v_i, inside, Wt, bs, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
              SHARED: tl.constexpr, STORED: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """What votes of a tile are made of: children, transforms and biases; or the votes themselves, three times."""
    if STORED:
        U = rows_of(u + b.to(tl.int64) * v_b + i.to(tl.int64) * v_i + j, J, inside, 0, A * O)
        return U, U, U
    else:
        U = rows_of(u + (b * I + i) * (A * K), 1, i < I, 0, A * K)
        if not SHARED:
            Wt = rows_of(W + i * (K * O * J) + j, J, inside, 0, K * O)
            bs = rows_of(bias + i * (A * O * J) + j, J, inside, 0, A * O if BIAS else 1)
        return U, Wt, bs


@triton.jit
def _joined(weight, rows, w, more, F: tl.constexpr):
    """Means, rests and squares (rows) of two groups of children, each about its own mean, as those of one."""
    whole = weight + w
    inverse = 1.0 / tl.where(whole == 0, 1.0, whole)
    means = ()
    rests = ()
    squares = ()
    for f in tl.static_range(F):
        # From the mean of the first group, so that a mean which both share stays as it is.
        step = (rows[F + f] + more[F + f] + w * (more[f] - rows[f])) * inverse
        mean = tl.where(weight == 0, more[f], rows[f] + step)
        d = rows[f] - mean
        e = more[f] - mean
        means = means + (mean,)
        rests = rests + (rows[F + f] + weight * d + more[F + f] + w * e,)
        squares = squares + (
            rows[2 * F + f] + d * (2 * rows[F + f] + weight * d) + more[2 * F + f] + e * (2 * more[F + f] + w * e),
        )
    return means + rests + squares


@kernel("B", "I", "J", "NCH")
def weighted_moments(u, W, bias, plane, gate, beta, part, B, I, J, NCH, v_b, v_i, p_b, p_i, p_j,
                     A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                     SHARED: tl.constexpr, STORED: tl.constexpr, BIAS: tl.constexpr, GATE: tl.constexpr,
                     BETA: tl.constexpr):  # fmt: skip
    """One program's share, part[split, b, rows, j]; rows: weights, weights * beta (BETA), means, rests, squares.

    Weights are plane, times gate[b,i] (GATE). Children are walked over twice, for their mean and for the squares about
    it, so that no square is a difference of larger ones; where votes are STORED a few at a time, which are in the cache
    then. Rests are weights times distances from the mean, zero but for the mean's rounding.
    """
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    Wt = ()
    bs = ()
    if SHARED and not STORED:
        Wt = rows_of(W + j, J, valid, 0, K * O)
        bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    weight = tl.zeros((1, JT), tl.float32)
    dots = tl.zeros((1, JT), tl.float32)
    rows = zeros(3 * F, 1, JT)
    if STORED:
        few = FEW
    else:
        few = NCH
    for begin in range(0, NCH, few):
        w = tl.zeros((1, JT), tl.float32)
        sums = zeros(F, 1, JT)
        for chunk in range(begin, tl.minimum(begin + few, NCH)):
            i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
            inside = (i < I) & valid
            U, Wi, bi = _votes_of(u, W, bias, b, i, j, I, J, v_b, v_i, inside, Wt, bs, A, K, O, SHARED, STORED, BIAS)
            x = _weights(plane, gate, b, i, j, I, p_b, p_i, p_j, inside, IC, GATE)
            w += tl.sum(x, axis=0, keep_dims=True)
            if BETA:
                y = x * tl.load(beta + i * J + j, mask=inside, other=0.0)
                dots += tl.sum(y, axis=0, keep_dims=True)
            new = ()
            for a in tl.static_range(A):
                for o in tl.static_range(O):
                    v = vote(U, Wi, bi, a, o, K, O, BIAS, STORED)
                    new = new + (sums[a * O + o] + tl.sum(_product(x, v, IC), axis=0, keep_dims=True),)
            sums = new
        means = ()
        for f in tl.static_range(F):
            means = means + (sums[f] / tl.where(w == 0, 1.0, w),)
        about = zeros(2 * F, 1, JT)
        for chunk in range(begin, tl.minimum(begin + few, NCH)):
            i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
            inside = (i < I) & valid
            U, Wi, bi = _votes_of(u, W, bias, b, i, j, I, J, v_b, v_i, inside, Wt, bs, A, K, O, SHARED, STORED, BIAS)
            x = _weights(plane, gate, b, i, j, I, p_b, p_i, p_j, inside, IC, GATE)
            rests = ()
            squares = ()
            for a in tl.static_range(A):
                for o in tl.static_range(O):
                    d = vote(U, Wi, bi, a, o, K, O, BIAS, STORED) - means[a * O + o]
                    rests = rests + (about[a * O + o] + tl.sum(x * d, axis=0, keep_dims=True),)
                    squares = squares + (about[F + a * O + o] + tl.sum(x * d * d, axis=0, keep_dims=True),)
            about = rests + squares
        if STORED:
            rows = _joined(weight, rows, w, means + about, F)
        else:
            rows = means + about
        weight += w
    N: tl.constexpr = 2 if BETA else 1
    to = part + (split * B + b) * ((N + 3 * F) * J) + j
    tl.store(to, weight, mask=valid)
    if BETA:
        tl.store(to + J, dots, mask=valid)
    for f in tl.static_range(3 * F):
        tl.store(to + (N + f) * J, rows[f], mask=valid)


@kernel("B", "I", "J", "NCH")
def power_sums(u, W, bias, plane, dense, part, B, I, J, NCH, p_b, p_i, p_j, A: tl.constexpr, K: tl.constexpr,
               O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, SHARED: tl.constexpr,
               BIAS: tl.constexpr):  # fmt: skip
    """One program's share, part[split, b, rows, j], of the sums of plane * (1, pull, pull d); dense is a table."""
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    centre = rows_of(dense + b * ((2 * F + 1) * J) + j, J, valid, 0, F)
    square = rows_of(dense + b * ((2 * F + 1) * J) + j, J, valid, F, F)
    Wt = ()
    bs = ()
    if SHARED:
        Wt = rows_of(W + j, J, valid, 0, K * O)
        bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    sums = zeros(1 + 2 * F, 1, JT)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        inside = (i < I) & valid
        U, Wi, bi = _votes_of(u, W, bias, b, i, j, I, J, 0, 0, inside, Wt, bs, A, K, O, SHARED, False, BIAS)
        x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
        first = (sums[0] + tl.sum(x, axis=0, keep_dims=True),)
        second = ()
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                d = vote(U, Wi, bi, a, o, K, O, BIAS, False) - centre[a * O + o]
                pull = 2 * square[a * O + o] * d * x
                first = first + (sums[1 + a * O + o] + tl.sum(pull, axis=0, keep_dims=True),)
                second = second + (sums[1 + F + a * O + o] + tl.sum(pull * d, axis=0, keep_dims=True),)
        sums = first + second
    to = part + (split * B + b) * ((1 + 2 * F) * J) + j
    for n in tl.static_range(1 + 2 * F):
        tl.store(to + n * J, sums[n], mask=valid)
