"""Gaussian passes over votes by shared transforms that make every vote in registers: nothing is cancelled or stored.

A program is one warp; lanes hold parents, and it walks over children, whose poses are the same for all lanes. A vote of
a 4x4 child costs 64 multiplications, less than reading it from memory would. With d = vote - centre, and f = (a,o):

    quadratic          [b,i,j] = constant[b,j] + sum over f of (linear d + square d^2)   density, gradient by weights
    weighted moments   [b,j,f]   mean of the votes, and squares about it

What parents bring lies with parents last, [b, rows, j]; transforms too, [k*o, j]. Code is unrolled over a pose: fast,
but seconds to compile.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.tiles import LOWEST, finite
from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import exponential


@triton.jit
def rows_of(pointers, stride, mask, FIRST: tl.constexpr, N: tl.constexpr):
    """Rows FIRST .. FIRST + N of a table, each a tile of numbers."""
    rows = ()
    for n in tl.static_range(N):
        rows = rows + (tl.load(pointers + (FIRST + n) * stride, mask=mask, other=0.0).to(tl.float32),)
    return rows


@triton.jit
def zeros(N: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr):
    """N tiles of zeros, one for each parent; see `places`."""
    rows = ()
    for _ in tl.static_range(N):
        rows = rows + (tl.zeros((JT,) if IC == 1 else (1, JT), tl.float32),)
    return rows


@triton.jit
def places(first, tile, IC: tl.constexpr, JT: tl.constexpr):
    """Children i [IC,1] from `first` on and parents j [1,JT] of a tile.

    A child alone is a number, and parents a vector [JT]: code of one layout, which is compiled in a fifth of the time.
    """
    if IC == 1:
        return first, tile * JT + tl.arange(0, JT)
    else:
        return first + tl.arange(0, IC)[:, None], tile * JT + tl.arange(0, JT)[None, :]


@triton.jit
def over_children(x, IC: tl.constexpr):
    """The sum over the children of a tile."""
    return x if IC == 1 else tl.sum(x, axis=0, keep_dims=True)


@triton.jit
def vote(U, Wt, bias, a: tl.constexpr, o: tl.constexpr, K: tl.constexpr, O: tl.constexpr, BIAS: tl.constexpr):
    """Entry (a, o) of the votes of a tile; products are added in the order of k, which is not left to a compiler."""
    if BIAS:
        v = tl.fma(U[a * K], Wt[o], bias[a * O + o])
    else:
        v = U[a * K] * Wt[o]
    for k in tl.static_range(1, K):
        v = tl.fma(U[a * K + k], Wt[k * O + o], v)
    return v


@kernel("I", "J", "NCH")
def quadratic(u, W, bias, parents, plane, gate, beta, given, out, out_gate, I, J, NCH, g_b, g_i, g_j,
              A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, BIAS: tl.constexpr,
              BETA: tl.constexpr, GIVEN: tl.constexpr, THEN: tl.constexpr):  # fmt: skip
    """A program holds a tile of parents and walks over a share of a sample's children, for one quadratic each.

    Rows of parents: centre, square, constant; then, but for a density, linear and the gradient of weighted betas
    (BETA). THEN it stores the "softmax" over parents, of a density. Or it goes "back" through that softmax, which is in
    plane: the quadratic is the gradient of weights gate * plane, `given` (GIVEN) that of plane itself, and the gradient
    before the softmax is stored. Or it is to "store" all, or only the "sum" over parents, in out_gate.
    """
    in_turn()
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    LINEAR: tl.constexpr = THEN != "softmax"
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
    Wt = rows_of(W + j, J, valid, 0, K * O)
    bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        inside = (i < I) & valid
        U = rows_of(u + (b * I + i) * (A * K), 1, i < I, 0, A * K)
        total = tl.zeros((IC, JT), tl.float32)
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                d = vote(U, Wt, bs, a, o, K, O, BIAS) - centre[a * O + o]
                if LINEAR:
                    total += d * (linear[a * O + o] + square[a * O + o] * d)
                else:
                    total += square[a * O + o] * d * d
        total += constant
        if BETA:
            total += dots * tl.load(beta + i * J + j, mask=inside, other=0.0)
        at = (b * I + i) * J + j
        if THEN == "softmax":
            # A child so far from all parents that no density is left belongs to all alike, as after any other tie.
            total = tl.where(valid, tl.where(total < LOWEST, LOWEST, total), -float("inf"))
            total = exponential(total - tl.max(total, axis=1, keep_dims=True))
            total = tl.div_rn(total, tl.sum(total, axis=1, keep_dims=True))
        if THEN == "back":
            R = tl.load(plane + at, mask=inside, other=0.0)
            total = finite(total)  # times a share that is next to nothing, it is a number again
            tl.store(out_gate + b * I + i, tl.sum(R * total, axis=1, keep_dims=True), mask=i < I)
            # Rounded before it is subtracted from itself: where one parent has all of a child the difference is zero.
            total = tl.fma(total, tl.load(gate + b * I + i, mask=i < I, other=0.0), 0.0)
            if GIVEN:
                total += tl.load(given + b * g_b + i * g_i + j * g_j, mask=inside, other=0.0)
            total = R * (total - tl.sum(tl.fma(R, total, 0.0), axis=1, keep_dims=True))
        if THEN == "sum":
            total = tl.where(valid, finite(total), 0.0)
            tl.store(out_gate + b * I + i, finite(tl.sum(total, axis=1, keep_dims=True)), mask=i < I)
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


@kernel("B", "I", "J", "NCH")
def weighted_moments(u, W, bias, plane, gate, beta, part, B, I, J, NCH, p_b, p_i, p_j,
                     A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                     BIAS: tl.constexpr, GATE: tl.constexpr, BETA: tl.constexpr):  # fmt: skip
    """A program keeps its share of the moments of a tile of parents, part[split, b, rows, j].

    Rows: weights, weights * beta (BETA), means, rests, squares.

    Weights are plane, times gate[b,i] (GATE). Children are walked over twice, for their mean and for the squares about
    it, so that no square is a difference of larger ones. Rests are weights times distances from the mean, zero but for
    the mean's rounding.
    """
    in_turn()
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    i, j = places(0, tile, IC, JT)
    valid = j < J
    Wt = rows_of(W + j, J, valid, 0, K * O)
    bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    weight, dots = zeros(2, IC, JT)
    sums = zeros(F, IC, JT)
    for chunk in range(NCH):
        i, _ = places((split * NCH + chunk) * IC, tile, IC, JT)
        inside = j < tl.where(i < I, J, 0)
        U = rows_of(u + (b * I + i) * (A * K), 1, i < I, 0, A * K)
        x = _weights(plane, gate, b, i, j, I, p_b, p_i, p_j, inside, IC, GATE)
        weight += over_children(x, IC)
        if BETA:
            y = x * tl.load(beta + i * J + j, mask=inside, other=0.0)
            dots += over_children(y, IC)
        new = ()
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                v = vote(U, Wt, bs, a, o, K, O, BIAS)
                new = new + (sums[a * O + o] + over_children(_product(x, v, IC), IC),)
        sums = new
    means = ()
    for f in tl.static_range(F):
        means = means + (sums[f] / tl.where(weight == 0, 1.0, weight),)
    about = zeros(2 * F, IC, JT)
    for chunk in range(NCH):
        i, _ = places((split * NCH + chunk) * IC, tile, IC, JT)
        inside = j < tl.where(i < I, J, 0)
        U = rows_of(u + (b * I + i) * (A * K), 1, i < I, 0, A * K)
        x = _weights(plane, gate, b, i, j, I, p_b, p_i, p_j, inside, IC, GATE)
        rests = ()
        squares = ()
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                d = vote(U, Wt, bs, a, o, K, O, BIAS) - means[a * O + o]
                rests = rests + (about[a * O + o] + over_children(x * d, IC),)
                squares = squares + (about[F + a * O + o] + over_children(x * d * d, IC),)
        about = rests + squares
    rows = means + about
    N: tl.constexpr = 2 if BETA else 1
    to = part + (split * B + b) * ((N + 3 * F) * J) + j
    tl.store(to, weight, mask=valid)
    if BETA:
        tl.store(to + J, dots, mask=valid)
    for f in tl.static_range(3 * F):
        tl.store(to + (N + f) * J, rows[f], mask=valid)
