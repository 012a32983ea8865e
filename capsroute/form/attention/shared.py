"""A step of inverted attention over transforms that all children share: one kernel, its derivative one (`loop.shared`).

The first step has no parents yet: coefficients are all 1 / j, and the children's sum is all that W needs.
"""

import torch
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import in_turn, kernel, kind_of
from capsroute.form.launches.shared_transforms import outer_launch, shared_step_launch
from capsroute.form.loop.walks import back, children, parents, poses_of, through, transforms, walk, walk_back
from capsroute.form.sizes import operand_dtype, precision, sizes_of, sums_dtype
from capsroute.form.tiles import there


@kernel("B", "I", "scale")
def shared_step(u, W, q, c, kept, out, B, I, J, scale, FIRST: tl.constexpr, STORE: tl.constexpr, A: tl.constexpr,
                K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr, JC: tl.constexpr, G: tl.constexpr,
                DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample.

    Sums out [b,j,a,o]; c [b,i,j] if STORE. Kept [2,b,j,a,k]: sums of children, and parents passed back through W.
    """
    in_turn()
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    mine, poses = kept + b * (J * F), b * (J * A * O)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    if FIRST:
        some = tl.zeros((IC, FP), tl.float32)
        for i0 in range(0, I, IC):
            some += children(u, b, i0, I, F, FP, IC).to(tl.float32)
        total = tl.broadcast_to(tl.sum(some, axis=0, keep_dims=True) / J, (JP, FP))
    else:
        for j0 in range(0, J, JC):
            jc = j0 + tl.arange(0, JC)[:, None]
            at, mask = poses_of(jc, F, A, K, AP, KP, J)
            to, held = poses_of(jc, A * O, A, O, AP, OP, J)
            Q = tl.load(q + poses + to, mask=held, other=0.0).to(tl.float32) * scale
            tl.store(mine + B * (J * F) + at, back(Q, transforms(W, jc, J, K, O, KP, OP)), mask=mask)
        tl.debug_barrier()
        Y = parents(mine + B * (J * F), F, J, F, JP, FP, DT, PRECISION)
        total = walk(u, c, Y, b, I, J, there(0, STORE), 0.0, 1.0, True, F, FP, JP, IC, G, DT, PRECISION)
    tl.store(mine + j * F + f, total, mask=(j < J) & (f < F))
    tl.debug_barrier()
    for j0 in range(0, J, JC):
        jc = j0 + tl.arange(0, JC)[:, None]
        at, mask = poses_of(jc, F, A, K, AP, KP, J)
        to, held = poses_of(jc, A * O, A, O, AP, OP, J)
        s = through(tl.load(mine + at, mask=mask, other=0.0), transforms(W, jc, J, K, O, KP, OP))
        tl.store(out + poses + to, s, mask=held)


@kernel("B", "I", "scale")
def shared_step_back(u, W, q, kept, g, left, right, by_parents, du, dq, B, I, J, scale, FIRST: tl.constexpr,
                     A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr,
                     OP: tl.constexpr, FP: tl.constexpr, JP: tl.constexpr, IC: tl.constexpr, JC: tl.constexpr,
                     G: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """A program for each sample.

    du [b,i,a,k], dq [b,j,a,o], and left [j,r,b,a,k], right [j,r,b,a,o], whose product over (r, b, a) is dW.
    """
    in_turn()
    b = tl.program_id(0)
    F: tl.constexpr = A * K
    R: tl.constexpr = 1 if FIRST else 2
    mine, poses = kept + b * (J * F), b * (J * A * O)
    by_parents += b * (J * F)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    for j0 in range(0, J, JC):
        jc = j0 + tl.arange(0, JC)[:, None]
        at, mask = poses_of(jc, F, A, K, AP, KP, J)
        to, held = poses_of(jc, A * O, A, O, AP, OP, J)
        lt, _ = poses_of(jc, R * B * F, A, K, AP, KP, J)
        rt, _ = poses_of(jc, R * B * A * O, A, O, AP, OP, J)
        x = tl.load(g + poses + to, mask=held, other=0.0).to(tl.float32)
        tl.store(right + b * (A * O) + rt, x, mask=held)
        tl.store(left + b * F + lt, tl.load(mine + at, mask=mask, other=0.0), mask=mask)
        tl.store(by_parents + at, back(x, transforms(W, jc, J, K, O, KP, OP)), mask=mask)
        if not FIRST:
            Q = tl.load(q + poses + to, mask=held, other=0.0).to(tl.float32) * scale
            tl.store(right + (B + b) * (A * O) + rt, Q, mask=held)
    tl.debug_barrier()
    if FIRST:
        X = tl.load(by_parents + j * F + f, mask=(j < J) & (f < F), other=0.0)
        mean = tl.sum(X, axis=0, keep_dims=True) / J
        for i0 in range(0, I, IC):
            i = i0 + tl.arange(0, IC)[:, None]
            tl.store(du + (b * I + i) * F + f, tl.broadcast_to(mean, (IC, FP)), mask=(i < I) & (f < F))
    else:
        X = parents(by_parents, F, J, F, JP, FP, DT, PRECISION)
        Y = parents(mine + B * (J * F), F, J, F, JP, FP, DT, PRECISION)
        total = walk_back(u, g, du, Y, X, b, I, J, there(0, 0), there(0, 0), 0.0, 1.0, True, F, FP, JP, IC, G, DT,
                          PRECISION, False)  # fmt: skip
        tl.store(left + j * (R * B * F) + (B + b) * F + f, total, mask=(j < J) & (f < F))
        tl.debug_barrier()
        for j0 in range(0, J, JC):
            jc = j0 + tl.arange(0, JC)[:, None]
            lt, mask = poses_of(jc, R * B * F, A, K, AP, KP, J)
            to, held = poses_of(jc, A * O, A, O, AP, OP, J)
            x = tl.load(left + (B + b) * F + lt, mask=mask, other=0.0)
            tl.store(dq + poses + to, through(x, transforms(W, jc, J, K, O, KP, OP)) * scale, mask=held)


@kernel("N")
def outer_sums(left, right, out, N, K: tl.constexpr, O: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
               NT: tl.constexpr):  # fmt: skip
    """A program for each parent walks over N rows, NT at a time: out[j,k,o] = sum_n left[j,n,k] right[j,n,o]."""
    in_turn()
    j, r = tl.program_id(0), tl.arange(0, NT)[:, None, None]
    k, o = tl.arange(0, KP)[None, :, None], tl.arange(0, OP)[None, None, :]
    acc = tl.zeros((NT, KP, OP), tl.float32)
    for first in range(0, N, NT):
        n = first + r
        x = tl.load(left + (j * N + n) * K + k, mask=(n < N) & (k < K), other=0.0)
        acc += x * tl.load(right + (j * N + n) * O + o, mask=(n < N) & (o < O), other=0.0)
    to = out + (j * K + k) * O + o
    tl.store(to, tl.sum(acc, axis=0, keep_dims=True), mask=(k < K) & (o < O))


def shared_step_forward(
    u: Tensor, W: Tensor, q: Tensor | None, scale: float, coefficients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `calls.attention_forward`, of a list u [b,i,a,k]."""
    s, u, W = sizes_of(u, W), u.contiguous(), W.contiguous()
    out = u.new_empty((s.b, s.j, s.a, s.o), dtype=torch.float32)
    kept = out.new_empty((1 if q is None else 2, s.b, s.j, s.a, s.k), dtype=sums_dtype(u, W))
    c = out.new_empty((s.b, s.i, s.j) if coefficients and q is not None else 0)
    given = out if q is None else q.contiguous()
    launch = shared_step_launch(s, operand_dtype(u, W), precision())
    numbers = (s.b, s.i, s.j, scale)
    kind = kind_of(u, W, given)
    shared_step(launch, kind, u, W, given, c, kept, out, *numbers, FIRST=q is None, STORE=coefficients)
    return out, c, kept


def shared_step_backward(
    g: Tensor, u: Tensor, W: Tensor, q: Tensor | None, kept: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `calls.attention_backward`."""
    s, u, W, g, terms = sizes_of(u, W), u.contiguous(), W.contiguous(), g.contiguous(), kept.shape[0]
    du, by_parents = torch.empty_like(u), torch.empty_like(kept[0], dtype=torch.float32)
    dq = g.new_empty(0) if q is None else torch.empty_like(q, memory_format=torch.contiguous_format)
    left, right = (by_parents.new_empty((s.j, terms, s.b, s.a, n)) for n in (s.k, s.o))
    given = g if q is None else q.contiguous()
    launch = shared_step_launch(s, operand_dtype(u, W), precision())
    shared_step_back(
        launch, kind_of(u, W, given, g, kept), u, W, given, kept, g, left, right, by_parents, du, dq, s.b, s.i, s.j,
        scale, FIRST=q is None,
    )  # fmt: skip
    return du, _products(left.flatten(1, 3), right.flatten(1, 3), W), dq


def _products(left: Tensor, right: Tensor, W: Tensor) -> Tensor:
    """The gradient of the transforms W [1,j,k,o], from [j,n,k] and [j,n,o]: a large one is a matrix product."""
    launch = outer_launch(*left.shape, right.shape[2])
    if launch is None:
        return torch.bmm(left.mT, right).unsqueeze(0).to(W.dtype)
    dW = torch.empty_like(W)
    outer_sums(launch, kind_of(left), left, right, dW, left.shape[1])
    return dW
