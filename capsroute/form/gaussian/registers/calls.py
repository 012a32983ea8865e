"""Steps of EM and Heinsen routing from the kernels that make votes in registers, and their gradients.

Tables of what parents bring are [b, rows, j], planes [b, i, j] of any strides. Poses come out as [b,j,a,o] and lie in
memory as [b,a,o,j], in which order the kernels read them again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.cost import makes_votes
from capsroute.form.gaussian.passes import Grads, gaussian_reasons
from capsroute.form.gaussian.registers import tables
from capsroute.form.gaussian.registers.betas import betas_gradient
from capsroute.form.gaussian.registers.gradients import vote_gradients
from capsroute.form.gaussian.registers.kernels import quadratic, weighted_moments
from capsroute.form.launch import kind_of, on_device
from capsroute.form.launches.gaussian_votes import grid, parts_launch, table_launch, votes_walk
from capsroute.form.rows.totals import add_parts
from capsroute.form.sizes import Sizes, sizes_of


class Voters(NamedTuple):
    """Children u [b,i,a,k], transforms [1, k*o, j], a bias [1, a*o, j] or, where there is none, W again; betas or None.

    All in float32, whatever dtype children came in: the kernels, which take long to compile, are then the same.
    """

    s: Sizes
    u: Tensor
    W: Tensor
    bias: Tensor
    has_bias: bool
    beta: Tensor | None  # [i, j]
    dtypes: tuple[torch.dtype, torch.dtype]  # that u and W came in


def voters(u: Tensor, W: Tensor, bias: Tensor | None, beta: Tensor | None) -> Voters:
    children, Wt = u.float().contiguous(), W.permute(0, 2, 3, 1).float().contiguous()
    biases = Wt if bias is None else bias.permute(0, 2, 3, 1).float().contiguous()
    betas = None if beta is None else beta.contiguous()
    return Voters(sizes_of(u, W), children, Wt, biases, bias is not None, betas, (u.dtype, W.dtype))


def _plane(
    v: Voters, table: Tensor, then: str, R: Tensor | None = None, gate: Tensor | None = None,
    given: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The plane of a quadratic [b,i,j] and a sum over parents [b,i], as `quadratic` says; empty where not asked for."""
    s, beta = v.s, None if then == "softmax" else v.beta
    out = v.u.new_empty((s.b, s.i, s.j) if then != "sum" else 0)
    total = out.new_empty((s.b, s.i) if then in ("back", "sum") else 0)
    plane, gates, betas, grad = (out if t is None else t for t in (R, gate, beta, given))
    strides = (0, 0, 0) if given is None else given.stride()
    launch = votes_walk("quadratic", s, then != "store")
    kind = kind_of(v.u, v.W, v.bias, plane, gates, betas, grad, *strides)
    quadratic(
        launch, kind, v.u, v.W, v.bias, table, plane, gates, betas, grad, out, total, s.i, s.j, launch.tiles, *strides,
        BIAS=v.has_bias, BETA=beta is not None, GIVEN=given is not None, THEN=then,
    )  # fmt: skip
    return out, total


