"""Calls of the Gaussian kernels: what they fill is made here, and what their programs leave is put together.

Tables of what parents bring are [b, rows, j], planes [b, i, j] of any strides.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.gaussian.gradients import beta_gradient, vote_gradients
from capsroute.form.gaussian.kernels import power_sums, quadratic, weighted_moments
from capsroute.form.gaussian.plan import gaussian_launch, reads_votes
from capsroute.form.gaussian.stored import products_backward, stored_gradients, stored_votes
from capsroute.form.gaussian.sums import merge_moments, sum_parts
from capsroute.form.gaussian.tables import density_table, moments_table, parents_gradient
from capsroute.form.launch import Launch, kind_of
from capsroute.form.plan import Sizes, cdiv, power_of_2, sizes_of

__all__ = [
    "Gradients",
    "Softmax",
    "Voters",
    "beta_sums",
    "by_parents",
    "density_rows",
    "gradients",
    "moments",
    "moments_rows",
    "quadratic_plane",
    "sums_about",
    "voters",
]


class Voters(NamedTuple):
    """Children u [b,i,a,k], transforms [i or 1, k*o, j], a bias [i or 1, a*o, j] or, where there is none, W again.

    All in float32, whatever dtype children came in: the kernels, which take long to compile, are then the same.
    `votes` are there, `apart` for samples and children, where that is cheaper than making them in every pass.
    """

    s: Sizes
    shared: bool
    u: Tensor
    W: Tensor
    bias: Tensor
    has_bias: bool
    dtype: torch.dtype
    votes: Tensor | None
    apart: tuple[int, int]

    @property
    def read(self) -> Tensor:
        """What passes read: votes or children."""
        return self.u if self.votes is None else self.votes

    @property
    def adds_bias(self) -> bool:
        """Stored votes have theirs already."""
        return self.has_bias and self.votes is None


def voters(u: Tensor, W: Tensor, bias: Tensor | None) -> Voters:
    children, Wt = u.float().contiguous(), W.permute(0, 2, 3, 1).float().contiguous()
    biases = Wt if bias is None else bias.permute(0, 2, 3, 1).float().contiguous()
    s, shared = sizes_of(u, W), W.shape[0] == 1
    votes, apart = None, (0, 0)
    if reads_votes(s, shared):
        votes, apart = stored_votes(s, children, Wt, None if bias is None else biases)
    return Voters(s, shared, children, Wt, biases, bias is not None, u.dtype, votes, apart)


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
    launch = gaussian_launch("quadratic", s, v.shared, then != "store", v.votes is not None)
    kind = kind_of(v.read, v.W, v.bias, R, gate, betas, grad, *strides)
    quadratic(
        launch, kind, v.read, v.W, v.bias, table, R, gate, betas, grad, out, total, s.i, s.j, launch.tiles, *v.apart,
        *strides, BIAS=v.adds_bias, LINEAR=table.shape[1] > 2 * s.a * s.o + 1, BETA=beta is not None,
        GIVEN=given is not None, SOFTMAX=then == "softmax", BACKWARD=then == "back", SUMMED=then == "sum",
    )  # fmt: skip
    return out, total


def moments(
    v: Voters, plane: Tensor, gate: Tensor | None, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b, a*o, j], sums of weights and (empty without) of weights * beta [b,j], rests [b, a*o, j]."""
    s, u, F = v.s, v.u, v.s.a * v.s.o
    launch = gaussian_launch("weighted_moments", s, v.shared, stored=v.votes is not None)
    part = u.new_empty((launch.splits, s.b, 1 + (beta is not None) + 3 * F, s.j), dtype=torch.float32)
    gates, betas = (part if t is None else t for t in (gate, beta))
    kind = kind_of(v.read, v.W, v.bias, plane, gates, betas, *plane.stride())
    weighted_moments(
        launch, kind, v.read, v.W, v.bias, plane, gates, betas, part, s.b, s.i, s.j, launch.tiles, *v.apart,
        *plane.stride(), BIAS=v.adds_bias, GATE=gate is not None, BETA=beta is not None,
    )  # fmt: skip
    mean, variance, rests = (part.new_empty((s.b, F, s.j)) for _ in range(3))
    totals, dots = part.new_empty((s.b, s.j)), part.new_empty((s.b, s.j) if beta is not None else 0)
    merge = _merge_launch(s.b, F, s.j, launch.splits)
    merge_moments(
        merge, kind_of(part), part, mean, variance, totals, dots, rests, s.b, s.j, launch.splits, eps,
        BETA=beta is not None,
    )  # fmt: skip
    return mean, variance, totals, dots, rests


