"""One routing iteration in one kernel: agreement, normalisation over parents, weighted sum; and its derivative.

A program holds BT samples and all parents, and walks over NCH tiles of IC children. It leaves a partial sum over its
children in part[s,b,j,a,o], which `reductions` adds up. Under a window samples are its places, and children are read
from the map (`maps.children_at`). Nothing of size children x parents x pose is ever stored, and
the sums are made in a fixed order: no atomics.
"""

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel
from capsroute.form.loop.max_min import added, exposed, parts, shares, slope, stretched
from capsroute.form.loop.walks import or_one, reached, unmoved, with_prior
from capsroute.form.maps import children_at
from capsroute.form.tiles import (
    agreed,
    child_of_tile,
    columns,
    load,
    ordered,
    per_row,
    poses_at,
    rows_at,
    transforms_at,
    weighted,
    zeros,
)  # fmt: skip

LOG2E = tl.constexpr(1.4426950408889634)


@kernel("NCH", "scale")
def uniform_pass(u, W, part, B, I, NCH, scale, J: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                 AP: tl.constexpr, KP: tl.constexpr, BT: tl.constexpr, IC: tl.constexpr, CB: tl.constexpr,
                 BLOCKS: tl.constexpr, DT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr,
                 MAP: tl.constexpr):  # fmt: skip
    """The first iteration: every coefficient is `scale`, so it is a plain matrix product, split over children.

    A program holds BLOCKS blocks of CB columns (parent, o).
    """
    in_turn()
    tile, split, across = tl.program_id(0), tl.program_id(1), tl.program_id(2) * (BLOCKS * CB)
    b, a, rows = rows_at(tile, B, A, AP, BT)
    n = tl.arange(0, IC * KP)
    k, column = n % KP, across + tl.arange(0, CB)
    acc = zeros(BLOCKS, BT * AP, CB)
    for chunk in tl.range(0, NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n // KP
        valid = (i < I) & (k < K)
        U = children_at(u, b, a, i, k, I, rows, valid, A, K, MAP).to(DT)
        new = ()
        for block in tl.static_range(BLOCKS):
            jo = block * CB + column
            Wt = load(W + i[:, None] * (J * K * O) + (jo // O)[None, :] * (K * O) + k[:, None] * O + (jo % O)[None, :],
                      valid[:, None] & (jo < J * O)[None, :], EVEN)  # fmt: skip
            new = new + (tl.dot(U, Wt.to(DT), acc[block], input_precision=PRECISION),)
        acc = new
    for block in tl.static_range(BLOCKS):
        jo = block * CB + column
        to = part + (split * B + b[:, None]) * (J * A * O) + (jo // O)[None, :] * (A * O) + a[:, None] * O
        tl.store(to + (jo % O)[None, :], acc[block] * scale, mask=rows & (jo < J * O)[None, :])


@triton.jit
def _normalise(logits, J, SOFTMAX, lower, upper):
    """Logits of all parents, a tuple of tiles -> coefficients, softmax or max-min over parents."""
    c = ()
    if SOFTMAX:
        high = logits[0]
        for j in tl.static_range(1, J):
            high = tl.maximum(high, logits[j])
        high = reached(high, SOFTMAX)
        total = tl.zeros_like(high)
        for j in tl.static_range(J):
            e = tl.exp2((logits[j] - high) * LOG2E)
            total += e
            c = c + (e,)
        inverse = 1.0 / or_one(total, SOFTMAX)
        out = ()
        for j in tl.static_range(J):
            out = out + (c[j] * inverse,)
        return out
    else:
        high, low = _extremes(logits, J)
        for j in tl.static_range(J):
            c = c + (stretched(logits[j], high, low, lower, upper),)
        return c


@triton.jit
def _extremes(logits, J):
    """As `max_min.extremes`."""
    high = logits[0]
    low = logits[0]
    for j in tl.static_range(1, J):
        high = tl.maximum(high, logits[j], propagate_nan=tl.PropagateNan.ALL)
        low = tl.minimum(low, logits[j], propagate_nan=tl.PropagateNan.ALL)
    return exposed(high, low)


@kernel("NCH", "t", "plane", "lower", "upper", "p_i")
def forward_pass(u, W, q, c_out, part, prior, B, I, NCH, t, plane, lower, upper, p_i, J: tl.constexpr, A: tl.constexpr,
                 K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                 BT: tl.constexpr, IC: tl.constexpr, DT: tl.constexpr, SOFTMAX: tl.constexpr, STORE: tl.constexpr,
                 EVEN: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr, MAP: tl.constexpr):  # fmt: skip
    """A program holds BT samples, poses and sums of all parents, and walks over NCH tiles of IC children.

    c = normalise(agreement(q[t])), stored as c_out[plane,i,j,b] if STORE; part = aggregate(c). The prior [i,j] of
    logits (SOFTMAX 2) has p_i numbers from one child to the next.
    """
    in_turn()
    tile, split = tl.program_id(0), tl.program_id(1)
    R: tl.constexpr = BT * AP
    b, a, rows = rows_at(tile, B, A, AP, BT)
    sample = tile * BT + tl.arange(0, BT)
    child, k = columns(IC, KP, False)
    child2, k2 = columns(IC, KP, DT == tl.float32)
    member = child_of_tile(IC)
    pose, poses = poses_at(b, a, rows, J, A, O, OP)
    q += t * (B * J * A * O)
    c_out += plane * (I * J * B)
    acc = zeros(J, R, OP)
    Q = ()
    for j in tl.static_range(J):
        Q = Q + (tl.load(q + pose + j * (A * O), mask=poses, other=0.0),)
    for chunk in tl.range(0, NCH, num_stages=NS):
        i0 = (split * NCH + chunk) * IC
        i = i0 + child
        U = children_at(u, b, a, i, k, I, rows, (i < I) & (k < K), A, K, MAP).to(tl.float32)
        w, valid = transforms_at(W, i, k, I, J, K, O, OP)
        logits = ()
        tiles = ()
        for j in tl.static_range(J):
            Wt = load(w + j * (K * O), valid, EVEN).to(DT)
            tiles = tiles + (Wt,)
            more = agreed(Q[j], Wt, U, BT, AP, IC, KP, PRECISION)
            more = with_prior(more, prior, (i0 + member) * p_i + j, i0 + member < I, SOFTMAX)
            logits = logits + (more,)
        c = _normalise(logits, J, SOFTMAX, lower, upper)
        w2, valid2 = transforms_at(W, i0 + child2, k2, I, J, K, O, OP)
        V = ordered(U, R, IC, KP, DT)
        to = c_out + (i0 + member) * (J * B) + sample[:, None, None]
        new = ()
        for j in tl.static_range(J):
            if STORE:
                tl.store(to + j * B, c[j], mask=(sample < B)[:, None, None] & (i0 + member < I))
            left = weighted(per_row(c[j], BT, AP, IC), V, R, IC, KP, DT)
            # The 32-bit operand wants its rows in another order, which is one more load of a tile that is in cache.
            right = load(w2 + j * (K * O), valid2, EVEN).to(DT) if DT == tl.float32 else tiles[j]
            new = new + (tl.dot(left, right, acc[j], input_precision=PRECISION),)
        acc = new
    for j in tl.static_range(J):
        tl.store(part + split * (B * J * A * O) + pose + j * (A * O), acc[j], mask=poses)


@triton.jit
def _softmax_backward(c, g, J):
    """Gradient by the logits: c (g - sum c g)."""
    mean = c[0] * g[0]
    for j in tl.static_range(1, J):
        mean += c[j] * g[j]
    out = ()
    for j in tl.static_range(J):
        out = out + (c[j] * (g[j] - mean),)
    return out


@triton.jit
def _max_min_backward(logits, g, J, lower, upper):
    """Gradient by the logits; what goes to the largest and the smallest is shared evenly among equals."""
    high, low = _extremes(logits, J)
    sums = parts(logits[0], g[0], high, low, True)
    for j in tl.static_range(1, J):
        sums = added(sums, parts(logits[j], g[j], high, low, True))
    each = shares(sums)
    out = ()
    for j in tl.static_range(J):
        out = out + (slope(logits[j], g[j], high, low, each, lower, upper),)
    return out


@kernel("NCH", "t", "plane", "lower", "upper", "p_i")
def backward_pass(u, W, q, g, c, gc_in, gl_out, part, prior, B, I, NCH, t, plane, lower, upper, p_i, gc_b, gc_i, gc_j,
                  J: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr,
                  KP: tl.constexpr, OP: tl.constexpr, BT: tl.constexpr, IC: tl.constexpr, DT: tl.constexpr,
                  SOFTMAX: tl.constexpr, STORE: tl.constexpr, HAS_GC: tl.constexpr, STOP: tl.constexpr,
                  EVEN: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr, MAP: tl.constexpr):  # fmt: skip
    """As `forward_pass`, with the gradients of all parents beside their poses.

    gl_out[t,i,j,b] = gradient by the logits, from g[t], that of the sums; part = aggregate of it, that by q[t].

    Softmax reads its coefficients c[plane,i,j,b]; max-min needs the logits, makes them again from q (and STOREs c).
    HAS_GC adds the caller's gradient of the coefficients; STOP takes only that.
    """
    in_turn()
    tile, split = tl.program_id(0), tl.program_id(1)
    R: tl.constexpr = BT * AP
    b, a, rows = rows_at(tile, B, A, AP, BT)
    sample = tile * BT + tl.arange(0, BT)
    child, k = columns(IC, KP, False)
    child2, k2 = columns(IC, KP, DT == tl.float32)
    member = child_of_tile(IC)
    pose, poses = poses_at(b, a, rows, J, A, O, OP)
    q += t * (B * J * A * O)
    g += t * (B * J * A * O)
    gl_out += t * (I * J * B)
    c += plane * (I * J * B)
    acc = zeros(J, R, OP)
    Q = ()
    G = ()
    for j in tl.static_range(J):
        if not SOFTMAX:
            Q = Q + (tl.load(q + pose + j * (A * O), mask=poses, other=0.0),)
        if not STOP:
            G = G + (tl.load(g + pose + j * (A * O), mask=poses, other=0.0),)
    for chunk in tl.range(0, NCH, num_stages=NS):
        i0 = (split * NCH + chunk) * IC
        i = i0 + child
        U = children_at(u, b, a, i, k, I, rows, (i < I) & (k < K), A, K, MAP).to(tl.float32)
        w, valid = transforms_at(W, i, k, I, J, K, O, OP)
        entry = (sample < B)[:, None, None] & (i0 + member < I)
        at = (i0 + member) * (J * B) + sample[:, None, None]
        values = ()
        gc = ()
        tiles = ()
        for j in tl.static_range(J):
            Wt = load(w + j * (K * O), valid, EVEN).to(DT)
            tiles = tiles + (Wt,)
            if SOFTMAX:
                values = values + (tl.load(c + at + j * B, mask=entry, other=0.0).to(tl.float32),)
            else:
                values = values + (agreed(Q[j], Wt, U, BT, AP, IC, KP, PRECISION),)
            if STOP:
                from_sums = tl.zeros((BT, IC // 4, 4), tl.float32)
            else:
                from_sums = agreed(G[j], Wt, U, BT, AP, IC, KP, PRECISION)
            if HAS_GC:
                given = gc_in + sample[:, None, None] * gc_b + (i0 + member) * gc_i + j * gc_j
                from_sums += tl.load(given, mask=entry, other=0.0)
            gc = gc + (from_sums,)
        if SOFTMAX:
            gl = _softmax_backward(values, gc, J)
        else:
            gl = _max_min_backward(values, gc, J, lower, upper)
            if STORE:
                values = _normalise(values, J, False, lower, upper)
        w2, valid2 = transforms_at(W, i0 + child2, k2, I, J, K, O, OP)
        V = ordered(U, R, IC, KP, DT)
        new = ()
        for j in tl.static_range(J):
            moved = unmoved(gl[j], prior, (i0 + member) * p_i + j, i0 + member < I, SOFTMAX)
            tl.store(gl_out + at + j * B, moved, mask=entry)
            if STORE:
                tl.store(c + at + j * B, values[j], mask=entry)
            left = weighted(per_row(moved, BT, AP, IC), V, R, IC, KP, DT)
            right = load(w2 + j * (K * O), valid2, EVEN).to(DT) if DT == tl.float32 else tiles[j]
            new = new + (tl.dot(left, right, acc[j], input_precision=PRECISION),)
        acc = new
    for j in tl.static_range(J):
        tl.store(part + split * (B * J * A * O) + pose + j * (A * O), acc[j], mask=poses)
