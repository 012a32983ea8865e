"""Votes that are stored for a Gaussian pass, and what goes back through them: matrix products before and after.

Votes are [f,j] for each sample and child, parents last. Their gradient takes their place in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.gaussian.kernels import zeros
from capsroute.form.launch import kernel
from capsroute.form.plan import Sizes
from capsroute.form.tiles import there

__all__ = ["products_backward", "stored_gradients", "stored_votes"]


@triton.jit
def _part(pointers, stride, mask, first, group, F: tl.constexpr, FT: tl.constexpr):
    """Rows of one of the groups of FT out of F, behind the first ones; zeros beyond."""
    rows = ()
    for n in tl.static_range(FT):
        f = group * FT + n
        rows = rows + (tl.load(pointers + (first + f) * stride, mask=mask & there(f, F), other=0.0),)
    return rows


@kernel("B", "I", "J", "NCH")
def stored_gradients(votes, weighed, dense, plane, gate, slope, sums, B, I, J, NCH, v_b, v_i, p_b, p_i, p_j, s_b, s_i,
                     s_j, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                     SHARED: tl.constexpr, GROUPS: tl.constexpr, WEIGHED: tl.constexpr, GATE: tl.constexpr,
                     BETA: tl.constexpr, DENSITY: tl.constexpr):  # fmt: skip
    """Votes become their gradients; a density leaves sums[split, b, (slope, pull, pull d), j] (`gradients`).

    A program holds a sample and one of GROUPS parts of the pose, and walks over children.
    """
    b, split = tl.program_id(0), tl.program_id(1)
    tile, group = tl.program_id(2) // GROUPS, tl.program_id(2) % GROUPS
    F: tl.constexpr = A * O
    FT: tl.constexpr = (F + GROUPS - 1) // GROUPS
    ROWS: tl.constexpr = 3 * F + 1 + (1 if BETA else 0)
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    # What parents bring is read once, and a child's votes all at once: no load waits for the store before it.
    table = weighed + b * (ROWS * J) + j
    other = dense + b * ((2 * F + 1) * J) + j
    if WEIGHED:
        about = _part(table, J, valid, 0, group, F, FT) + _part(table, J, valid, F, group, F, FT)
        about = about + _part(table, J, valid, 2 * F + 1, group, F, FT)
    if DENSITY:
        dense_about = _part(other, J, valid, 0, group, F, FT) + _part(other, J, valid, F, group, F, FT)
    total = tl.zeros((1, JT), tl.float32)
    acc = zeros(2 * FT if DENSITY else 0, 1, JT)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        inside = (i < I) & valid
        at = votes + b.to(tl.int64) * v_b + i.to(tl.int64) * v_i + j
        V = _part(at, J, inside, 0, group, F, FT)
        if WEIGHED:
            x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
            if GATE:
                x *= tl.load(gate + b * I + i, mask=i < I, other=0.0)
        if DENSITY:
            y = tl.load(slope + b * s_b + i * s_i + j * s_j, mask=inside, other=0.0)
            total += tl.sum(y, axis=0, keep_dims=True)
        first = ()
        second = ()
        for n in tl.static_range(FT):
            g = tl.zeros((IC, JT), tl.float32)
            if WEIGHED:
                g += x * (about[2 * FT + n] + 2 * about[FT + n] * (V[n] - about[n]))
            if DENSITY:
                d = V[n] - dense_about[n]
                pull = 2 * dense_about[FT + n] * d * y
                g += pull
                first = first + (acc[n] + tl.sum(pull, axis=0, keep_dims=True),)
                second = second + (acc[FT + n] + tl.sum(pull * d, axis=0, keep_dims=True),)
            f = group * FT + n
            tl.store(at + f * J, g, mask=inside & there(f, F))
        acc = first + second
    if DENSITY:
        to = sums + (split * B + b) * ((1 + 2 * F) * J) + j
        tl.store(to, total, mask=valid & there(group, 1))
        for n in tl.static_range(FT):
            f = group * FT + n
            tl.store(to + (1 + f) * J, acc[n], mask=valid & there(f, F))
            tl.store(to + (1 + F + f) * J, acc[FT + n], mask=valid & there(f, F))


def stored_votes(s: Sizes, u: Tensor, W: Tensor, bias: Tensor | None) -> tuple[Tensor, tuple[int, int]]:
    """Votes in float32, and how far apart samples and children are, from u [b,i,a,k], W [i or 1,k,o,j] and bias.

    bias [i or 1,a,o,j]. As torch is set to multiply float32.
    """
    size = s.a * s.o * s.j
    if W.shape[0] == 1:
        votes = torch.mm(u.reshape(-1, s.k), W.view(s.k, s.o * s.j)).view(s.b, s.i, s.a * s.o, s.j)
        return votes if bias is None else votes.add_(bias.view(s.a * s.o, s.j)), (s.i * size, size)
    children = u.transpose(0, 1).reshape(s.i, s.b * s.a, s.k)
    votes = torch.bmm(children, W.view(s.i, s.k, s.o * s.j)).view(s.i, s.b, s.a * s.o, s.j)
    return votes if bias is None else votes.add_(bias.view(s.i, 1, s.a * s.o, s.j)), (size, s.b * size)


def products_backward(
    s: Sizes, u: Tensor, W: Tensor, has_bias: bool, g: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients by u [b,i,a,k], W [i or 1, k*o, j] and bias [i or 1, a*o, j], from that of the votes in their place."""
    if W.shape[0] == 1:
        flat = g.view(-1, s.o * s.j)
        by_u = torch.mm(flat, W.view(s.k, s.o * s.j).mT).view(u.shape)
        by_W = torch.mm(u.reshape(-1, s.k).mT, flat).view(-1, s.k * s.o, s.j)
        return by_u, by_W, g.sum((0, 1)).unsqueeze(0) if has_bias else None
    children, flat = u.transpose(0, 1).reshape(s.i, s.b * s.a, s.k), g.view(s.i, s.b * s.a, s.o * s.j)
    by_u = torch.bmm(flat, W.view(s.i, s.k, s.o * s.j).mT).view(s.i, s.b, s.a, s.k).transpose(0, 1)
    by_W = torch.bmm(children.mT, flat).view(-1, s.k * s.o, s.j)
    return by_u, by_W, g.sum(1) if has_bias else None