def sums_about(v: Voters, plane: Tensor, dense: Tensor) -> Tensor:
    """Parts of the sums over children of plane * (1, pull, pull d) of a density's table: [parts, b, 1 + 2 a*o, j]."""
    s, u = v.s, v.u
    launch = gaussian_launch("power_sums", s, v.shared)
    part = u.new_empty((launch.splits, s.b, 1 + 2 * s.a * s.o, s.j), dtype=torch.float32)
    kind = kind_of(u, v.W, v.bias, plane, dense, *plane.stride())
    power_sums(
        launch, kind, u, v.W, v.bias, plane, dense, part, s.b, s.i, s.j, launch.tiles, *plane.stride(),
        BIAS=v.has_bias,
    )  # fmt: skip
    return part


class Gradients(NamedTuple):
    """By u [b,i,a,k], W [i or 1,j,k,o], bias [i or 1,j,a,o] (empty without one); parts of a density's sums."""

    u: Tensor
    W: Tensor
    bias: Tensor
    sums: Tensor | None


def gradients(
    v: Voters, dtype: torch.dtype, weighed: Tensor | None = None, plane: Tensor | None = None,
    gate: Tensor | None = None, dense: Tensor | None = None, slope: Tensor | None = None,
) -> Gradients:  # fmt: skip
    """Gradients of votes that were weighed (table, plane, gate), asked for their density (table, slope), or both."""
    if v.votes is not None:
        return _stored_gradients(v, v.votes, dtype, weighed, plane, gate, dense, slope)
    s, u, F = v.s, v.u, v.s.a * v.s.o
    launch = gaussian_launch("vote_gradients", s, v.shared)
    held, splits, tiles = launch.grid
    rows = s.k * s.o + (F if v.has_bias else 0)
    du = u.new_empty((tiles, s.b, s.i, s.a, s.k), dtype=torch.float32)
    dW = u.new_empty((splits, held, rows, s.j), dtype=torch.float32)
    summed = v.shared and dense is not None
    sums = dW.new_empty((splits, s.b, 1 + 2 * F, s.j) if summed else 0)
    given = [du if t is None else t for t in (weighed, dense, plane, gate, slope)]
    strides = [stride for t in (plane, slope) for stride in ((0, 0, 0) if t is None else t.stride())]
    vote_gradients(
        launch, kind_of(u, v.W, v.bias, *given, *strides), u, v.W, v.bias, *given, du, dW, sums, s.b, s.i, s.j,
        launch.tiles, *strides, BIAS=v.has_bias, WEIGHED=weighed is not None, GATE=gate is not None,
        BETA=weighed is not None and weighed.shape[1] > 3 * F + 1, DENSITY=dense is not None,
    )  # fmt: skip
    by_u = du[0] if tiles == 1 else du.sum(0)
    by_W = _sum_parts(dW, 2).unsqueeze(0) if v.shared else _sum_parts(dW, 1)  # [i or 1, rows, j]
    g_bias = _as_transforms(by_W[:, s.k * s.o :], s.a, s.o, dtype) if v.has_bias else u.new_empty(0, dtype=v.dtype)
    by_W = _as_transforms(by_W[:, : s.k * s.o], s.k, s.o, dtype)
    return Gradients(by_u.to(v.dtype), by_W, g_bias, sums if summed else None)


def _stored_gradients(
    v: Voters, votes: Tensor, dtype: torch.dtype, weighed: Tensor | None, plane: Tensor | None, gate: Tensor | None,
    dense: Tensor | None, slope: Tensor | None,
) -> Gradients:  # fmt: skip
    """The same from stored votes, whose gradient takes their place; then by matrix products."""
    s, F = v.s, v.s.a * v.s.o
    launch = gaussian_launch("stored_gradients", s, v.shared, stored=True)
    sums = votes.new_empty((launch.splits, s.b, 1 + 2 * F, s.j) if dense is not None else 0)
    given = [sums if t is None else t for t in (weighed, dense, plane, gate, slope)]
    strides = [stride for t in (plane, slope) for stride in ((0, 0, 0) if t is None else t.stride())]
    stored_gradients(
        launch, kind_of(votes, *given, *strides), votes, *given, sums, s.b, s.i, s.j, launch.tiles, *v.apart, *strides,
        WEIGHED=weighed is not None, GATE=gate is not None, BETA=weighed is not None and weighed.shape[1] > 3 * F + 1,
        DENSITY=dense is not None,
    )  # fmt: skip
    by_u, by_W, by_bias = products_backward(s, v.u, v.W, v.has_bias, votes)
    g_bias = votes.new_empty(0, dtype=v.dtype) if by_bias is None else _as_transforms(by_bias, s.a, s.o, dtype)
    by_W = _as_transforms(by_W, s.k, s.o, dtype)
    return Gradients(by_u.to(v.dtype).contiguous(), by_W, g_bias, sums if dense is not None else None)


def _as_transforms(rows: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """[i or 1, rows, j] -> a new [i or 1, j, height, width]."""
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


def _sum_parts(part: Tensor, axes: int) -> Tensor:
    """The sum over the first axes, one or two."""
    shape = part.shape[axes:]
    parts, size = part.shape[:axes].numel(), shape.numel()
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
