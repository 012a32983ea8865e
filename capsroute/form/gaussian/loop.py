"""EM, Heinsen and variational Bayes routing over stored votes as one operation: calls of its kernels.

Those are in `iterations`, `gradients`, `whole` and `columns`. Votes are made anew on the way back, where their gradient
takes their place: nothing as large is kept in between.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from capsroute.form.cost import makes_votes
from capsroute.form.gaussian.columns import blame_columns, fit_columns, share_plane, slope_plane
from capsroute.form.gaussian.gradients import beta_sums, blame, cost_sums, last_gradients, slopes
from capsroute.form.gaussian.iterations import begin, believe, route
from capsroute.form.gaussian.passes import stored_reasons
from capsroute.form.gaussian.plain import HEINSEN
from capsroute.form.gaussian.stored import StoredVotes
from capsroute.form.gaussian.whole import whole_backward, whole_forward
from capsroute.form.launch import LaunchSequence, on_device
from capsroute.form.launches.gaussian_votes import (
    columns,
    first_walk,
    grid,
    last_walk,
    over_betas,
    over_plane,
    parents_fit,
    put_together,
    route_walk,
    slopes_walk,
    whole_walk,
)
from capsroute.form.sizes import Sizes, power_of_2, sizes_of


def loop_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why all iterations are not one operator, if anything."""
    found = stored_reasons(u, W)
    if makes_votes(sizes_of(u, W), W.shape[0] == 1):
        found.append("steps of so large a layer make their votes in registers")
    return found


