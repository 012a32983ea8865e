"""Gradients by children and by transforms, over the terms of all iterations at once.

Each term is a coefficient plane [i,j,b] and parents x[b,j,a,o]:

    grad_children[b,i,a,k]   = sum over terms, j        of  plane[i,j,b] W[i,j,k,o] x[b,j,a,o]
    grad_transforms[i,j,k,o] = sum over terms, b, a     of  plane[i,j,b] u[b,i,a,k] x[b,j,a,o]

Terms of T iterations: for t = 1 .. T-1, coefficients c_t with x_t, and logit gradients gl_t with queries q_t (LOGITS);
the first iteration's coefficients are all alike, so its plane is left out and its scale is in x (FIRST). With T = 2 and
neither, this is the single contraction. Under a window samples are its places: the gradient by children is that of
the patches, and u is read from the map.
"""

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel
from capsroute.form.maps import children_at
from capsroute.form.tiles import child_of_tile, columns, load, rows_at, spread, zeros


@triton.jit
def _weighed(c_last, c_rest, gl, x, q, b, i, j, a, o, entry, B, I, J, c_b, c_i, c_j, T, FIRST, LOGITS, A, O):
    """Row a of parents j of sample b, summed over the terms with the weights that child i gives them, if an `entry`."""
    at, size, there = (b * J + j) * (A * O) + a * O + o, B * J * A * O, (j < J) & (o < O)
    plane = (i * J + j) * B + b
    y = 0.0
    if FIRST:
        y = tl.load(x + (T - 1) * size + at, mask=there, other=0.0).to(tl.float32)
    for t in tl.static_range(T - 1):
        if t == T - 2:
            c = tl.load(c_last + b * c_b + i * c_i + j * c_j, mask=entry, other=0.0)
        else:
            c = tl.load(c_rest + t * (I * J * B) + plane, mask=entry, other=0.0)
        y += c.to(tl.float32) * tl.load(x + t * size + at, mask=there, other=0.0).to(tl.float32)
        if LOGITS:
            g = tl.load(gl + t * (I * J * B) + plane, mask=entry, other=0.0).to(tl.float32)
            y += g * tl.load(q + t * size + at, mask=there, other=0.0).to(tl.float32)
    return y


@triton.jit
def tiles_of(ACROSS):
    """Of samples and of children. Where a grid has too few rows for the latter, both are its columns."""
    if ACROSS == 0:
        return tl.program_id(0), tl.program_id(1)
    else:
        return tl.program_id(0) % ACROSS, tl.program_id(0) // ACROSS


@triton.jit
def _sums(c_last, c_rest, gl, x, q, W, out, B, I, J, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, KP, OP, IC, JT, ACROSS):
    """Of few rows: W is read once, in the order of memory, and nothing is made by the matrix unit."""
    b, part = tiles_of(ACROSS)
    i = part * IC + tl.arange(0, IC)[:, None, None, None]
    k, o = tl.arange(0, KP)[None, None, :, None], tl.arange(0, OP)[None, None, None, :]
    acc = zeros(A, IC, KP)
    for first in range(0, J, JT):
        j = first + tl.arange(0, JT)[None, :, None, None]
        mask = (i < I) & (j < J) & (k < K) & (o < O)
        Wt = tl.load(W + ((i * J + j) * K + k) * O + o, mask=mask, other=0.0).to(tl.float32)
        new = ()
        for a in tl.static_range(A):
            y = _weighed(c_last, c_rest, gl, x, q, b, i, j, a, o, (i < I) & (j < J), B, I, J, c_b, c_i, c_j, T, FIRST,
                         LOGITS, A, O)  # fmt: skip
            new = new + (acc[a] + tl.sum(tl.sum(Wt * y, axis=3), axis=1),)
        acc = new
    i, k = part * IC + tl.arange(0, IC)[:, None], tl.arange(0, KP)[None, :]
    for a in tl.static_range(A):
        tl.store(out + ((b * I + i) * A + a) * K + k, acc[a], mask=(i < I) & (k < K))


