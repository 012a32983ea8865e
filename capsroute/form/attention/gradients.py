"""The derivative of one step of inverted attention; votes and coefficients are made again, nothing was kept.

With g[p,j,a,o] the gradient of the sums, q the parents times the scale, and votes V = u W:

    coefficients  gc = <g, V>          logits  gl = c (gc - sum_j c gc)          votes  gV = c g + gl q
    parents  sum_i gl V (times the scale)       children  sum_j gV W^T       transforms  sum_p u^T gV

Sums over children are made by programs that walk over children, sums over positions by programs that walk over
positions, in a fixed order: no atomics.
"""

import triton
import triton.language as tl

from capsroute.form.attention.kernels import (
    gather,
    operand,
    positions,
    repeat_over_pose,
    softmax_of_agreement,
    sum_over_pose,
    vote,
)
from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import columns


@triton.jit
def _coefficients_and_logits(V, Q, D, J, AP, PT, JP, OP):
    """Coefficients and the gradient of the logits, repeated over the pose: [rows, columns] each."""
    c = softmax_of_agreement(V, Q, J, AP, PT, JP, OP)
    gc = sum_over_pose(V * D, AP, PT, JP, OP)
    mean = tl.sum(tl.sum(c * gc, axis=1), axis=1)
    gl = c * (gc - mean[:, None, None])
    return repeat_over_pose(c, AP, PT, JP, OP), repeat_over_pose(gl, AP, PT, JP, OP)


@kernel("P", "I", "NG")
def parents_gradient(u, W, q, d, out, P, I, NG, s_b, s_n, s_a, s_k, s_y, s_x, J: tl.constexpr, A: tl.constexpr,
                     K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                     JP: tl.constexpr, PT: tl.constexpr, G: tl.constexpr, H: tl.constexpr, WD: tl.constexpr,
                     HO: tl.constexpr, WO: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
                     DT: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """A program holds PT positions and all parents, and walks over NG groups of children; see `attention.attend`."""
    in_turn()
    tile, split = tl.program_id(0), tl.program_id(1)
    p, a, rows, y, x, corner = positions(tile, P, s_b, s_a, s_y, s_x, A, AP, PT, HO, WO, STRIDE, PAD)
    n, m = tl.arange(0, JP * OP), tl.arange(0, G * KP)
    j, o = columns(JP, OP, False)
    pose = (p * AP + a)[:, None] * (JP * OP) + n[None, :]
    Q = tl.load(q + pose, mask=(p < P)[:, None], other=0.0)
    D = tl.load(d + pose, mask=(p < P)[:, None], other=0.0)
    acc = tl.zeros((AP * PT, JP * OP), tl.float32)
    for group in tl.range(split * NG, tl.minimum((split + 1) * NG, tl.cdiv(I, G)), num_stages=NS):
        U = gather(u, group, rows, y, x, corner, I, s_n, s_k, s_y, s_x, K, KP, G, H, WD, KS, PAD)
        U = operand(U, DT, PRECISION)
        Wt = operand(tl.load(W + (group * (G * KP) + m)[:, None] * (JP * OP) + n[None, :]), DT, PRECISION)
        for g in tl.static_range(G):
            _, V = vote(U, Wt, g, KP, G, PRECISION)
            _, gl = _coefficients_and_logits(V, Q.to(tl.float32), D.to(tl.float32), J, AP, PT, JP, OP)
            acc += gl * V
    to = out + (split * P + p)[:, None] * (J * A * O) + j[None, :] * (A * O) + a[:, None] * O + o[None, :]
    tl.store(to, acc, mask=rows[:, None] & ((j < J) & (o < O))[None, :])


@kernel("P", "I", "NT")
def children_and_transforms(u, W, q, d, du, dW, P, I, NT, s_b, s_n, s_a, s_k, s_y, s_x, J: tl.constexpr,
                            A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr,
                            OP: tl.constexpr, JP: tl.constexpr, PT: tl.constexpr, G: tl.constexpr, H: tl.constexpr,
                            WD: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, KS: tl.constexpr,
                            STRIDE: tl.constexpr, PAD: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr,
                            NS: tl.constexpr):  # fmt: skip
    """A program holds one group of G children and all parents, and walks over NT tiles of PT positions.

    du[p,i,a,k] are the gradients of the patches; dW[split,i,j,k,o] is a part of the sum over positions.
    """
    in_turn()
    group, split = tl.program_id(0), tl.program_id(1)
    n, m = tl.arange(0, JP * OP), tl.arange(0, G * KP)
    Wt = operand(tl.load(W + (group * (G * KP) + m)[:, None] * (JP * OP) + n[None, :]), DT, PRECISION)
    i, k = group * G + m // KP, m % KP
    child = (i < I) & (k < K)
    acc = tl.zeros((G * KP, JP * OP), tl.float32)
    for tile in tl.range(split * NT, tl.minimum((split + 1) * NT, tl.cdiv(P, PT)), num_stages=NS):
        p, a, rows, y, x, corner = positions(tile, P, s_b, s_a, s_y, s_x, A, AP, PT, HO, WO, STRIDE, PAD)
        pose = (p * AP + a)[:, None] * (JP * OP) + n[None, :]
        Q = tl.load(q + pose, mask=(p < P)[:, None], other=0.0).to(tl.float32)
        D = tl.load(d + pose, mask=(p < P)[:, None], other=0.0).to(tl.float32)
        U = gather(u, group, rows, y, x, corner, I, s_n, s_k, s_y, s_x, K, KP, G, H, WD, KS, PAD)
        U = operand(U, DT, PRECISION)
        back = tl.zeros((AP * PT, G * KP), tl.float32)
        for g in tl.static_range(G):
            alone, V = vote(U, Wt, g, KP, G, PRECISION)
            c, gl = _coefficients_and_logits(V, Q, D, J, AP, PT, JP, OP)
            gV = operand(c * D + gl * Q, DT, PRECISION)
            mine = (m // KP == g)[None, :]
            back = tl.where(mine, tl.dot(gV, tl.trans(Wt), input_precision=PRECISION), back)
            acc = tl.dot(tl.trans(alone), gV, acc, input_precision=PRECISION)
        to = du + p[:, None] * (I * A * K) + i[None, :] * (A * K) + a[:, None] * K + k[None, :]
        tl.store(to, back, mask=rows[:, None] & child[None, :])
    j, o = columns(JP, OP, False)
    to = dW + ((split * I + i)[:, None] * J + j[None, :]) * (K * O) + k[:, None] * O + o[None, :]
    tl.store(to, acc, mask=child[:, None] & ((j < J) & (o < O))[None, :])
