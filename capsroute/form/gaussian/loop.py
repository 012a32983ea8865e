"""EM and Heinsen routing over stored votes as one operation: calls of its kernels (`resident`, `products`).

Votes are made anew on the way back, where their gradient takes their place: nothing as large is kept in between.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from capsroute.form.gaussian.plan import product_launches, resident_launch, samples_at_once
from capsroute.form.gaussian.products import by_children, by_transforms, make_votes
from capsroute.form.gaussian.resident import believe, beta_sums, last_gradients, route, slopes
from capsroute.form.launch import Launch, kind_of, on_device
from capsroute.form.plan import Sizes, cdiv, operand_dtype, power_of_2, precision, sizes_of

__all__ = ["loop_backward", "loop_forward"]


@on_device
def loop_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, use: Tensor, other: Tensor, scale: Tensor | None,
    rates: Sequence[float], eps: float, heinsen: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Means, spreads [b,j,a,o], logits [b,j], shares [t-1,b,i,j]; statistics [t,b,3,j,a*o] and brief ones [t,b,2,j]."""
    s, T, F = sizes_of(u, W), len(rates), u.shape[2] * W.shape[3]
    u, W, gate, use, other = (t.contiguous() for t in (u, W, gate, use, other))
    new = functools.partial(torch.empty, dtype=torch.float32, device=u.device)
    statistics, brief, shares = new((T, s.b, 3, s.j, F)), new((T, s.b, 2, s.j)), new((T - 1, s.b, s.i, s.j))
    means, spreads, logits = new((s.b, s.j, s.a, s.o)), new((s.b, s.j, s.a, s.o)), new((s.b, s.j))
    given = gate, use, other, gate if scale is None else scale
    kind, flags = kind_of(*given), {"HEINSEN": heinsen, "SCALE": scale is not None}
    step, group = s.j if use.shape[0] > 1 else 0, samples_at_once(s, W.shape[0] == 1)
    for b0 in range(0, s.b, group):
        part = s._replace(b=min(group, s.b - b0))
        launch, votes = resident_launch(part, "route"), _votes(part, u[b0 : b0 + group], W, bias)
        S = launch.splits
        rows, few = new((2, S, s.b, 3, s.j, F)), new((2, S, s.b, 2, s.j))
        for t in range(T):
            route(
                launch, kind, votes, *given, rows[1 - t % 2], few[1 - t % 2], rows[t % 2], few[t % 2],
                statistics, brief, shares[t - 1] if t else gate, b0, s.b, s.i, s.j, S, launch.tiles, t,
                rates[max(0, t - 1)], eps, step, **flags, FIRST=t == 0,
            )  # fmt: skip
        believe(
            resident_launch(part, "believe"), kind, *given[1:], rows[(T - 1) % 2], few[(T - 1) % 2], statistics, brief,
            means, spreads, logits, b0, s.b, s.j, S, T - 1, rates[-1], eps, **flags,
        )  # fmt: skip
    return means, spreads, logits, shares, statistics, brief