@triton.jit
def store_children(out, acc, done, part, split, b, a, rows, child, k, B, I, A, K, IC, NSUB, MANY):
    """Gradients of NSUB tiles of children: sums acc, and of MANY parents what was `done` before: [split,b,i,a,k]."""
    for sub in tl.static_range(NSUB):
        i = (part * NSUB + sub) * IC + child
        to = out + (split * B + b[:, None]) * (I * A * K) + i[None, :] * (A * K) + a[:, None] * K + k[None, :]
        total = acc[sub] + done[sub] if MANY else acc[sub]
        tl.store(to, total, mask=rows & ((i < I) & (k < K))[None, :])


@triton.jit
def _turned(c_last, c_rest, gl, x, q, W, out, B, I, J, NJ, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, AP, KP, OP, BT, IC,
            NSUB, DT, EVEN, PRECISION, NS, MANY, ACROSS):  # fmt: skip
    """The sums by the matrix unit. Those of a thousand terms lose digits: of MANY parents some are summed, and then
    their sums."""
    tile, part = tiles_of(ACROSS)
    split = tl.program_id(2)
    R: tl.constexpr = BT * AP
    o = tl.arange(0, OP)
    b, a, rows = rows_at(tile, B, A, AP, BT)
    poses = rows & (o < O)[None, :]
    child, k = columns(IC, KP, False)
    size = B * J * A * O
    acc, done = zeros(NSUB, R, IC * KP), zeros(NSUB if MANY else 0, R, IC * KP)
    for j in tl.range(split * NJ, tl.minimum(J, split * NJ + NJ), num_stages=NS):
        pose = b[:, None] * (J * A * O) + j * (A * O) + a[:, None] * O + o[None, :]
        X = ()
        Q = ()
        for t in tl.static_range(T - 1 + FIRST):
            X = X + (tl.load(x + t * size + pose, mask=poses, other=0.0),)
        if LOGITS:
            for t in tl.static_range(T - 1):
                Q = Q + (tl.load(q + t * size + pose, mask=poses, other=0.0),)
        new = ()
        sums = ()
        for sub in tl.static_range(NSUB):
            i0 = (part * NSUB + sub) * IC
            i = i0 + child
            Wt = load(W + i[:, None] * (J * K * O) + j * (K * O) + k[:, None] * O + o[None, :],
                      ((i < I) & (k < K))[:, None] & (o < O)[None, :], EVEN)  # fmt: skip
            Wt = tl.trans(Wt.to(DT))
            member = i0 + child_of_tile(IC)
            entry = (b < B)[:, None, None] & (member < I)
            plane = member * (J * B) + j * B + b[:, None, None]
            total = acc[sub]
            if FIRST:
                total = tl.dot(X[T - 1], Wt, total, input_precision=PRECISION)
            for t in tl.static_range(T - 1):
                if t == T - 2:
                    at = c_last + b[:, None, None] * c_b + member * c_i + j * c_j
                else:
                    at = c_rest + t * (I * J * B) + plane
                c = tl.load(at, mask=entry, other=0.0).to(tl.float32)
                total += spread(c, R, IC, KP) * tl.dot(X[t], Wt, input_precision=PRECISION)
                if LOGITS:
                    g = tl.load(gl + t * (I * J * B) + plane, mask=entry, other=0.0).to(tl.float32)
                    total += spread(g, R, IC, KP) * tl.dot(Q[t], Wt, input_precision=PRECISION)
            if MANY:
                full = j % 32 == 31
                sums = sums + (done[sub] + tl.where(full, total, 0.0),)
                total = tl.where(full, 0.0, total)
            new = new + (total,)
        acc = new
        done = sums
    store_children(out, acc, done, part, split, b, a, rows, child, k, B, I, A, K, IC, NSUB, MANY)


