"""Gradients of Gaussian passes by children, shared transforms, biases and parents; votes are made again in registers.

The gradient of a vote is a sum of at most two terms, one for each way in which it was used (d = vote - centre):

    in moments     weights[b,i,j] * (linear[b,j,f] + 2 square[b,j,f] d)
    in a density   slope[b,i,j] * 2 square[b,j,f] d                                        STEP

Rows of a tile are AT rows of one child's pose, a power of two that divides their number, side by side in a thread; of
few parents they are IC children. Code is unrolled over blocks of rows and columns of a pose; unrolled over all its rows
it is the same to a chip, and takes twice as long to compile.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.registers.kernels import rows_of, vote
from capsroute.form.launch import in_turn, kernel


@triton.jit
def _child(first, IC: tl.constexpr):
    """Children from `first` on, [IC,1]; one alone is a number."""
    if IC == 1:
        return first
    else:
        return first + tl.arange(0, IC)[:, None]


@triton.jit
def _entry(block, n, N: tl.constexpr, AT: tl.constexpr):
    """Which entry of a pose of N columns is the n-th of a block's rows [AT,1]."""
    if AT == 1:
        return block * N + n
    else:
        return (block * AT + tl.arange(0, AT)[:, None]) * N + n


@triton.jit
def _tiles(pointers, J, mask, A: tl.constexpr, N: tl.constexpr, AT: tl.constexpr):
    """Entries (a, n) of poses whose parents lie side by side: a tile for every block of AT rows and every n."""
    found = ()
    for block in tl.static_range(A // AT):
        for n in tl.static_range(N):
            at = pointers + _entry(block, n, N, AT) * J
            if AT > 1:  # those that are aligned for four parents at once would have them in other lanes than the rest
                at = tl.multiple_of(at, (1, 1))
            found = found + (tl.load(at, mask=mask, other=0.0).to(tl.float32),)
    return found


@triton.jit
def _store_tiles(pointers, J, found, FIRST: tl.constexpr, mask, A: tl.constexpr, N: tl.constexpr, AT: tl.constexpr):
    """As `_tiles` reads them: `found` from FIRST on."""
    for block in tl.static_range(A // AT):
        for n in tl.static_range(N):
            at = pointers + _entry(block, n, N, AT) * J
            if AT > 1:
                at = tl.multiple_of(at, (1, 1))
            tl.store(at, found[FIRST + block * N + n], mask=mask)


@triton.jit
def _poses(pointers, mask, A: tl.constexpr, K: tl.constexpr, AT: tl.constexpr):
    """Poses of children, which are the same for all parents: read entry by entry, and put side by side."""
    found = ()
    for block in tl.static_range(A // AT):
        for k in tl.static_range(K):
            x = tl.load(pointers + (block * AT * K + k), mask=mask, other=0.0).to(tl.float32)
            for row in tl.static_range(1, AT):
                entry = tl.load(pointers + ((block * AT + row) * K + k), mask=mask, other=0.0).to(tl.float32)
                x = tl.where(tl.arange(0, AT)[:, None] == row, entry, x)
            found = found + (x,)
    return found


@triton.jit
def _store_sums(pointers, found, mask, A: tl.constexpr, K: tl.constexpr, AT: tl.constexpr, IC: tl.constexpr,
                JT: tl.constexpr):  # fmt: skip
    """Sums over parents, as poses lie. All lanes have those of a single child: the first one writes them."""
    lane = tl.arange(0, JT)[None, :]
    for block in tl.static_range(A // AT):
        for k in tl.static_range(K):
            at, x = pointers + _entry(block, k, K, AT), tl.sum(found[block * K + k], axis=1, keep_dims=True)
            if IC == 1:
                tl.store(tl.multiple_of(at + lane, (1, 1)), x, mask=lane < tl.where(mask, 1, 0))
            else:
                tl.store(at, x, mask=mask)


@triton.jit
def _zeros(N: tl.constexpr, R: tl.constexpr, JT: tl.constexpr):
    """N tiles of zeros."""
    found = ()
    for _ in tl.static_range(N):
        found = found + (tl.zeros((R, JT), tl.float32),)
    return found


@triton.jit
def _total(x, N: tl.constexpr):
    """The sum over N rows of a tile."""
    return x if N == 1 else tl.sum(x, axis=0, keep_dims=True)


@triton.jit
def _table(pointers, J, mask, A: tl.constexpr, O: tl.constexpr, AT: tl.constexpr, LINEAR: tl.constexpr):
    """Centre, twice the square and the linear rows (LINEAR) of the table of a quadratic."""
    rows = _tiles(pointers, J, mask, A, O, AT)
    square = _tiles(pointers + A * O * J, J, mask, A, O, AT)
    for n in tl.static_range(A // AT * O):
        rows = rows + (2 * square[n],)
    if LINEAR:
        rows = rows + _tiles(pointers + (2 * A * O + 1) * J, J, mask, A, O, AT)
    return rows


@triton.jit
def _fetch(u, plane, gate, slope, b, i, j, I, J, p_b, p_i, p_j, A: tl.constexpr, K: tl.constexpr, AT: tl.constexpr,
           STEP: tl.constexpr):  # fmt: skip
    """What is read of children: their poses, then their weights and, of a step, their slopes."""
    inside = j < tl.where(i < I, J, 0)
    rows = _poses(u + (b * I + i) * (A * K), i < I, A, K, AT)
    x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
    if STEP:
        x *= tl.load(gate + b * I + i, mask=i < I, other=0.0)
        return rows + (x, tl.load(slope + (b * I + i) * J + j, mask=inside, other=0.0))
    else:
        return rows + (x,)


@kernel("B", "I", "J", "NCH")
def vote_gradients(u, W, bias, weighed, dense, plane, gate, slope, du, dW, sums, B, I, J, NCH, p_b, p_i, p_j,
                   A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                   BIAS: tl.constexpr, BETA: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """A program holds a tile of a sample's parents and walks over children; `weighed` and `dense` are the tables of the
    quadratics. STEP: weights are gate * plane, and votes were asked for their density before.

    It writes du[tile, b, i, a*k]; it keeps dW[split, b, (k*o, then a*o of the bias), j] and, of a density, the sums
    over children sums[split, b, (slope, pull, pull * d), j], pull = 2 square d, the slope of a log-density by the vote:
    d^2 alone would overflow in sums of vast votes.
    """
    in_turn()
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    AT: tl.constexpr = A & -A if IC == 1 else 1
    BLOCKS: tl.constexpr = A // AT
    N: tl.constexpr = K * O + (F if BIAS else 0)
    P: tl.constexpr = BLOCKS * O  # tiles of a pose
    X: tl.constexpr = BLOCKS * K  # where weights are, behind the poses of children
    S: tl.constexpr = K * O + (P if BIAS else 0)  # where sums begin
    ROWS: tl.constexpr = 3 * F + 1 + (1 if BETA else 0)
    M: tl.constexpr = 1 + 2 * F if STEP else 0
    i, j = _child(split * NCH * IC, IC), tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    Wt = rows_of(W + j, J, valid, 0, K * O)
    bs = ()
    if BIAS:
        bs = _tiles(bias + j, J, valid, A, O, AT)
    first = _table(weighed + b * (ROWS * J) + j, J, valid, A, O, AT, True)
    if STEP:
        second = _table(dense + b * ((2 * F + 1) * J) + j, J, valid, A, O, AT, False)
    acc = _zeros(K * O, 1, JT)
    if BIAS:
        acc = acc + _zeros(P, AT, JT)
    if STEP:
        acc = acc + _zeros(1, 1, JT) + _zeros(2 * P, AT, JT)
    U = _fetch(u, plane, gate, slope, b, i, j, I, J, p_b, p_i, p_j, A, K, AT, STEP)
    for chunk in range(NCH):
        i = _child((split * NCH + chunk) * IC, IC)
        if STEP:  # with so much to do for each, the next ones are read meanwhile; it does not pay for less
            after = _fetch(u, plane, gate, slope, b, i + IC, j, I, J, p_b, p_i, p_j, A, K, AT, STEP)
        else:
            U = _fetch(u, plane, gate, slope, b, i, j, I, J, p_b, p_i, p_j, A, K, AT, STEP)
        to = du + ((tile * B + b) * I + i) * (A * K)
        grads = ()
        s1 = ()
        s2 = ()
        for a in tl.static_range(BLOCKS):
            for o in tl.static_range(O):
                v = vote(U, Wt, bs, a, o, K, O, BIAS)
                g = U[X] * (first[2 * P + a * O + o] + first[P + a * O + o] * (v - first[a * O + o]))
                if STEP:
                    d = v - second[a * O + o]
                    pull = second[P + a * O + o] * d * U[X + 1]
                    g += pull
                    s1 = s1 + (acc[S + 1 + a * O + o] + _total(pull, IC),)
                    s2 = s2 + (acc[S + 1 + P + a * O + o] + _total(pull * d, IC),)
                grads = grads + (g,)
        backs = ()
        for a in tl.static_range(BLOCKS):
            for k in tl.static_range(K):
                back = grads[a * O] * Wt[k * O]
                for o in tl.static_range(1, O):
                    back += grads[a * O + o] * Wt[k * O + o]
                backs = backs + (back,)
        _store_sums(to, backs, i < I, A, K, AT, IC, JT)
        new = ()
        for k in tl.static_range(K):
            for o in tl.static_range(O):
                total = U[k] * grads[o]
                for a in tl.static_range(1, BLOCKS):
                    total += U[a * K + k] * grads[a * O + o]
                new = new + (acc[k * O + o] + _total(total, AT * IC),)
        if BIAS:
            for f in tl.static_range(P):
                new = new + (acc[K * O + f] + _total(grads[f], IC),)
        if STEP:
            new = new + (acc[S] + _total(U[X + 1], IC),) + s1 + s2
            U = after
        acc = new
    to = dW + (split * B + b) * (N * J) + j
    for n in tl.static_range(K * O):
        tl.store(to + n * J, acc[n], mask=valid)
    if BIAS:
        _store_tiles(to + K * O * J, J, acc, K * O, valid, A, O, AT)
    if STEP:
        to = sums + (split * B + b) * (M * J) + j
        tl.store(to, acc[S], mask=valid)
        _store_tiles(to + J, J, acc, S + 1, valid, A, O, AT)
        _store_tiles(to + (1 + F) * J, J, acc, S + 1 + P, valid, A, O, AT)
