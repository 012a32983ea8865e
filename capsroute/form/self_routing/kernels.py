"""Self-routing over transforms of each child's own: kernels of its shares, and of what both gradients of a child need.

Between them are the contractions' kernels, which read weights c as a plane [i,j,b]. With Y_ij = p'_j W_ij^T, the
gradient of poses pulled back through transforms, that of children is sum_j c_ij Y_ij, and that of the weights
u_i . Y_ij: transforms are read once for both.
"""

import triton.language as tl

from capsroute.form.contractions.gradients import store_children, tiles_of
from capsroute.form.launch import in_turn, kernel
from capsroute.form.maps import children_at
from capsroute.form.self_routing.shares import or_one, shares, slopes
from capsroute.form.tiles import child_of_tile, columns, load, rows_at, spread, sum_columns, sum_rows, there, zeros


@kernel("B", "I", "N")
def share_out(activations, logits, r, part, part_a, B, I, J, N, IC: tl.constexpr, JP: tl.constexpr):
    """A program for a sample and N of its children: shares r [b,i,j], and sums over them of weights, part [share,b,j],
    and of activations, part_a [share,b]."""
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    j, received = tl.arange(0, JP)[None, :], tl.zeros((IC, JP), tl.float32)
    active = tl.zeros((IC, 1), tl.float32)
    stop = tl.minimum(share * N + N, I)
    for i0 in range(share * N, stop, IC):
        i = i0 + tl.arange(0, IC)[:, None]
        at, mask = (b * I + i) * J + j, (i < stop) & (j < J)
        some = shares(tl.load(logits + at, mask=mask, other=0.0), J, JP)
        tl.store(r + at, some, mask=mask)
        a = tl.load(activations + b * I + i, mask=i < stop, other=0.0).to(tl.float32)
        received += a * some
        active += a
    to = share * B + b
    tl.store(part + to * J + j, tl.sum(received, axis=0, keep_dims=True), mask=j < J)
    tl.store(part_a + to + tl.zeros((1, 1), tl.int32), tl.sum(active, axis=0, keep_dims=True))


@kernel("B", "S")
def add_shares(part, part_a, received, active, scores, B, J, S, SP: tl.constexpr, JC: tl.constexpr):
    """A program for a sample and JC parents: the S shares together, received [b,j] and active [b], and scores [b,j]."""
    in_turn()
    b, j = tl.program_id(0), tl.program_id(1) * JC + tl.arange(0, JC)[None, :]
    total, total_a = tl.zeros((SP, JC), tl.float32), tl.zeros((SP, 1), tl.float32)
    for first in range(0, S, SP):
        share = first + tl.arange(0, SP)[:, None]
        total += tl.load(part + (share * B + b) * J + j, mask=(share < S) & (j < J), other=0.0)
        total_a += tl.load(part_a + share * B + b, mask=share < S, other=0.0)
    R, A = tl.sum(total, axis=0, keep_dims=True), tl.sum(total_a, axis=0, keep_dims=True)
    tl.store(received + b * J + j, R, mask=j < J)
    tl.store(scores + b * J + j, R / or_one(A), mask=j < J)
    tl.store(active + b + tl.zeros((1, 1), tl.int32), A, mask=there(tl.program_id(1), 1))