@kernel("NJ")
def children_gradient(c_last, c_rest, gl, x, q, W, out, B, I, J, NJ, c_b, c_i, c_j, T: tl.constexpr,
                      FIRST: tl.constexpr, LOGITS: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                      AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, BT: tl.constexpr, IC: tl.constexpr,
                      NSUB: tl.constexpr, JT: tl.constexpr, DT: tl.constexpr, EVEN: tl.constexpr,
                      PRECISION: tl.constexpr, NS: tl.constexpr, MANY: tl.constexpr,
                      ACROSS: tl.constexpr):  # fmt: skip
    """A program holds BT samples and NSUB tiles of IC children, and walks over NJ parents: out [split,b,i,a,k].

    Of few rows (sample, pose row) it holds one sample, and reads JT parents at once, if that is not zero.
    """
    in_turn()
    if JT > 0:
        _sums(c_last, c_rest, gl, x, q, W, out, B, I, J, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, KP, OP, IC, JT,
              ACROSS)  # fmt: skip
    else:
        _turned(c_last, c_rest, gl, x, q, W, out, B, I, J, NJ, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, AP, KP, OP, BT,
                IC, NSUB, DT, EVEN, PRECISION, NS, MANY, ACROSS)  # fmt: skip


@triton.jit
def _term(acc, x, pose, poses, c, U, R, IC, KP, DT, PRECISION):
    """acc [o, (k, child)] and the product of parents x with children U [R, KP * IC] times c [R, IC]."""
    X = tl.trans(tl.load(x + pose, mask=poses, other=0.0))
    right = tl.reshape(tl.broadcast_to(c.to(DT)[:, None, :], (R, KP, IC)), (R, KP * IC)) * U
    return tl.dot(X, right, acc, input_precision=PRECISION)


@triton.jit
def _outer(c_last, c_rest, gl, x, q, u, out, B, I, J, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, KP, OP, JT):
    """Sums of few products, made outside the matrix unit and written in the order of memory."""
    i, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)[:, None, None]
    k, o = tl.arange(0, KP)[None, :, None], tl.arange(0, OP)[None, None, :]
    acc = tl.zeros((JT, KP, OP), tl.float32)
    for b in range(0, B):
        for a in tl.static_range(A):
            U = tl.load(u + ((b * I + i) * A + a) * K + k, mask=k < K, other=0.0).to(tl.float32)
            acc += U * _weighed(c_last, c_rest, gl, x, q, b, i, j, a, o, j < J, B, I, J, c_b, c_i, c_j, T, FIRST,
                                LOGITS, A, O)  # fmt: skip
    tl.store(out + ((i * J + j) * K + k) * O + o, acc, mask=(j < J) & (o < O) & (k < K))


