"""Log-densities and moments of votes, asked for one at a time, and their gradients: calls of their kernels.

Weights and Gaussians, which anybody may give, are read in float32, whatever they came in.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from capsroute.form.contractions.kernels import operand_reasons
from capsroute.form.gaussian.gradients import blame, density_gradients, weights_gradients
from capsroute.form.gaussian.iterations import believe, density, weigh
from capsroute.form.gaussian.plain import HEINSEN
from capsroute.form.gaussian.registers.betas import betas_gradient
from capsroute.form.gaussian.stored import StoredVotes
from capsroute.form.launch import on_device
from capsroute.form.launches.gaussian_votes import put_together, stored_grid_reasons, walk
from capsroute.form.sizes import sizes_of

MOST_POSE = 1024  # numbers

Grads = Sequence[Tensor | None]  # of the outputs; None: zero


def gaussian_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why no kernel of Gaussians applies, if anything."""
    s = sizes_of(u, W)
    found = operand_reasons(u, W, (s.b, s.j, s.a, s.o))
    if s.b * s.i * s.j >= 1 << 31:
        found.append("children times parents are 2^31 or more, beyond the kernels' 32-bit offsets")
    if s.i * s.j * s.a * s.o >= 1 << 31:
        found.append("votes of one sample are 2^31 numbers or more, beyond the kernels' 32-bit offsets")
    if s.a * s.o > MOST_POSE:
        found.append(f"poses are held in registers: at most {MOST_POSE} numbers, here {s.a} x {s.o}")
    return found


def stored_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why the kernels over stored votes do not apply, if anything."""
    return gaussian_reasons(u, W) + stored_grid_reasons(sizes_of(u, W), W.shape[0] == 1)


@on_device
def density_forward(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(vote; mean, variance) up to a constant [b,i,j]."""
    mean, variance = mean.float().contiguous(), variance.float().contiguous()
    stored = StoredVotes(u, W, bias, (mean, variance), "density")
    s, run = stored.sizes, stored.run
    out = u.new_empty((s.b, s.i, s.j), dtype=torch.float32)
    for first, part, votes in stored.groups():
        launch = walk(part, True)
        run(density, launch, votes, mean, variance, out, first, s.i, s.j, launch.tiles)
    run.end()
    return out


@on_device
def density_backward(grads: Grads, tensors: tuple, kept: tuple) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by u, W, bias (empty without one), mean and variance."""
    (g,), (u, W, bias, mean, variance) = grads, tensors
    assert g is not None
    mean, variance = mean.float().contiguous(), variance.float().contiguous()
    stored = StoredVotes(u, W, bias, (mean, variance, g, *g.stride()), "density back")
    s, run = stored.sizes, stored.run
    by_mean, by_variance = torch.empty_like(mean), torch.empty_like(variance)
    for first, part, votes in stored.groups():
        launch, here = walk(part, True), slice(first, first + part.b)
        splits = launch.splits
        rows, few = votes.new_empty((splits, s.b, 2, s.j, s.a * s.o)), votes.new_empty((splits, s.b, s.j))
        run(
            density_gradients, launch, votes, mean, variance, g, rows, few, first, s.b, s.i, s.j, launch.tiles,
            *g.stride(),
        )  # fmt: skip
        pull, second = rows[:, here].sum(0).unflatten(3, (s.a, s.o)).unbind(1)
        by_mean[here] = -pull
        by_variance[here] = -0.5 / variance[here] * (second + few[:, here].sum(0)[..., None, None])
        stored.go_back(first, part, votes)
    run.end()
    return *stored.gradients(), by_mean, by_variance


@on_device
def moments_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b,j,a,o] with weights [b,i,j or 1]; sums of weights and (empty without) weights * beta.

    The last two are for the gradient: see `iterations`.
    """
    F, plane = u.shape[2] * W.shape[3], weights.float().expand(-1, -1, W.shape[1])
    betas = plane if beta is None else beta.contiguous()
    stored = StoredVotes(u, W, bias, (plane, betas, *plane.stride()), beta is None, "moments")
    s, run = stored.sizes, stored.run
    new = functools.partial(torch.empty, dtype=torch.float32, device=u.device)
    statistics, brief = new((s.b, 3, s.j, F)), new((s.b, 3, s.j))
    mean, variance, dots = new((s.b, s.j, s.a, s.o)), new((s.b, s.j, s.a, s.o)), new((s.b, s.j))
    for first, part, votes in stored.groups():
        launch = walk(part, True)
        rows, few = new((launch.splits, s.b, 3, s.j, F)), new((launch.splits, s.b, 2, s.j))
        run(
            weigh, launch, votes, plane, betas, rows, few, first, s.b, s.i, s.j, launch.tiles, *plane.stride(),
            BETA=beta is not None,
        )  # fmt: skip
        parents = put_together(part, launch.splits)
        run(
            believe, parents, rows, rows, rows, rows, few, statistics, brief, mean, variance, dots, first, s.b, s.j,
            launch.splits, 0, 1.0, eps, KIND=HEINSEN, ONCE=parents.options["IC"] >= launch.splits, SCALE=False,
            LAST=True,
        )  # fmt: skip
    run.end()
    variance, dots = statistics[:, 1].clone().view(mean.shape), dots if beta is not None else dots.new_empty(0)
    return mean, variance, brief[:, 0].clone(), dots, statistics, brief


@on_device
def moments_backward(
    grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by u, W, bias, weights and beta, from those of the outputs (None: zero); empty for what is None."""
    (u, W, bias, weights, beta), (statistics, brief) = tensors, kept
    plane = weights.float().expand(-1, -1, W.shape[1])
    given = [None if g is None or not g.numel() else g.contiguous() for g in grads[:4]]
    flags = dict(zip(("MEAN", "SPREAD", "TOTAL", "LOGIT"), (g is not None for g in given)))
    g_mean, g_variance, g_total, g_dots = (brief if g is None else g for g in given)
    betas = brief if beta is None else beta.contiguous()
    stored = StoredVotes(
        u, W, bias, (plane, betas, g_mean, g_variance, g_total, g_dots, *plane.stride()), beta is None,
        *flags.values(), "moments back",
    )  # fmt: skip
    s, run = stored.sizes, stored.run
    by_weights = u.new_empty((s.b, s.i, s.j), dtype=torch.float32)
    table, table_few = torch.empty_like(statistics[:, :2]), torch.empty_like(brief)
    run(
        blame, put_together(s, 1), statistics, brief, brief, brief, g_mean, g_variance, g_dots, g_total, brief, brief,
        table, table_few, 0, s.b, s.j, 0, 0, 1.0, eps, KIND=HEINSEN, SCALE=False, LAST=True, **flags,
    )  # fmt: skip
    for first, part, votes in stored.groups():
        launch = walk(part, True)
        run(
            weights_gradients, launch, votes, plane, betas, statistics, table, table_few, by_weights, first, s.b, s.i,
            s.j, launch.tiles, *plane.stride(), BETA=beta is not None,
        )  # fmt: skip
        stored.go_back(first, part, votes)
    run.end()
    if weights.shape[2] == 1 < s.j:
        by_weights = by_weights.sum(2, keepdim=True)
    return *stored.gradients(), by_weights.to(weights.dtype), betas_gradient(plane, None, beta, given[3])
