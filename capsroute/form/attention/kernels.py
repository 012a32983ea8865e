"""One step of inverted attention as a kernel: votes, agreement, softmax over parents, weighted sum (Tsai 2020).

Rows of a tile are (pose row, position): r = a * PT + p. Columns are (parent, o), four parents at a time in the order of
`tiles.columns`, so that with four pose rows or fewer all but one bit of a vote lies in one thread. Children come G at a
time: G poses side by side fill the 16 that the matrix unit multiplies at once, and the votes of one child are the
product with the others' columns set to zero. A patch is gathered from the map as it is read; nothing is unfolded.

Transforms come as W[group, (child, k), column], parents (times the scale) as q[position, a, column]; both padded.
"""

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import child_of_tile, columns

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def positions(tile, P, s_b, s_a, s_y, s_x, A, AP, PT, HO, WO, STRIDE, PAD):
    """Of every row of a tile: position, pose row, whether there is one, its corner of the map and where that lies."""
    r = tl.arange(0, PT * AP)
    p, a = tile * PT + r % PT, r // PT
    y, x = (p // WO) % HO * STRIDE - PAD, p % WO * STRIDE - PAD
    corner = (p // (HO * WO)) * s_b + a * s_a + y * s_y + x * s_x
    return p, a, (p < P) & (a < A), y, x, corner


@triton.jit
def gather(u, group, rows, y, x, corner, I, s_n, s_k, s_y, s_x, K, KP, G, H, WD, KS, PAD):
    """The poses of G children at all positions of a tile: [rows, G * KP]."""
    n = tl.arange(0, G * KP)
    i, k = group * G + n // KP, n % KP
    down, right = i % (KS * KS) // KS, i % KS
    at = i // (KS * KS) * s_n + down * s_y + right * s_x + k * s_k
    mask = rows[:, None] & ((i < I) & (k < K))[None, :]
    if PAD > 0:
        yy, xx = y[:, None] + down[None, :], x[:, None] + right[None, :]
        mask = mask & (yy >= 0) & (yy < H) & (xx >= 0) & (xx < WD)
    return tl.load(u + corner[:, None] + at[None, :], mask=mask, other=0.0)


@triton.jit
def operand(x, DT, PRECISION):
    """x as an operand of a product. The matrix unit cuts the bits that TF32 lacks; here they are rounded first."""
    x = x.to(DT)
    if DT == tl.float32 and PRECISION == "tf32":
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def vote(U, Wt, g, KP, G, PRECISION):
    """The g-th child's pose alone [rows, G * KP], and its votes [rows, columns]."""
    mine = tl.arange(0, G * KP) // KP == g
    alone = tl.where(mine[None, :], U, 0.0).to(U.dtype)
    return alone, tl.dot(alone, Wt, input_precision=PRECISION)


@triton.jit
def sum_over_pose(x, AP, PT, JP, OP):
    """[AP * PT, JP * OP] -> [PT, JP // 4, 4]."""
    x = tl.reshape(x, (AP, PT, JP // 4, OP // 2, 4, 2))
    return tl.sum(tl.sum(tl.sum(x, axis=5), axis=3), axis=0)


@triton.jit
def repeat_over_pose(c, AP, PT, JP, OP):
    """[PT, JP // 4, 4] -> [AP * PT, JP * OP]."""
    c = tl.broadcast_to(c[None, :, :, None, :, None], (AP, PT, JP // 4, OP // 2, 4, 2))
    return tl.reshape(c, (AP * PT, JP * OP))


@triton.jit
def softmax_of_agreement(V, Q, J, AP, PT, JP, OP):
    """Softmax over parents of the agreement of votes with parents: [PT, JP // 4, 4]."""
    logits = sum_over_pose(V * Q, AP, PT, JP, OP)
    if J < JP:
        logits = tl.where(child_of_tile(JP) < J, logits, float("-inf"))
    high = tl.max(tl.max(logits, axis=1), axis=1)
    e = tl.exp2((logits - high[:, None, None]) * LOG2E)
    return e * (1.0 / tl.sum(tl.sum(e, axis=1), axis=1))[:, None, None]


@kernel("N", "E", "scale")
def arrange(x, out, N, E, scale, J: tl.constexpr, M: tl.constexpr, O: tl.constexpr, JP: tl.constexpr,
            MP: tl.constexpr, OP: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program takes BLOCK numbers of x [e,j,m,o], transforms or poses, scaled, to [e,m,column], padded with zeros."""
    in_turn()
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o, j = n % 2 + n // 8 % (OP // 2) * 2, n // 2 % 4 + n // (4 * OP) % (JP // 4) * 4
    m, e = n // (JP * OP) % MP, n // (JP * OP * MP)
    mask = (e < E) & (j < J) & (m < M) & (o < O)
    found = tl.load(x + ((e * J + j) * M + m) * O + o, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + n, found * scale, mask=n < N)


@kernel("P", "I", "NG")
def attend(u, W, q, out, c_out, P, I, NG, s_b, s_n, s_a, s_k, s_y, s_x, J: tl.constexpr, A: tl.constexpr,
           K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, JP: tl.constexpr,
           PT: tl.constexpr, G: tl.constexpr, H: tl.constexpr, WD: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
           KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr,
           NS: tl.constexpr, STORE: tl.constexpr):  # fmt: skip
    """A program holds PT positions and all parents, and walks over NG groups of children.

    It leaves its children's part of the sum in out[split,p,j,a,o], and the coefficients in c_out[p,i,j] if STORE.
    """
    in_turn()
    tile, split = tl.program_id(0), tl.program_id(1)
    p, a, rows, y, x, corner = positions(tile, P, s_b, s_a, s_y, s_x, A, AP, PT, HO, WO, STRIDE, PAD)
    n, m = tl.arange(0, JP * OP), tl.arange(0, G * KP)
    j, o = columns(JP, OP, False)
    Q = tl.load(q + (p * AP + a)[:, None] * (JP * OP) + n[None, :], mask=(p < P)[:, None], other=0.0).to(tl.float32)
    acc = tl.zeros((AP * PT, JP * OP), tl.float32)
    for group in tl.range(split * NG, tl.minimum((split + 1) * NG, tl.cdiv(I, G)), num_stages=NS):
        U = gather(u, group, rows, y, x, corner, I, s_n, s_k, s_y, s_x, K, KP, G, H, WD, KS, PAD)
        U = operand(U, DT, PRECISION)
        Wt = operand(tl.load(W + (group * (G * KP) + m)[:, None] * (JP * OP) + n[None, :]), DT, PRECISION)
        for g in tl.static_range(G):
            _, V = vote(U, Wt, g, KP, G, PRECISION)
            c = softmax_of_agreement(V, Q, J, AP, PT, JP, OP)
            acc += repeat_over_pose(c, AP, PT, JP, OP) * V
            if STORE:
                place = (tile * PT + tl.arange(0, PT))[:, None, None]
                parent = child_of_tile(JP)
                entry = (group * G + g) * J + parent
                mask = (place < P) & (parent < J) & (entry < I * J)
                tl.store(c_out + place.to(tl.int64) * (I * J) + entry, c, mask=mask)
    to = out + (split * P + p)[:, None] * (J * A * O) + j[None, :] * (A * O) + a[:, None] * O + o[None, :]
    tl.store(to, acc, mask=rows[:, None] & ((j < J) & (o < O))[None, :])