@on_device
def loop_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, scores: Tensor, use: Tensor, other: Tensor, scale: Tensor | None,
    rates: Sequence[float], eps: float, kind: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Means, spreads [b,j,a,o], logits [b,j], shares [t-1,b,i,j]; statistics [t,b,3,j,a*o] and brief ones [t,b,3,j].

    Scores [b,i] and betas are read in their own dtypes.
    """
    T, F = len(rates), u.shape[2] * W.shape[3]
    use, other = use.contiguous(), other.contiguous()
    scales, step = use if scale is None else scale, W.shape[1] if use.shape[0] > 1 else 0
    stored = StoredVotes(
        u, W, bias, (use, other, scales), T, kind, scale is None, step, use.dtype, other.dtype, "forward",
        scores=scores, logits=kind == HEINSEN,
    )  # fmt: skip
    s, run, gate = stored.sizes, stored.run, stored.gate
    new = functools.partial(torch.empty, dtype=torch.float32, device=u.device)
    statistics, brief, shares = new((T, s.b, 3, s.j, F)), new((T, s.b, 3, s.j)), new((T - 1, s.b, s.i, s.j))
    means, spreads, logits = new((s.b, s.j, s.a, s.o)), new((s.b, s.j, s.a, s.o)), new((s.b, s.j))
    read, made = (gate, use, other), (means, spreads, logits)
    numbers, flags = (eps, step), {"KIND": kind, "SCALE": scale is not None}
    for b0, part, votes in stored.groups():
        whole, sizes = whole_walk(part, T), (b0, s.b, s.i, s.j)
        if whole:
            run(
                whole_forward, whole, votes, *read, scales, statistics, brief, shares, *made, *sizes, whole.tiles,
                *numbers, *_four(rates), **flags,
            )  # fmt: skip
        elif not parents_fit(part):
            tiled = columns(part)
            for t in range(T):
                run(
                    fit_columns, tiled, votes, *read, scales, statistics, brief, shares, *made, *sizes, tiled.tiles, t,
                    T - 1, rates[t], *numbers, **flags,
                )  # fmt: skip
                if t < T - 1:
                    run(share_plane, over_plane(part), shares, brief, *sizes, t)
        else:
            launch = route_walk(part)
            S, parents = launch.splits, put_together(part, launch.splits)
            first, once = first_walk(part, S), parents.options["IC"] >= S
            rows, few = new((S, s.b, 3, s.j, F)), new((S, s.b, 2, s.j))
            for t in range(T):
                if t == 0:
                    run(begin, first, votes, *read, rows, few, *sizes, first.tiles, step, KIND=kind)
                else:
                    run(
                        route, launch, votes, *read, statistics, brief, shares[t - 1], rows, few, *sizes, launch.tiles,
                        t, *numbers, KIND=kind,
                    )  # fmt: skip
                run(
                    believe, parents, use, other, scales, rows, few, statistics, brief, *made, b0, s.b, s.j, S, t,
                    rates[t], eps, KIND=kind, ONCE=once, SCALE=scale is not None, LAST=t == T - 1,
                )  # fmt: skip
    run.end()
    return means, spreads, logits, shares, statistics, brief


@on_device
def loop_backward(
    grads: Sequence[Tensor | None], tensors: tuple, kept: tuple[Tensor, ...], rates: Sequence[float], eps: float,
    kind: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients by u, W, bias, scores, use, other and scale."""
    (u, W, bias, scores, use, other, scale), (shares, statistics, brief) = tensors, kept
    T, F = len(rates), u.shape[2] * W.shape[3]
    use, other = use.contiguous(), other.contiguous()
    scales, g_shares = brief if scale is None else scale, grads[3]
    given = [None if g is None else g.contiguous() for g in grads[:3]]
    flags = dict(zip(("MEAN", "SPREAD", "LOGIT"), (g is not None for g in given)))
    bits = sum(known << n for n, known in enumerate(flags.values()))
    outer = [brief if g is None else g for g in given]
    strides = (0, 0, 0) if g_shares is None else g_shares.stride()[1:]
    step, by_R = W.shape[1] if use.shape[0] > 1 else 0, brief if g_shares is None else g_shares
    stored = StoredVotes(
        u, W, bias, (use, other, scales, shares, *outer, by_R, *strides), T, kind, scale is None, step, use.dtype,
        other.dtype, *flags.values(), g_shares is None, "backward", scores=scores, logits=kind == HEINSEN,
    )  # fmt: skip
    s, run, gate = stored.sizes, stored.run, stored.gate
    new = functools.partial(torch.empty, dtype=torch.float32, device=u.device)
    table, table_few = new((T, s.b, 2, s.j, F)), new((T, s.b, 3, s.j))
    tiles = 1 if whole_walk(s, T) else last_walk(s, T).grid[2]
    slope, by_gate = new((T - 1, s.b, s.i, s.j)), new((s.b, s.i))
    by_score = new((tiles, s.b, s.i), dtype=scores.dtype if tiles == 1 else torch.float32)
    by_shares = [gate] * (T - 1) if g_shares is None else list(g_shares)
    numbers, how, shared = (eps, step), {"KIND": kind, "SCALE": scale is not None}, g_shares is not None
    for b0, part, votes in stored.groups():
        whole, sizes = whole_walk(part, T), (b0, s.b, s.i, s.j)
        if whole:
            run(
                whole_backward, whole, votes, gate, use, other, scales, statistics, brief, shares, by_R, *outer, slope,
                by_gate, by_score, table_few, *sizes, whole.tiles, *numbers, bits, *_four(rates),
                0 if g_shares is None else g_shares.stride(0), *strides, **how, SHARES=shared,
            )  # fmt: skip
            stored.go_back(b0, part, votes)
            continue
        if not parents_fit(part):
            tiled = columns(part)
            for t in range(T - 1, -1, -1):
                run(
                    blame_columns, tiled, votes, use, other, scales, statistics, brief, *outer, slope, table, table_few,
                    *sizes, tiled.tiles, t, T - 1, bits, rates[t], *numbers, **how,
                )  # fmt: skip
                if t:
                    run(
                        slope_plane, over_plane(part), slope, shares, by_shares[t - 1], gate, other, table_few, by_gate,
                        *sizes, t, T - 1, step, *strides, KIND=kind, SHARES=shared,
                    )  # fmt: skip
        else:
            launch = slopes_walk(part)
            parents = put_together(part, launch.splits)
            rows, few = new((launch.splits, s.b, 2, s.j, F)), new((launch.splits, s.b, s.j))
            for t in range(T - 1, -1, -1):
                run(
                    blame, parents, statistics, brief, use, scales, *outer, brief, rows, few, table, table_few, b0, s.b,
                    s.j, launch.splits, t, rates[t], eps, **how, LAST=t == T - 1, **flags, TOTAL=False,
                )  # fmt: skip
                if t:
                    run(
                        slopes, launch, votes, gate, use, other, statistics, brief, table, table_few, shares[t - 1],
                        by_shares[t - 1], rows, few, slope[t - 1], by_gate, *sizes, launch.tiles, t, *numbers, *strides,
                        KIND=kind, LAST=t == T - 1, SHARES=shared,
                    )  # fmt: skip
            del rows, few  # their place is for what goes back
        last = last_walk(part, T)
        run(
            last_gradients, last, votes, gate, use, other, statistics, brief, table, table_few, shares, slope, by_gate,
            by_score, *sizes, last.tiles, *numbers, KIND=kind,
        )  # fmt: skip
        stored.go_back(b0, part, votes)
    by_scale = gate.new_empty(0)
    if kind == HEINSEN:
        by_use, by_other = _betas(run, s, shares, gate, table_few, use, other, T)
        if scale is not None:
            by_scale = (table_few[:, :, 2].sum((0, 2)) / scale.view(-1)).view_as(scale)
    else:
        by_use, by_other = torch.empty_like(use), torch.empty_like(other)
        tile = min(8, power_of_2(s.j))
        launch = grid((s.j, tile), BT=min(256, power_of_2(T * s.b)), JT=tile, num_warps=4)
        run(cost_sums, launch, table_few, by_other, by_use, T * s.b, s.j, KIND=kind)
    run.end()
    by_scores = by_score[0] if tiles == 1 else by_score.sum(0).to(scores.dtype)
    return *stored.gradients(), by_scores, by_use, by_other, by_scale


def _four(rates: Sequence[float]) -> list[float]:
    """Rates of the iterations that one kernel makes, at most four."""
    return [float(rate) for rate in (*rates, 0, 0, 0, 0)[:4]]


def _betas(
    run: LaunchSequence, s: Sizes, shares: Tensor, gate: Tensor, table_few: Tensor, use: Tensor, other: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    launch = over_betas(s, iterations)
    alone = launch.splits == 1 and use.shape[0] == s.i
    both = [t.new_empty((launch.splits, s.i, s.j), dtype=t.dtype if alone else gate.dtype) for t in (use, other)]
    run(beta_sums, launch, shares, gate, table_few, *both, s.b, s.i, s.j, launch.tiles)
    if alone:
        return both[0][0], both[1][0]
    axes = (0, 1) if use.shape[0] == 1 else 0
    by_use, by_other = (part.sum(axes).view_as(t).to(t.dtype) for part, t in zip(both, (use, other)))
    return by_use, by_other