def _moments(v: Voters, plane: Tensor, gate: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """Mean and variance [b,j,a,o], sums of weights and (empty without) of weights * beta [b,j], rests [b, a*o, j]."""
    s, F, BETA, launch = v.s, v.s.a * v.s.o, v.beta is not None, votes_walk("weighted_moments", v.s)
    part = v.u.new_empty((launch.splits, s.b, 1 + BETA + 3 * F, s.j))
    gates, betas = (part if t is None else t for t in (gate, v.beta))
    weighted_moments(
        launch, kind_of(v.u, v.W, v.bias, plane, gates, betas, *plane.stride()), v.u, v.W, v.bias, plane, gates, betas,
        part, s.b, s.i, s.j, launch.tiles, *plane.stride(), BIAS=v.has_bias, GATE=gate is not None, BETA=BETA,
    )  # fmt: skip
    mean, variance, rests = (part.new_empty((s.b, F, s.j)) for _ in range(3))
    totals, dots = part.new_empty((s.b, s.j)), part.new_empty((s.b, s.j) if BETA else 0)
    tables.merge_moments(
        parts_launch(s.b, F, s.j, launch.splits), kind_of(part), part, mean, variance, totals, dots, rests, s.b, s.j,
        launch.splits, eps, BETA=BETA,
    )  # fmt: skip
    return _poses(mean, s), _poses(variance, s), totals, dots, rests


def _gradients(
    v: Voters, weighed: Tensor, plane: Tensor, gate: Tensor | None = None, dense: Tensor | None = None,
    slope: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """By u, W, bias (empty without one), of votes that were weighed; parts of a step's sums (gate, dense, slope)."""
    s, F, launch = v.s, v.s.a * v.s.o, votes_walk("vote_gradients", v.s)
    _, splits, tiles = launch.grid
    du = v.u.new_empty((tiles, s.b, s.i, s.a, s.k))
    dW = v.u.new_empty((splits, s.b, s.k * s.o + v.has_bias * F, s.j))
    sums = dW.new_empty((splits, s.b, 1 + 2 * F, s.j) if dense is not None else 0)
    given = [weighed, *[du if t is None else t for t in (dense, plane, gate, slope)]]
    vote_gradients(
        launch, kind_of(v.u, v.W, v.bias, *given, *plane.stride()), v.u, v.W, v.bias, *given, du, dW, sums, s.b, s.i,
        s.j, launch.tiles, *plane.stride(), BIAS=v.has_bias, BETA=v.beta is not None, STEP=dense is not None,
    )  # fmt: skip
    # A sum over an axis of two takes torch twice as long as theirs.
    by_u = du[0] if tiles == 1 else du[0] + du[1] if tiles == 2 else du.sum(0)
    by_W, by_bias = _sum_parts(dW).split([s.k * s.o, v.has_bias * F])
    by_bias = _as_transforms(by_bias, v, s.a) if v.has_bias else v.u.new_empty(0, dtype=v.dtypes[0])
    return by_u.to(v.dtypes[0]), _as_transforms(by_W, v, s.k), by_bias, sums


def _as_transforms(rows: Tensor, v: Voters, height: int) -> Tensor:
    """[height * o, j] -> a new [1, j, height, o]."""
    rows = rows.view(1, height, v.s.o, v.s.j).permute(0, 3, 1, 2)
    return rows.to(v.dtypes[1], copy=True, memory_format=torch.contiguous_format)


def _sum_parts(part: Tensor) -> Tensor:
    """The sum over the first two axes."""
    shape, parts = part.shape[2:], part.shape[:2].numel()
    if parts == 1:
        return part.view(shape)
    out = part.new_empty(shape)
    launch = grid((out.numel(), 16), SP=128 if parts > 64 else 32, C=16, num_warps=4)
    add_parts(launch, kind_of(part), part, out, out.numel(), parts, 1.0)
    return out


def _density_table(mean: Tensor, variance: Tensor, prior: Tensor) -> Tensor:
    """Of a log-density plus prior [b,j], from poses of any strides."""
    mean, variance, prior = _rows(mean), _rows(variance), prior.contiguous()
    b, F, j = mean.shape
    out, strides = mean.new_empty((b, 2 * F + 1, j)), (*mean.stride(), *variance.stride())
    kind = kind_of(mean, variance, prior, *strides)
    tables.density_table(table_launch(b, F, j), kind, mean, variance, prior, out, j, *strides)
    return out


def _moments_table(grads: Grads, found: Sequence[Tensor], eps: float, v: Voters) -> Tensor:
    """Of the gradient by weights, from those of mean, variance, total and dots; found are these and the rests."""
    mean, variance, total, rests = _rows(found[0]).contiguous(), _rows(found[1]).contiguous(), found[2], found[4]
    b, F, j = mean.shape
    out = mean.new_empty((b, 3 * F + 1 + (v.beta is not None), j))
    poses = [None if g is None else _rows(g) for g in grads[:2]]
    given = [out if g is None else g for g in poses] + [out if g is None else g.contiguous() for g in grads[2:4]]
    strides = [stride for g in poses for stride in ((0, 0, 0) if g is None else g.stride())]
    flags = dict(zip(("MEAN", "VARIANCE", "TOTAL", "DOTS"), (g is not None for g in grads)))
    tables.moments_table(
        table_launch(b, F, j), kind_of(mean, variance, total, rests, *given, *strides), *given, mean, variance, total,
        rests, out, j, eps, *strides, **flags, BETA=v.beta is not None,
    )  # fmt: skip
    return out


def _by_parents(part: Tensor, variance: Tensor, s: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by mean and variance [b,j,a,o] and by prior [b,j], from parts of sums; variance of any strides."""
    variance, splits, F = _rows(variance), part.shape[0], s.a * s.o
    by_mean, by_variance, by_prior = (part.new_empty(n) for n in ((s.b, F, s.j), (s.b, F, s.j), (s.b, s.j)))
    tables.parents_gradient(
        parts_launch(s.b, F, s.j, splits), kind_of(variance, *variance.stride()), part, variance, by_mean, by_variance,
        by_prior, s.b, s.j, splits, *variance.stride(),
    )  # fmt: skip
    return _poses(by_mean, s), _poses(by_variance, s), by_prior


def _rows(poses: Tensor) -> Tensor:
    return poses.flatten(2).mT  # [b, a*o, j]


def _poses(rows: Tensor, s: Sizes) -> Tensor:
    return rows.unflatten(1, (s.a, s.o)).permute(0, 3, 1, 2)


def step_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why a step does not make its votes in registers, if anything."""
    found = gaussian_reasons(u, W)
    s = sizes_of(u, W)
    rows = max(3 * s.a * s.o + 2, s.k * s.o + s.a * s.o)  # of tables and of gradients, for each parent
    if max(s.b * s.j * rows, s.b * s.i * s.a * s.k * -(-s.j // 32)) >= 1 << 31:
        found.append("tables of parents, or gradients of children by tiles of parents, have 2^31 numbers or more")
    if not makes_votes(s, W.shape[0] == 1):
        found.append("votes of this layer are stored, for all iterations together")
    return found


@on_device
def moments_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """Mean and variance [b,j,a,o] with weights [b,i,j or 1]; sums of weights and (empty without) weights * beta.

    The last, rests [b, a*o, j], is for the gradient: sums of weights times distances from the mean.
    """
    return _moments(voters(u, W, bias, beta), weights.expand(-1, -1, W.shape[1]), None, eps)


@on_device
def moments_backward(grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float) -> tuple[Tensor, ...]:
    """Gradients by u, W, bias, weights and beta, from those of the outputs (None: zero); empty for what is None."""
    u, W, bias, weights, beta = tensors
    v, plane, alike = voters(u, W, bias, beta), weights.expand(-1, -1, W.shape[1]), weights.shape[2] == 1
    table = _moments_table(grads, kept, eps, v)
    by_weights, summed = _plane(v, table, "sum" if alike else "store")
    by_votes = _gradients(v, table, plane)[:3]
    return *by_votes, summed.unsqueeze(2) if alike else by_weights, betas_gradient(plane, None, beta, grads[3])


@on_device
def step_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """R = softmax over parents of log-density + prior[b,j], then the moments with weights gate[b,i] * R."""
    v = voters(u, W, bias, beta)
    R, _ = _plane(v, _density_table(mean, variance, prior), "softmax")
    return R, *_moments(v, R, gate.contiguous(), eps)


@on_device
def step_backward(grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float) -> tuple[Tensor, ...]:
    """Gradients by u, W, bias, gate, mean, variance, prior and beta."""
    (u, W, bias, gate, mean, variance, prior, beta), (R, *found) = tensors, kept
    v, gate, R = voters(u, W, bias, beta), gate.contiguous(), R.contiguous()
    weighed = _moments_table(grads[1:5], found, eps, v)
    slope, by_gate = _plane(v, weighed, "back", R, gate, grads[0])
    dense = _density_table(mean, variance, prior)
    *by_votes, sums = _gradients(v, weighed, R, gate, dense, slope)
    return *by_votes, by_gate, *_by_parents(sums, variance, v.s), betas_gradient(R, gate, beta, grads[4])
