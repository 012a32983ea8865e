"""Votes made once by a matrix product and stored, and what goes back from their gradient to children and transforms.

Operands are read where they lie, in their own dtype: no copy of the transforms is made. Rows of a product are
(n, a), n a sample and child; its columns (j, o). A group is a child with transforms of its own, and its rows are one
from every sample; or all children, where transforms are shared.

    votes [n,j,a,o] = sum over k of u[n,a,k] W[group,j,k,o] (+ bias[group,j,a,o])

Products are those of float32 whatever torch is told, three TF32 ones each on the matrix unit. With the votes go the
children's gates [n] in float32, from what a layer has in their place, in its own dtype: GATES says what that is.
"""

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel

NO_GATES, WEIGHTS, LOGITS = 0, 1, 2


@triton.jit
def _row(r, group, STEP, A: tl.constexpr):
    """Which (sample, child) a row belongs to."""
    return (r // A).to(tl.int64) * STEP + group


@triton.jit
def _vote_at(n, r, c, J, A: tl.constexpr, O: tl.constexpr):
    """Where the entry of a row and a column lies among the votes."""
    return n * (J * A * O) + (c // O) * (A * O) + (r % A) * O + c % O


@triton.jit
def _transform_at(group, k, c, J, K: tl.constexpr, O: tl.constexpr):
    return group.to(tl.int64) * (J * K * O) + (c // O) * (K * O) + k * O + c % O


@triton.jit
def _transforms(W, group, k, c, J, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr):
    """Row k of the transforms that columns (j,a,o) of votes are made of."""
    at = group.to(tl.int64) * (J * K * O) + c // (A * O) * (K * O) + k * O + c % O
    return tl.load(W + at, mask=c < J * A * O, other=0.0).to(tl.float32)


@triton.jit
def _first_votes(bias, group, c, J, A: tl.constexpr, O: tl.constexpr, BIAS: tl.constexpr):
    """What votes are before anything is added: a bias, or nothing."""
    if BIAS:
        return tl.load(bias + group.to(tl.int64) * (J * A * O) + c, mask=c < J * A * O, other=0.0).to(tl.float32)
    else:
        return tl.zeros(c.shape, tl.float32)


@triton.jit
def _make_gates(scores, gate, group, R, STEP, N0, RT: tl.constexpr, GATES: tl.constexpr):
    r = tl.program_id(2) * RT + tl.arange(0, RT)
    n = N0 + _row(r, group, STEP, 1)
    x = tl.load(scores + n, mask=r < R, other=0.0).to(tl.float32)
    if GATES == 2:
        x = tl.div_rn(1.0, 1 + tl.exp(-x))
    tl.store(gate + n, x, mask=r < R)


@kernel("R", "J", "STEP", "N0")
def make_votes(u, W, bias, votes, scores, gate, R, J, STEP, N0, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
               RT: tl.constexpr, CT: tl.constexpr, BIAS: tl.constexpr, GATES: tl.constexpr):  # fmt: skip
    """A program makes a tile of one group's votes, R rows n of columns (j,a,o), in the order in which they are stored.

    Products of float32, added in the order of k: distances between votes that all but agree are made of their last
    digits, and writing them takes longer than this does. The first N0 of (sample, child) have their votes elsewhere,
    and their gates.
    """
    in_turn()
    group = tl.program_id(0)
    if A == 1:
        c, r = tl.program_id(1) * CT + tl.arange(0, CT)[None, :], tl.program_id(2) * RT + tl.arange(0, RT)[:, None]
        n = _row(r, group, STEP, 1)
        V = tl.zeros((RT, CT), tl.float32) + _first_votes(bias, group, c, J, A, O, BIAS)
        for k in tl.static_range(K):
            U = tl.load(u + n * K + k, mask=r < R, other=0.0).to(tl.float32)
            V = tl.fma(U, _transforms(W, group, k, c, J, A, K, O), V)
        tl.store(votes + n * (J * O) + c, V, mask=(r < R) & (c < J * O))
    else:
        # One row after the other, of which each thread has one number: threads that hold more would have to exchange
        # what they read of transforms, or of children, before they multiply.
        c = tl.program_id(1) * CT + tl.arange(0, CT)
        first = _first_votes(bias, group, c, J, A, O, BIAS)
        Wt = ()
        for k in tl.static_range(K):
            Wt = Wt + (_transforms(W, group, k, c, J, A, K, O),)
        for step in tl.static_range(RT):
            row = tl.program_id(2) * RT + step
            n = _row(tl.minimum(row, R - 1), group, STEP, 1)  # a row that is there; columns beyond theirs read it, too
            from_u, V = u + n * (A * K) + c // O % A * K, first
            for k in tl.static_range(K):
                V = tl.fma(tl.load(from_u + k).to(tl.float32), Wt[k], V)
            tl.store(votes + n * (J * A * O) + c, V, mask=c < J * A * O)
    if GATES != 0 and tl.program_id(1) == 0:
        _make_gates(scores, gate, group, R, STEP, N0, RT, GATES)


@kernel("R", "J", "STEP", "NT", "N")
def by_children(g, W, du, R, J, STEP, NT, N, A: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, O: tl.constexpr,
                RT: tl.constexpr, CT: tl.constexpr, FEW: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """du[split, n, a, k], N numbers of each split: a program walks over its share of the columns of a few rows.

    FEW: rows are too few for the matrix unit.
    """
    in_turn()
    group, split = tl.program_id(0), tl.program_id(2)
    r = tl.program_id(1) * RT + tl.arange(0, RT)[:, None]
    across, down = tl.arange(0, KP)[None, :], tl.arange(0, KP)[:, None]
    n = _row(r, group, STEP, A)
    total = tl.zeros((RT, KP, CT), tl.float32) if FEW else tl.zeros((RT, KP), tl.float32)
    for tile in range(NT):
        c = (split * NT + tile) * CT + tl.arange(0, CT)[None, :]
        there = c < J * O
        G = tl.load(g + _vote_at(n, r, c, J, A, O), mask=(r < R) & there, other=0.0)
        Wt = tl.load(W + _transform_at(group, down, c, J, K, O), mask=(down < K) & there, other=0.0).to(tl.float32)
        if FEW:
            total += G[:, None, :] * Wt[None, :, :]
        else:
            total = tl.dot(G, tl.trans(Wt), total, input_precision=PRECISION)
    if FEW:
        total = tl.sum(total, axis=2)
    to = du + split.to(tl.int64) * N + (n * A + r % A) * K + across
    tl.store(to, total, mask=(r < R) & (across < K))


@kernel("R", "J", "STEP", "NT")
def by_transforms(g, u, dW, R, J, STEP, NT, A: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, O: tl.constexpr,
                  RT: tl.constexpr, CT: tl.constexpr, FEW: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """dW[split, group, j, k, o]: a program walks over its share of the rows of a few columns; FEW: one at a time."""
    in_turn()
    group, split = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * CT + tl.arange(0, CT)[None, :]
    across, down = tl.arange(0, KP)[None, :], tl.arange(0, KP)[:, None]
    there = c < J * O
    total = tl.zeros((KP, CT), tl.float32)
    for tile in range(NT):
        if FEW:
            r = tl.zeros((1, 1), tl.int32) + tile
            n = _row(r, group, STEP, A)
            U = tl.load(u + (n * A + r % A) * K + down, mask=down < K, other=0.0).to(tl.float32)
            total += U * tl.load(g + _vote_at(n, r, c, J, A, O), mask=there, other=0.0)
        else:
            r = (split * NT + tile) * RT + tl.arange(0, RT)[:, None]
            n = _row(r, group, STEP, A)
            G = tl.load(g + _vote_at(n, r, c, J, A, O), mask=(r < R) & there, other=0.0)
            U = tl.load(u + (n * A + r % A) * K + across, mask=(r < R) & (across < K), other=0.0).to(tl.float32)
            total = tl.dot(tl.trans(U), G, total, input_precision=PRECISION)
    to = dW + _transform_at(split * tl.num_programs(0) + group, down, c, J, K, O)
    tl.store(to, total, mask=(down < K) & there)
