"""Steps of EM and Heinsen routing from the kernels that make votes in registers, and their gradients.

Tables of what parents bring are [b, rows, j], planes [b, i, j] of any strides. Poses come out as [b,j,a,o] and lie in
memory as [b,a,o,j], in which order the kernels read them again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.gaussian.registers.gradients import beta_gradient, vote_gradients
from capsroute.form.gaussian.registers.kernels import quadratic, weighted_moments
from capsroute.form.gaussian.registers.tables import (
    density_table,
    merge_moments,
    moments_table,
    parents_gradient,
    sum_parts,
)
from capsroute.form.launch import Launch, kind_of, on_device
from capsroute.form.plan import Sizes, cdiv, power_of_2, sizes_of

__all__ = ["moments_backward", "moments_forward", "step_backward", "step_forward"]

# Kernel: most parents in a tile, children in it, programs to aim at; timed on an H200. One warp holds 64 parents.
TILES = {"quadratic": (64, 2, 4096), "weighted_moments": (32, 1, 2048), "vote_gradients": (32, 1, 2048)}

Grads = Sequence[Tensor | None]  # of the outputs; None: zero


@functools.lru_cache(maxsize=256)
def launch_of(kernel: str, s: Sizes, whole: bool = False) -> Launch:
    """Children are split over programs until there are enough; `whole`: one tile holds all parents."""
    most, children, programs = TILES[kernel]
    parents = power_of_2(s.j) if whole else min(power_of_2(s.j), most)
    children = max(children, 32 // parents)
    chunks, tiles = cdiv(s.i, children), cdiv(s.j, parents)
    walk = min(chunks, cdiv(chunks * s.b * tiles, programs))
    splits = cdiv(chunks, walk)
    options = {"A": s.a, "K": s.k, "O": s.o, "IC": children, "JT": parents, "num_warps": max(1, parents // 64)}
    return Launch((s.b, splits, tiles), walk, splits, options)


class Voters(NamedTuple):
    """Children u [b,i,a,k], transforms [1, k*o, j], a bias [1, a*o, j] or, where there is none, W again.

    All in float32, whatever dtype children came in: the kernels, which take long to compile, are then the same.
    """

    s: Sizes
    u: Tensor
    W: Tensor
    bias: Tensor
    has_bias: bool
    dtype: torch.dtype


def voters(u: Tensor, W: Tensor, bias: Tensor | None) -> Voters:
    children, Wt = u.float().contiguous(), W.permute(0, 2, 3, 1).float().contiguous()
    biases = Wt if bias is None else bias.permute(0, 2, 3, 1).float().contiguous()
    return Voters(sizes_of(u, W), children, Wt, biases, bias is not None, u.dtype)


class Softmax(NamedTuple):
    """A softmax over parents to go back through: R [b,i,j], the gate [b,i] it is multiplied by, the gradient of R."""

    R: Tensor
    gate: Tensor
    given: Tensor | None


def quadratic_plane(
    v: Voters, table: Tensor, then: str = "store", back: Softmax | None = None, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The plane of a quadratic and, where asked for, a sum over parents [b,i]; the other is empty.

    then: "store" it, store its "softmax", go "back" through one (and sum R * plane), or only "sum" it.
    """
    s, u = v.s, v.u
    out = u.new_empty((s.b, s.i, s.j) if then != "sum" else 0, dtype=torch.float32)
    total = out.new_empty((s.b, s.i) if then in ("back", "sum") else 0)
    R, gate, given = (out, out, None) if back is None else back
    grad, strides = (out, (0, 0, 0)) if given is None else (given, given.stride())
    betas = out if beta is None else beta
    launch = launch_of("quadratic", s, then != "store")
    kind = kind_of(u, v.W, v.bias, R, gate, betas, grad, *strides)
    quadratic(
        launch, kind, u, v.W, v.bias, table, R, gate, betas, grad, out, total, s.i, s.j, launch.tiles, *strides,
        BIAS=v.has_bias, LINEAR=table.shape[1] > 2 * s.a * s.o + 1, BETA=beta is not None,
        GIVEN=given is not None, SOFTMAX=then == "softmax", BACKWARD=then == "back", SUMMED=then == "sum",
    )  # fmt: skip
    return out, total


