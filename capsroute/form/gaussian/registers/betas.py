"""What betas [i,j] of children earn and cost in large layers: sums over children, and gradients, which are sums over
samples. Nothing as large as samples x children x parents is stored, and no product is one that TF32 rounds."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from capsroute.form.contractions.kernels import WIDE
from capsroute.form.launch import in_turn, kernel, kind_of, on_device
from capsroute.form.launches.gaussian_votes import betas_tile, betas_walk, grid
from capsroute.form.rows.totals import add_parts
from capsroute.form.sizes import GRID_ROWS, cdiv, power_of_2


@kernel("B", "I", "J")
def by_betas(plane, gate, dots, out, B, I, J, p_b, p_i, p_j, GATE: tl.constexpr, NT: tl.constexpr, BT: tl.constexpr):
    """out[i,j] = sum over b of plane[b,i,j] * dots[b,j], times gate[b,i] (GATE): a program walks over samples, BT at a
    time, for NT of (i,j), which are one axis: no thread waits for what another has read."""
    in_turn()
    n = tl.program_id(0) * NT + tl.arange(0, NT)
    i, j = n // J, n % J
    inside = n < I * J
    at = i * p_i + j * p_j
    total = tl.zeros((NT,), tl.float32)
    for first in range(0, B, BT):
        for step in tl.static_range(BT):
            b = first + step
            there = n < tl.where(b < B, I * J, 0)
            x = tl.load(plane + b * p_b + at, mask=there, other=0.0) * tl.load(dots + b * J + j, mask=there, other=0.0)
            if GATE:
                x *= tl.load(gate + b * I + i, mask=there, other=0.0)
            total += x
    tl.store(out + n, total, mask=inside)


@kernel("B", "I", "J", "NCH")
def sum_betas(gate, beta, part, B, I, J, NCH, BT: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr):
    """part[split,b,j] = sum of gate[b,i] * beta[i,j] over a share of the children, NCH tiles of them."""
    in_turn()
    b = tl.program_id(0) * BT + tl.arange(0, BT)[:, None, None]
    split = tl.program_id(1)
    j = tl.program_id(2) * JT + tl.arange(0, JT)[None, None, :]
    total = tl.zeros((BT, IC, JT), tl.float32)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[None, :, None]
        g = tl.load(gate + b * I + i, mask=(b < B) & (i < I), other=0.0)
        total += g * tl.load(beta + i * J + j, mask=(i < I) & (j < J), other=0.0)
    tl.store(part + (split * B + b) * J + j, tl.sum(total, axis=1, keep_dims=True), mask=(b < B) & (j < J))


@kernel("B", "I", "J")
def by_gates(beta, dots, out, B, I, J, BT: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr):
    """out[b,i] = sum over j of beta[i,j] * dots[b,j]: a program walks over all parents.

    Tiles of samples and of children are one axis of the grid: of the second a grid has no more than 65,535.
    """
    in_turn()
    groups = tl.cdiv(B, BT)
    b = tl.program_id(0) % groups * BT + tl.arange(0, BT)[:, None, None]
    i = tl.program_id(0) // groups * IC + tl.arange(0, IC)[None, :, None]
    total = tl.zeros((BT, IC, JT), tl.float32)
    for first in range(0, J, JT):
        j = first + tl.arange(0, JT)[None, None, :]
        x = tl.load(beta + i * J + j, mask=(i < I) & (j < J), other=0.0)
        total += x * tl.load(dots + b * J + j, mask=(b < B) & (j < J), other=0.0)
    tl.store(out + b * I + i, tl.sum(total, axis=2, keep_dims=True), mask=(b < B) & (i < I))


def betas_gradient(plane: Tensor, gate: Tensor | None, beta: Tensor | None, dots: Tensor | None) -> Tensor:
    """By beta [i,j], from that of sums over children of gate[b,i] * plane[b,i,j] * beta; empty where it is None."""
    if beta is None or dots is None:
        return plane.new_empty(0) if beta is None else beta.new_zeros(beta.shape)
    (b, i, j), dots, out = plane.shape, dots.contiguous(), torch.empty_like(beta, memory_format=torch.contiguous_format)
    launch, strides = grid((i * j, 512), NT=512, BT=min(4, power_of_2(b)), num_warps=4), plane.stride()
    gates = plane if gate is None else gate
    kind = kind_of(plane, gates, dots, *strides)
    by_betas(launch, kind, plane, gates, dots, out, b, i, j, *strides, GATE=gate is not None)
    return out


def sums_reasons(gate: Tensor, beta: Tensor) -> list[str]:
    """Why the kernels do not apply, if anything."""
    found = [WIDE] if torch.float64 in (gate.dtype, beta.dtype) else []
    if not gate.numel() or not beta.numel():
        found.append("an operand is empty")
    if max(gate.numel(), beta.numel()) >= 1 << 31:
        found.append("an operand has 2^31 numbers or more, beyond the kernels' 32-bit offsets")
    if beta.shape[1] > 64 * GRID_ROWS:
        found.append("more parents by 64 than 65,535: a grid has no more rows")
    return found


@on_device
def sums_forward(gate: Tensor, beta: Tensor) -> Tensor:
    """Sum over children of gate [b,i] * beta [i,j]: [b,j]."""
    (b, i), j, gate, beta = gate.shape, beta.shape[1], gate.contiguous(), beta.contiguous()
    launch, out = betas_walk(b, i, j), gate.new_empty((b, j))
    part = out if launch.splits == 1 else gate.new_empty((launch.splits, b, j))
    sum_betas(launch, kind_of(gate, beta), gate, beta, part, b, i, j, launch.tiles)
    if launch.splits > 1:
        together = grid((b * j, 16), SP=min(128, power_of_2(launch.splits)), C=16, num_warps=4)
        add_parts(together, kind_of(part), part, out, b * j, launch.splits, 1.0)
    return out


@on_device
def sums_backward(grads: tuple[Tensor], tensors: tuple[Tensor, Tensor], kept: tuple) -> tuple[Tensor, Tensor]:
    """Gradients by gate and beta."""
    (gate, beta), dots = tensors, grads[0].contiguous()
    (b, i), j, beta = gate.shape, beta.shape[1], beta.contiguous()
    tile, out = betas_tile(b, i, j), gate.new_empty((b, i))
    launch = grid((cdiv(b, tile["BT"]) * cdiv(i, tile["IC"]), 1), **tile)
    by_gates(launch, kind_of(beta, dots), beta, dots, out, b, i, j)
    return out, betas_gradient(gate.unsqueeze(2).expand(-1, -1, j), None, beta, dots)