@on_device
def loop_backward(
    grads: Sequence[Tensor | None], tensors: tuple, kept: tuple[Tensor, ...], rates: Sequence[float], eps: float,
    heinsen: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients by u, W, bias, gate, use, other and scale."""
    (u, W, bias, gate, use, other, scale), (shares, statistics, brief) = tensors, kept
    s, T, F, shared = sizes_of(u, W), len(rates), u.shape[2] * W.shape[3], W.shape[0] == 1
    u, W, gate, use, other = (t.contiguous() for t in (u, W, gate, use, other))
    g_mean, g_spread, g_logit = (None if g is None else g.contiguous() for g in grads[:3])
    g_shares, group = grads[3], samples_at_once(s, shared)
    new = functools.partial(torch.empty, dtype=torch.float32, device=u.device)
    table, table_few = new((T, s.b, 2, s.j, F)), new((T, s.b, 2, s.j))
    slope, by_gate = new((T - 1, s.b, s.i, s.j)), new((resident_launch(s, "last_gradients", T).grid[2], s.b, s.i))
    given = gate, use, other, gate if scale is None else scale
    outer = [gate if g is None else g for g in (g_mean, g_spread, g_logit)]
    strides = (0, 0, 0) if g_shares is None else g_shares.stride()[1:]
    kind = kind_of(*given, shares, *outer, gate if g_shares is None else g_shares, *strides)
    flags = {"HEINSEN": heinsen, "SCALE": scale is not None}
    flags |= {"MEAN": g_mean is not None, "SPREAD": g_spread is not None, "LOGIT": g_logit is not None}
    step = s.j if use.shape[0] > 1 else 0
    by_u, parts = torch.empty_like(u), []
    for b0 in range(0, s.b, group):
        part = s._replace(b=min(group, s.b - b0))
        back, last = resident_launch(part, "slopes"), resident_launch(part, "last_gradients", T)
        rows, few = new((2, back.splits, s.b, 2, s.j, F)), new((2, back.splits, s.b, s.j))
        votes = _votes(part, u[b0 : b0 + group], W, bias)
        for t in range(T - 1, 0, -1):
            slopes(
                back, kind, votes, *given, statistics, brief, shares[t - 1], *outer,
                gate if g_shares is None else g_shares[t - 1], rows[1 - t % 2], few[1 - t % 2], rows[t % 2],
                few[t % 2], table, table_few, slope[t - 1], by_gate, b0, s.b, s.i, s.j, back.splits, back.tiles, t,
                rates[t], eps, step, *strides, **flags, LAST=t == T - 1, SHARES=g_shares is not None,
            )  # fmt: skip
        last_gradients(
            last, kind, votes, *given, statistics, brief, shares, *outer, rows[1], few[1], table,
            table_few, slope, by_gate, b0, s.b, s.i, s.j, back.splits, last.tiles, rates[0], eps, step, **flags,
            LAST=T == 1,
        )  # fmt: skip
        parts.append(_products_backward(part, u[b0 : b0 + group], W, bias, votes, by_u[b0 : b0 + group]))
    by_W, by_bias = (torch.stack(each).sum(0) if len(each) > 1 else each[0] for each in zip(*parts))
    by_bias = gate.new_empty(0) if bias is None else by_bias.to(bias.dtype)
    by_scale = gate.new_empty(0)
    if heinsen:
        by_use, by_other = _betas(s, shares, gate, table_few, use, T)
        if scale is not None:
            by_scale = (table_few[:, :, 1].sum((0, 2)) / scale.view(-1)).view_as(scale)
    else:
        by_other, by_use = table_few.sum((0, 1)).unsqueeze(1).unbind(0)
    by_gate = by_gate[0] if len(by_gate) == 1 else by_gate.sum(0)
    return by_u, by_W.to(W.dtype), by_bias, by_gate, by_use, by_other, by_scale


def _votes(s: Sizes, u: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
    """[b,i,j,a*o] in float32."""
    votes = u.new_empty((s.b, s.i, s.j, s.a * s.o), dtype=torch.float32)
    make, _, _ = product_launches(s, W.shape[0] == 1)
    biases = W if bias is None else bias.contiguous()
    wide = operand_dtype(u, W) == torch.float32
    make_votes(
        make, kind_of(u, W, biases), u, W, biases, votes, *_rows(s, W), BIAS=bias is not None,
        DT=tl.float32 if wide else tl.bfloat16, PRECISION=precision(),
    )  # fmt: skip
    return votes


def _rows(s: Sizes, W: Tensor) -> tuple[int, int, int]:
    """Of a group; parents; and how far apart its rows are among samples and children."""
    return (s.b * s.i * s.a, s.j, 1) if W.shape[0] == 1 else (s.b * s.a, s.j, s.i)


def _products_backward(
    s: Sizes, u: Tensor, W: Tensor, bias: Tensor | None, g: Tensor, by_u: Tensor
) -> tuple[Tensor, Tensor]:
    """Fills by_u; gradients by transforms and by biases."""
    shared, kind = W.shape[0] == 1, kind_of(u, W, by_u)
    _, children, transforms = product_launches(s, shared)
    splits = transforms.splits
    by_W = torch.empty_like(W) if splits == 1 else g.new_empty((splits, *W.shape))
    by_children(children, kind, g, W, by_u, *_rows(s, W), children.tiles, PRECISION=precision())
    by_transforms(transforms, kind, g, u, by_W, *_rows(s, W), transforms.tiles, PRECISION=precision())
    by_W = by_W if splits == 1 else by_W.sum(0)
    return by_W, by_W if bias is None else g.sum((0, 1) if shared else 0).view(bias.shape)


def _betas(
    s: Sizes, shares: Tensor, gate: Tensor, table_few: Tensor, use: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    by_use, by_other = gate.new_empty((2, s.i, s.j)).unbind(0)
    launch = _beta_launch(s.i, s.j, iterations)
    beta_sums(launch, kind_of(shares, gate), shares, gate, table_few, by_use, by_other, s.b, s.i, s.j)
    if use.shape[0] == 1:
        return by_use.sum(0, keepdim=True), by_other.sum(0, keepdim=True)
    return by_use, by_other


@functools.lru_cache(maxsize=256)
def _beta_launch(i: int, j: int, iterations: int) -> Launch:
    parents = min(64, power_of_2(j))
    children = min(power_of_2(i), max(1, 256 // parents))
    tile = {"IC": children, "JT": parents, "T": iterations, "num_warps": 2}
    return Launch((cdiv(i, children), cdiv(j, parents), 1), 1, 1, tile)