def moments(
    v: Voters, plane: Tensor, gate: Tensor | None, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b, a*o, j], sums of weights and (empty without) of weights * beta [b,j], rests [b, a*o, j]."""
    s, u, F = v.s, v.u, v.s.a * v.s.o
    launch = launch_of("weighted_moments", s)
    part = u.new_empty((launch.splits, s.b, 1 + (beta is not None) + 3 * F, s.j), dtype=torch.float32)
    gates, betas = (part if t is None else t for t in (gate, beta))
    kind = kind_of(u, v.W, v.bias, plane, gates, betas, *plane.stride())
    weighted_moments(
        launch, kind, u, v.W, v.bias, plane, gates, betas, part, s.b, s.i, s.j, launch.tiles, *plane.stride(),
        BIAS=v.has_bias, GATE=gate is not None, BETA=beta is not None,
    )  # fmt: skip
    mean, variance, rests = (part.new_empty((s.b, F, s.j)) for _ in range(3))
    totals, dots = part.new_empty((s.b, s.j)), part.new_empty((s.b, s.j) if beta is not None else 0)
    merge = _merge_launch(s.b, F, s.j, launch.splits)
    merge_moments(
        merge, kind_of(part), part, mean, variance, totals, dots, rests, s.b, s.j, launch.splits, eps,
        BETA=beta is not None,
    )  # fmt: skip
    return mean, variance, totals, dots, rests


class Gradients(NamedTuple):
    """By u [b,i,a,k], W [1,j,k,o], bias [1,j,a,o] (empty without one); parts of a density's sums."""

    u: Tensor
    W: Tensor
    bias: Tensor
    sums: Tensor