@kernel("B", "I")
def weigh(activations, r, received, c, B, I, J, BN: tl.constexpr, M: tl.constexpr, LISTED: tl.constexpr):
    """A program takes M pairs (child, parent) of BN samples: the plane c[i,j,b] = a_i r_ij / R_j.

    Or M pairs wherever they are, and c [b,i,j] is LISTED as shares are.
    """
    in_turn()
    pair, b = tl.program_id(0) * M + tl.arange(0, M)[:, None], tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    mask = (pair < I * J) & (b < B)
    if LISTED:
        pair, b = pair % (I * J), pair // (I * J)
        mask = b < B
    some = tl.load(r + b * (I * J) + pair, mask=mask, other=0.0)
    a = tl.load(activations + b * I + pair // J, mask=mask, other=0.0).to(tl.float32)
    R = tl.load(received + b * J + pair % J, mask=mask, other=1.0)
    tl.store(c + (b * (I * J) + pair if LISTED else pair * B + b), a * some / or_one(R), mask=mask)


@kernel("B")
def parents_back(poses, g, received, known, x, B, J, AO: tl.constexpr, AOP: tl.constexpr, JC: tl.constexpr,
                 COPY: tl.constexpr):  # fmt: skip
    """A program for JC parents (sample, parent): what their weights' gradients have in common, known [b,j].

    And a COPY x of the gradient g [b,j,a,o] of their poses, in the dtype of operands.
    """
    in_turn()
    n, f = tl.program_id(0) * JC + tl.arange(0, JC)[:, None], tl.arange(0, AOP)[None, :]
    at, mask = n * AO + f, (n < B * J) & (f < AO)
    slope = tl.load(g + at, mask=mask, other=0.0)
    found = tl.sum(slope * tl.load(poses + at, mask=mask, other=0.0), axis=1, keep_dims=True)
    R = tl.load(received + n, mask=n < B * J, other=0.0)
    tl.store(known + n, tl.where(R == 0, 0.0, found), mask=n < B * J)
    if COPY:
        tl.store(x + at, slope, mask=mask)


@kernel("NJ")
def children_back(u, W, c, x, by_c, out, B, I, J, NJ, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                  AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, BT: tl.constexpr, IC: tl.constexpr,
                  NSUB: tl.constexpr, DT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr,
                  MANY: tl.constexpr, ACROSS: tl.constexpr):  # fmt: skip
    """A program holds BT samples and NSUB tiles of IC children, and walks over NJ parents, with gradients x [b,j,a,o].

    Gradients of the weights, by_c [i,j,b], and of children, out [split,b,i,a,k]; sums as in `children_gradient`.
    """
    in_turn()
    tile, part = tiles_of(ACROSS)
    split = tl.program_id(2)
    R: tl.constexpr = BT * AP
    o = tl.arange(0, OP)
    b, a, rows = rows_at(tile, B, A, AP, BT)
    sample = (tile * BT + tl.arange(0, BT))[:, None, None]
    poses = rows & (o < O)[None, :]
    child, k = columns(IC, KP, False)
    member = child_of_tile(IC)
    U = ()
    for sub in tl.static_range(NSUB):
        i = (part * NSUB + sub) * IC + child
        U = U + (children_at(u, b, a, i, k, I, rows, (i < I) & (k < K), A, K, None).to(tl.float32),)
    acc, done = zeros(NSUB, R, IC * KP), zeros(NSUB if MANY else 0, R, IC * KP)
    for j in tl.range(split * NJ, tl.minimum(J, split * NJ + NJ), num_stages=NS):
        X = tl.load(x + b[:, None] * (J * A * O) + j * (A * O) + a[:, None] * O + o[None, :], mask=poses, other=0.0)
        new = ()
        sums = ()
        for sub in tl.static_range(NSUB):
            i0 = (part * NSUB + sub) * IC
            i = i0 + child
            Wt = load(W + i[:, None] * (J * K * O) + j * (K * O) + k[:, None] * O + o[None, :],
                      ((i < I) & (k < K))[:, None] & (o < O)[None, :], EVEN)  # fmt: skip
            Y = tl.dot(X, tl.trans(Wt.to(DT)), input_precision=PRECISION)
            plane = ((i0 + member) * J + j) * B
            weights = tl.load(c + plane + b[:, None, None], mask=(b < B)[:, None, None] & (i0 + member < I), other=0.0)
            total = acc[sub] + spread(weights, R, IC, KP) * Y
            found = sum_rows(sum_columns(Y * U[sub], R, IC, KP), BT, AP, IC)
            tl.store(by_c + plane + sample, found, mask=(sample < B) & (i0 + member < I))
            if MANY:
                full = j % 32 == 31
                sums = sums + (done[sub] + tl.where(full, total, 0.0),)
                total = tl.where(full, 0.0, total)
            new = new + (total,)
        acc = new
        done = sums
    store_children(out, acc, done, part, split, b, a, rows, child, k, B, I, A, K, IC, NSUB, MANY)


@kernel("B", "I", "J")
def few_back(u, W, c, g, by_c, du, dW, B, I, J, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, KP: tl.constexpr,
             OP: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """Of few rows (sample, pose row), outside the matrix unit: a program has one child and JT parents.

    It reads their transforms once, and leaves the weights' gradients by_c [i,j,b], the transforms', dW [i,j,k,o], and a
    part of the child's, du [split,b,i,a,k].
    """
    in_turn()
    i, split = tl.program_id(0), tl.program_id(1)
    j, k = split * JT + tl.arange(0, JT)[:, None, None], tl.arange(0, KP)[None, :, None]
    o = tl.arange(0, OP)[None, None, :]
    mask, at = (j < J) & (o < O) & (k < K), ((i * J + j) * K + k) * O + o
    Wt = tl.load(W + at, mask=mask, other=0.0).to(tl.float32)
    acc = tl.zeros((JT, KP, OP), tl.float32)
    for b in range(0, B):
        plane, agreed = (i * J + j) * B + b, tl.zeros((JT, 1, 1), tl.float32)
        weights = tl.load(c + plane, mask=j < J, other=0.0)
        for a in tl.static_range(A):
            x = tl.load(g + ((b * J + j) * A + a) * O + o, mask=(j < J) & (o < O), other=0.0)
            child = ((b * I + i) * A + a) * K + k
            U = tl.load(u + child, mask=k < K, other=0.0).to(tl.float32)
            Y = tl.sum(Wt * x, axis=2, keep_dims=True)
            agreed += tl.sum(Y * U, axis=1, keep_dims=True)
            acc += U * (weights * x)
            found = tl.sum(weights * Y, axis=0, keep_dims=True)
            tl.store(du + split * (B * I * A * K) + child, found, mask=k < K)
        tl.store(by_c + plane, agreed, mask=j < J)
    tl.store(dW + at, acc, mask=mask)


@kernel("B", "I", "N", "scored", "gr_b", "gr_i", "gr_j")
def slopes_of_plane(activations, logits, by_c, known, received, active, scores, g_scores, g_r, da, dl, B, I, J, N,
                    scored, gr_b, gr_i, gr_j, GIVEN: tl.constexpr, LISTED: tl.constexpr, BN: tl.constexpr,
                    IC: tl.constexpr, JP: tl.constexpr):  # fmt: skip
    """A program for BN samples and N children, and all parents: da [b,i] and dl [b,i,j].

    They come from gradients of the weights, by_c [i,j,b], or LISTED [b,i,j].
    """
    in_turn()
    tile, share = tl.program_id(0), tl.program_id(1)
    n, j = tl.arange(0, BN * IC)[:, None], tl.arange(0, JP)[None, :]
    b = tile * BN + n % BN
    parent, mask = b * J + j, (b < B) & (j < J)
    R = or_one(tl.load(received + parent, mask=mask, other=1.0))
    common = tl.load(known + parent, mask=mask, other=0.0)
    total_a = tl.load(active + b, mask=b < B, other=0.0)
    score = mask & there(0, scored)
    by_scores = tl.load(g_scores + parent, mask=score, other=0.0) / or_one(total_a)
    const = tl.sum(by_scores * tl.load(scores + parent, mask=score, other=0.0), axis=1, keep_dims=True)
    const = tl.where(total_a == 0, 0.0, const)
    stop = tl.minimum(share * N + N, I)
    for i0 in range(share * N, stop, IC):
        i = i0 + n // BN
        at, those, child = (b * I + i) * J + j, mask & (i < stop), (b < B) & (i < stop)
        x = tl.load(logits + at, mask=those, other=0.0)
        a = tl.load(activations + b * I + i, mask=child, other=0.0).to(tl.float32)
        by_votes = tl.load(by_c + (at if LISTED else (i * J + j) * B + b), mask=those, other=0.0)
        by_r = tl.zeros((BN * IC, JP), tl.float32)
        if GIVEN:
            by_r += tl.load(g_r + b * gr_b + i * gr_i + j * gr_j, mask=those, other=0.0)
        weights = (by_votes - common) / R + by_scores
        slope, by_a = slopes(x, shares(x, J, JP), a, weights, by_r, const, GIVEN)
        tl.store(dl + at, slope, mask=those)
        tl.store(da + b * I + i, by_a, mask=child)