@triton.jit
def _products(c_last, c_rest, gl, x, q, u, out, B, I, J, NB, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, AP, KP, OP, BT,
              IC, DT, PRECISION, NS, MAP):  # fmt: skip
    """The sums by the matrix unit."""
    part, j, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    R: tl.constexpr = BT * AP
    o, n = tl.arange(0, OP), tl.arange(0, IC * KP)
    i0, member = part * IC, tl.arange(0, IC)
    i, k = i0 + n // KP, n % KP
    valid = (i < I) & (k < K)
    size = B * J * A * O
    acc = tl.zeros((OP, KP * IC), tl.float32)
    for tile in tl.range(split * NB, (split + 1) * NB, num_stages=NS):
        b, a, rows = rows_at(tile, B, A, AP, BT)
        poses = rows & (o < O)[None, :]
        pose = b[:, None] * (J * A * O) + j * (A * O) + a[:, None] * O + o[None, :]
        U = children_at(u, b, a, i, k, I, rows, valid, A, K, MAP).to(DT)
        U = tl.reshape(tl.permute(tl.reshape(U, (R, IC, KP)), (0, 2, 1)), (R, KP * IC))
        entry = (b < B)[:, None] & (i0 + member < I)[None, :]
        plane = (i0 + member)[None, :] * (J * B) + j * B + b[:, None]
        if FIRST:
            X = tl.trans(tl.load(x + (T - 1) * size + pose, mask=poses, other=0.0))
            acc = tl.dot(X, U, acc, input_precision=PRECISION)
        for t in tl.static_range(T - 1):
            if t == T - 2:
                at = c_last + b[:, None] * c_b + (i0 + member)[None, :] * c_i + j * c_j
            else:
                at = c_rest + t * (I * J * B) + plane
            c = tl.load(at, mask=entry, other=0.0)
            acc = _term(acc, x + t * size, pose, poses, c, U, R, IC, KP, DT, PRECISION)
            if LOGITS:
                g = tl.load(gl + t * (I * J * B) + plane, mask=entry, other=0.0)
                acc = _term(acc, q + t * size, pose, poses, g, U, R, IC, KP, DT, PRECISION)
    i, k = i0 + n % IC, n // IC
    to = out + split * (I * J * K * O) + i[None, :] * (J * K * O) + j * (K * O) + k[None, :] * O + o[:, None]
    tl.store(to, acc, mask=(o < O)[:, None] & ((i < I) & (k < K))[None, :])


@kernel("B", "I", "J")
def both_gradients(c_last, c_rest, gl, x, q, u, W, du, dW, B, I, J, c_b, c_i, c_j, T: tl.constexpr, FIRST: tl.constexpr,
                   LOGITS: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, KP: tl.constexpr,
                   OP: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """Both, of few rows (sample, pose row): a program has one child and JT parents.

    It reads their transforms once, and leaves dW[i,j,k,o] and a part of the sum over parents, du[split,b,i,a,k].
    """
    in_turn()
    i, split = tl.program_id(0), tl.program_id(1)
    j, k = split * JT + tl.arange(0, JT)[:, None, None], tl.arange(0, KP)[None, :, None]
    o = tl.arange(0, OP)[None, None, :]
    mask, at = (j < J) & (o < O) & (k < K), ((i * J + j) * K + k) * O + o
    Wt = tl.load(W + at, mask=mask, other=0.0).to(tl.float32)
    acc = tl.zeros((JT, KP, OP), tl.float32)
    for b in range(0, B):
        for a in tl.static_range(A):
            y = _weighed(c_last, c_rest, gl, x, q, b, i, j, a, o, j < J, B, I, J, c_b, c_i, c_j, T, FIRST, LOGITS, A, O)
            child = ((b * I + i) * A + a) * K + k
            acc += tl.load(u + child, mask=k < K, other=0.0).to(tl.float32) * y
            found = tl.sum(tl.sum(Wt * y, axis=2, keep_dims=True), axis=0, keep_dims=True)
            tl.store(du + split * (B * I * A * K) + child, found, mask=k < K)
    tl.store(dW + at, acc, mask=mask)


@kernel("NB")
def transforms_gradient(c_last, c_rest, gl, x, q, u, out, B, I, J, NB, c_b, c_i, c_j, T: tl.constexpr,
                        FIRST: tl.constexpr, LOGITS: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                        AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, BT: tl.constexpr, IC: tl.constexpr,
                        JT: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr,
                        MAP: tl.constexpr):  # fmt: skip
    """A program holds IC children and one parent, and walks over NB tiles of BT samples; columns are (k, child).

    Of few rows (sample, pose row) it holds one child and JT parents, if that is not zero.
    """
    in_turn()
    if JT > 0:
        _outer(c_last, c_rest, gl, x, q, u, out, B, I, J, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, KP, OP, JT)
    else:
        _products(c_last, c_rest, gl, x, q, u, out, B, I, J, NB, c_b, c_i, c_j, T, FIRST, LOGITS, A, K, O, AP, KP, OP,
                  BT, IC, DT, PRECISION, NS, MAP)  # fmt: skip