def gradients(
    v: Voters, dtype: torch.dtype, weighed: Tensor | None = None, plane: Tensor | None = None,
    gate: Tensor | None = None, dense: Tensor | None = None, slope: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """Gradients of votes that were weighed (table, plane, gate), asked for their density (table, slope), or both."""
    s, u, F = v.s, v.u, v.s.a * v.s.o
    launch = launch_of("vote_gradients", s)
    _, splits, tiles = launch.grid
    rows = s.k * s.o + (F if v.has_bias else 0)
    du = u.new_empty((tiles, s.b, s.i, s.a, s.k), dtype=torch.float32)
    dW = u.new_empty((splits, s.b, rows, s.j), dtype=torch.float32)
    sums = dW.new_empty((splits, s.b, 1 + 2 * F, s.j) if dense is not None else 0)
    given = [du if t is None else t for t in (weighed, dense, plane, gate, slope)]
    strides = [stride for t in (plane, slope) for stride in ((0, 0, 0) if t is None else t.stride())]
    vote_gradients(
        launch, kind_of(u, v.W, v.bias, *given, *strides), u, v.W, v.bias, *given, du, dW, sums, s.b, s.i, s.j,
        launch.tiles, *strides, BIAS=v.has_bias, WEIGHED=weighed is not None, GATE=gate is not None,
        BETA=weighed is not None and weighed.shape[1] > 3 * F + 1, DENSITY=dense is not None,
    )  # fmt: skip
    by_u = du[0] if tiles == 1 else du.sum(0)
    by_W = _sum_parts(dW).unsqueeze(0)  # [1, rows, j]
    g_bias = _as_transforms(by_W[:, s.k * s.o :], s.a, s.o, dtype) if v.has_bias else u.new_empty(0, dtype=v.dtype)
    by_W = _as_transforms(by_W[:, : s.k * s.o], s.k, s.o, dtype)
    return Gradients(by_u.to(v.dtype), by_W, g_bias, sums)


def _as_transforms(rows: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """[1, rows, j] -> a new [1, j, height, width]."""
    rows = rows.unflatten(1, (height, width)).permute(0, 3, 1, 2)
    return rows.to(dtype, copy=True, memory_format=torch.contiguous_format)


def beta_sums(plane: Tensor, gate: Tensor | None, dots: Tensor) -> Tensor:
    """Sums over samples of gate[b,i] plane[b,i,j] dots[b,j]: [i,j]."""
    (b, i, j), gates = plane.shape, plane if gate is None else gate
    out = dots.new_empty((i, j))
    kind = kind_of(plane, gates, dots, *plane.stride())
    beta_gradient(_beta_launch(i, j), kind, plane, gates, dots, out, b, i, j, *plane.stride(), GATE=gate is not None)
    return out


def density_rows(mean: Tensor, variance: Tensor, prior: Tensor | None = None) -> Tensor:
    """The table of a log-density, from rows [b, a*o, j] of any strides and prior [b,j]."""
    b, F, j = mean.shape
    out = mean.new_empty((b, 2 * F + 1, j))
    priors = out if prior is None else prior.contiguous()
    strides = (*mean.stride(), *variance.stride())
    density_table(
        _table_launch(b, F, j), kind_of(mean, variance, priors, *strides), mean, variance, priors, out, j, *strides,
        PRIOR=prior is not None,
    )  # fmt: skip
    return out


def moments_rows(
    grads: Sequence[Tensor | None], mean: Tensor, variance: Tensor, total: Tensor, rests: Tensor, eps: float, beta: bool
) -> Tensor:
    """The table of the gradient by weights, from gradients of mean, variance (rows of any strides), total and dots."""
    b, F, j = mean.shape
    out = mean.new_empty((b, 3 * F + 1 + beta, j))
    given = [out if g is None else g if n < 2 else g.contiguous() for n, g in enumerate(grads)]
    strides = [stride for g in grads[:2] for stride in ((0, 0, 0) if g is None else g.stride())]
    MEAN, VARIANCE, TOTAL, DOTS = (g is not None for g in grads)
    moments_table(
        _table_launch(b, F, j), kind_of(mean, variance, total, rests, *given, *strides), *given, mean, variance, total,
        rests, out, j, eps, *strides, MEAN=MEAN, VARIANCE=VARIANCE, TOTAL=TOTAL, BETA=beta, DOTS=DOTS,
    )  # fmt: skip
    return out


def by_parents(part: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by prior [b,j], mean and variance [b, a*o, j] from parts of sums; variance in rows of any strides."""
    (splits, b, _, j), F = part.shape, variance.shape[1]
    by_mean, by_variance = (part.new_empty((b, F, j)) for _ in range(2))
    prior = part.new_empty((b, j))
    parents_gradient(
        _merge_launch(b, F, j, splits), kind_of(variance, *variance.stride()), part, variance, by_mean, by_variance,
        prior, b, j, splits, *variance.stride(),
    )  # fmt: skip
    return prior, by_mean, by_variance


def _sum_parts(part: Tensor) -> Tensor:
    """The sum over the first two axes."""
    shape = part.shape[2:]
    parts, size = part.shape[:2].numel(), shape.numel()
    if parts == 1:
        return part.view(shape)
    out = part.new_empty(shape)
    sum_parts(_sum_launch(parts, size), kind_of(part), part, out, parts, size)
    return out


@functools.lru_cache(maxsize=256)
def _sum_launch(parts: int, size: int) -> Launch:
    return Launch((cdiv(size, 16), 1, 1), 1, 1, {"SP": 128 if parts > 64 else 32, "NT": 16, "num_warps": 4})


@functools.lru_cache(maxsize=256)
def _merge_launch(b: int, rows: int, j: int, splits: int) -> Launch:
    tile = {"F": rows, "SP": 32 if splits > 16 else 16, "JT": 32, "num_warps": 4}
    return Launch((b, rows, cdiv(j, 32)), 1, splits, tile)


@functools.lru_cache(maxsize=256)
def _table_launch(b: int, rows: int, j: int) -> Launch:
    return Launch((b, cdiv(j, 32), 1), 1, 1, {"F": rows, "FP": power_of_2(rows), "JT": 32, "num_warps": 4})


@functools.lru_cache(maxsize=256)
def _beta_launch(i: int, j: int) -> Launch:
    return Launch((cdiv(i, 8), cdiv(j, 64), 1), 1, 1, {"IC": 8, "JT": 64, "num_warps": 4})


@on_device
def moments_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b,j,a,o] with weights [b,i,j or 1]; sums of weights and (empty without) weights * beta.

    The last, rests [b, a*o, j], is for the gradient: sums of weights times distances from the mean.
    """
    v = voters(u, W, bias)
    mean, variance, totals, dots, rests = moments(v, _plane(v, weights), None, _whole(beta), eps)
    return _poses(mean, v.s), _poses(variance, v.s), totals, dots, rests


@on_device
def moments_backward(
    grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by u, W, bias, weights and beta, from those of the outputs (None: zero); empty for what is None."""
    u, W, bias, weights, beta = tensors
    v, beta = voters(u, W, bias), _whole(beta)
    plane, table = _plane(v, weights), _moments_table(grads, kept, eps, beta)
    alike = weights.shape[2] == 1
    by_weights, summed = quadratic_plane(v, table, "sum" if alike else "store", beta=beta)
    by_weights = summed.unsqueeze(2) if alike else by_weights
    by_u, by_W, by_bias, _ = gradients(v, W.dtype, weighed=table, plane=plane)
    return by_u, by_W, by_bias, by_weights, _by_beta(plane, None, grads[3], beta)


@on_device
def step_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """R = softmax over parents of log-density + prior[b,j], then the moments with weights gate[b,i] * R."""
    v = voters(u, W, bias)
    R, _ = quadratic_plane(v, density_rows(_rows(mean), _rows(variance), prior), "softmax")
    mean, variance, totals, dots, rests = moments(v, R, gate.contiguous(), _whole(beta), eps)
    return R, _poses(mean, v.s), _poses(variance, v.s), totals, dots, rests


@on_device
def step_backward(grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float) -> tuple[Tensor, ...]:
    """Gradients by u, W, bias, gate, mean, variance, prior and beta."""
    (u, W, bias, gate, mean, variance, _, beta), (R, *found) = tensors, kept
    v, gate, R, beta = voters(u, W, bias), gate.contiguous(), R.contiguous(), _whole(beta)
    weighed = _moments_table(grads[1:5], found, eps, beta)
    slope, by_gate = quadratic_plane(v, weighed, "back", Softmax(R, gate, grads[0]), beta)
    dense = density_rows(_rows(mean), _rows(variance))
    by_u, by_W, by_bias, sums = gradients(v, W.dtype, weighed, R, gate, dense, slope)
    by_prior, by_mean, by_variance = by_parents(sums, _rows(variance))
    by_mean, by_variance = _poses(by_mean, v.s), _poses(by_variance, v.s)
    return by_u, by_W, by_bias, by_gate, by_mean, by_variance, by_prior, _by_beta(R, gate, grads[4], beta)


def _rows(poses: Tensor) -> Tensor:
    return poses.flatten(2).mT  # [b, a*o, j]


def _poses(rows: Tensor, s: Sizes) -> Tensor:
    return rows.unflatten(1, (s.a, s.o)).permute(0, 3, 1, 2)


def _whole(beta: Tensor | None) -> Tensor | None:
    return None if beta is None else beta.contiguous()


def _plane(v: Voters, weights: Tensor) -> Tensor:
    return weights.expand(-1, -1, v.s.j)


def _moments_table(grads: Grads, found: Sequence[Tensor], eps: float, beta: Tensor | None) -> Tensor:
    """From gradients of mean, variance, total and dots; found are those and the rests."""
    mean, variance, total, _, rests = found
    mean, variance = _rows(mean).contiguous(), _rows(variance).contiguous()
    rows = [None if g is None else _rows(g) for g in grads[:2]]
    return moments_rows([*rows, *grads[2:4]], mean, variance, total, rests, eps, beta is not None)


def _by_beta(plane: Tensor, gate: Tensor | None, dots: Tensor | None, beta: Tensor | None) -> Tensor:
    if beta is None:
        return plane.new_empty(0)
    return torch.zeros_like(beta) if dots is None else beta_sums(plane, gate, dots.contiguous())
