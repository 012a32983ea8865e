"""Densities, moments and whole EM steps from the Gaussian kernels, and their gradients.

Tables of what parents bring are [b, rows, j]. Poses come out as [b,j,a,o] and lie in memory as [b,a,o,j], in which
order the kernels read them again.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.kernels.gaussian import power_sums, quadratic
from capsroute.form.kernels.gaussian_gradients import beta_gradient, vote_gradients
from capsroute.form.kernels.gaussian_plan import gaussian_launch
from capsroute.form.kernels.launch import Launch, kind_of, on_device
from capsroute.form.kernels.plan import Sizes, cdiv, sizes_of

__all__ = [
    "density_backward",
    "density_forward",
    "moments_backward",
    "moments_forward",
    "step_backward",
    "step_forward",
]


class Voters(NamedTuple):
    """Children u [b,i,a,k], transforms [i or 1, k*o, j], a bias [i or 1, a*o, j] or, where there is none, W again."""

    s: Sizes
    shared: bool
    u: Tensor
    W: Tensor
    bias: Tensor
    has_bias: bool


def _voters(u: Tensor, W: Tensor, bias: Tensor | None) -> Voters:
    s = sizes_of(u, W)
    Wt = W.permute(0, 2, 3, 1).contiguous()
    biases = Wt if bias is None else bias.permute(0, 2, 3, 1).contiguous()
    return Voters(s, W.shape[0] == 1, u.contiguous(), Wt, biases, bias is not None)


@on_device
def density_forward(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(vote; mean, variance) up to a constant [b,i,j]."""
    return _quadratic(_voters(u, W, bias), _density_table(_rows(mean), _rows(variance)))[0]


@on_device
def density_backward(
    g: Tensor, u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by u, W, bias (empty without one), mean and variance."""
    voters, mean, variance = _voters(u, W, bias), _rows(mean), _rows(variance)
    _, g_mean, g_variance = _parents_gradient(voters, g, mean, variance)
    dense = torch.cat([mean, -variance.reciprocal()], 1)
    return *_vote_gradients(voters, (u, W), None, None, None, dense, g), g_mean, g_variance


@on_device
def moments_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted mean and variance [b,j,a,o]; sums of weights and of weights * beta (empty without one) [b,j]."""
    return _moments(_voters(u, W, bias), weights, None, beta, eps)


@on_device
def moments_backward(
    grads: tuple[Tensor | None, ...], u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None,
    found: tuple[Tensor, Tensor, Tensor], eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by u, W, bias, weights and beta, from those of the outputs (None: zero); empty for what is None."""
    voters = _voters(u, W, bias)
    table, weighed, g_dots = _moments_tables(grads, found, eps, beta)
    g_weights = _quadratic(voters, table, beta=beta, linear=True)[0]
    g_beta = _beta_gradient(weights, None, g_dots, beta)
    return *_vote_gradients(voters, (u, W), weighed, weights, None, None, None), g_weights, g_beta


@on_device
def step_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """R = softmax over parents of log-density + prior[b,j], then the moments with weights gate[b,i] * R."""
    voters = _voters(u, W, bias)
    table = _density_table(_rows(mean), _rows(variance), prior)
    R = _quadratic(voters, table, softmax=True)[0]
    return R, *_moments(voters, R, gate.contiguous(), beta, eps)


@on_device
def step_backward(
    grads: tuple[Tensor | None, ...], u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor,
    variance: Tensor, beta: Tensor | None, R: Tensor, found: tuple[Tensor, Tensor, Tensor], eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients by u, W, bias, gate, mean, variance, prior and beta."""
    voters, gate, mean, variance = _voters(u, W, bias), gate.contiguous(), _rows(mean), _rows(variance)
    table, weighed, g_dots = _moments_tables(grads[1:], found, eps, beta)
    slope, g_gate = _quadratic(voters, table, (R, gate, grads[0]), beta, linear=True)
    g_prior, g_mean, g_variance = _parents_gradient(voters, slope, mean, variance)
    g_beta = _beta_gradient(R, gate, g_dots, beta)
    dense = torch.cat([mean, -variance.reciprocal()], 1)
    by_votes = _vote_gradients(voters, (u, W), weighed, R, gate, dense, slope)
    return *by_votes, g_gate, g_mean, g_variance, g_prior, g_beta


def _rows(poses: Tensor) -> Tensor:
    return poses.float().flatten(2).mT  # [b, a*o, j]


def _poses(rows: Tensor, s: Sizes) -> Tensor:
    return rows.unflatten(1, (s.a, s.o)).permute(0, 3, 1, 2)


def _density_table(mean: Tensor, variance: Tensor, prior: Tensor | None = None) -> Tensor:
    constant = -0.5 * variance.log().sum(1, keepdim=True)
    constant = constant if prior is None else constant + prior.unsqueeze(1)
    return torch.cat([mean, -0.5 / variance, constant], 1)


def _moments(voters: Voters, plane: Tensor, gate: Tensor | None, beta: Tensor | None, eps: float):
    sums = _power_sums(voters, plane, gate, beta, None, FIRST=True)
    divisor = _divisor(sums[:, :1], eps)
    mean = sums[:, 1 if beta is None else 2 :] / divisor
    variance = _power_sums(voters, plane, gate, None, mean, SECOND=True)[:, 1:] / divisor
    dots = sums.new_empty(0) if beta is None else sums[:, 1].clone()
    return _poses(mean, voters.s), _poses(variance, voters.s), sums[:, 0].clone(), dots


def _divisor(total: Tensor, eps: float) -> Tensor:
    total = total + eps
    return torch.where(total == 0, 1.0, total)


def _moments_tables(
    grads: tuple[Tensor | None, ...], found: tuple[Tensor, Tensor, Tensor], eps: float, beta: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tables for the gradient by weights and for the gradient by votes; and that of weighted betas, if any."""
    mean, variance, total = _rows(found[0]), _rows(found[1]), found[2].unsqueeze(1)
    g_mean, g_variance = (torch.zeros_like(mean) if g is None else _rows(g) for g in grads[:2])
    divisor = _divisor(total, eps)
    square = g_variance / divisor
    # With eps the mean is not quite the centre of mass, so the variance has a slope there.
    linear = g_mean / divisor - (2 * eps) * square * mean / divisor
    constant = -(square * variance).sum(1, keepdim=True)
    constant = constant if grads[2] is None else constant + grads[2].unsqueeze(1)
    rows, g_dots = [mean, square, constant, linear], None
    if beta is not None:
        g_dots = torch.zeros_like(found[2]) if grads[3] is None else grads[3].contiguous()
        rows.append(g_dots.unsqueeze(1))
    return torch.cat(rows, 1), torch.cat([mean, 2 * square, linear], 1), g_dots


def _parents_gradient(voters: Voters, slope: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by prior [b,j], mean and variance [b,j,a,o] of log-densities whose gradient is slope [b,i,j]."""
    sums = _power_sums(voters, slope, None, None, mean.contiguous(), FIRST=True, SECOND=True)
    total, first, second = sums[:, :1], *sums[:, 1:].chunk(2, 1)
    precision = variance.reciprocal()
    g_variance = 0.5 * precision * (precision * second - total)
    return total.squeeze(1).clone(), _poses(precision * first, voters.s), _poses(g_variance, voters.s)


def _quadratic(
    voters: Voters, table: Tensor, softmax_of: tuple[Tensor, Tensor, Tensor | None] | None = None,
    beta: Tensor | None = None, linear: bool = False, softmax: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The quadratic [b,i,j]; its softmax; or, with softmax_of = (R, gate, gradient of R), the gradient before it."""
    s, u = voters.s, voters.u
    out = u.new_empty((s.b, s.i, s.j), dtype=torch.float32)
    R, gate, given = (out, out, None) if softmax_of is None else softmax_of
    g_gate = out.new_empty((s.b, s.i) if softmax_of is not None else 0)
    betas, grad = (out if t is None else t for t in (beta.contiguous() if beta is not None else None, given))
    strides = (0, 0, 0) if given is None else given.stride()
    launch = gaussian_launch("quadratic", s, voters.shared, softmax or softmax_of is not None)
    kind = kind_of(u, voters.W, voters.bias, R, gate, betas, grad, *strides)
    quadratic(
        launch, kind, u, voters.W, voters.bias, table, R, gate, betas, grad, out, g_gate, s.i, s.j, launch.tiles,
        *strides, BIAS=voters.has_bias, LINEAR=linear, BETA=beta is not None, GIVEN=given is not None, SOFTMAX=softmax,
        BACKWARD=softmax_of is not None,
    )  # fmt: skip
    return out, g_gate


def _power_sums(
    voters: Voters, plane: Tensor, gate: Tensor | None, beta: Tensor | None, centres: Tensor | None,
    FIRST: bool = False, SECOND: bool = False,
) -> Tensor:  # fmt: skip
    s, u = voters.s, voters.u
    launch = gaussian_launch("power_sums", s, voters.shared)
    rows = 1 + (beta is not None) + s.a * s.o * (FIRST + SECOND)
    part = u.new_empty((launch.splits, s.b, rows, s.j), dtype=torch.float32)
    gates, betas, centre = (
        part if t is None else t for t in (gate, beta.contiguous() if beta is not None else None, centres)
    )
    kind = kind_of(u, voters.W, voters.bias, plane, gates, betas, *plane.stride())
    power_sums(
        launch, kind, u, voters.W, voters.bias, plane, gates, betas, centre, part, s.b, s.i, s.j, launch.tiles,
        *plane.stride(), BIAS=voters.has_bias, CENTRED=centres is not None, GATE=gate is not None,
        BETA=beta is not None, FIRST=FIRST, SECOND=SECOND,
    )  # fmt: skip
    return part[0] if launch.splits == 1 else part.sum(0)


def _vote_gradients(
    voters: Voters, like: tuple[Tensor, Tensor], weighed: Tensor | None, plane: Tensor | None, gate: Tensor | None,
    dense: Tensor | None, slope: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by u, W and bias (empty without one), in the dtypes of `like`."""
    s, u = voters.s, voters.u
    launch = gaussian_launch("vote_gradients", s, voters.shared)
    held, splits, tiles = launch.grid
    rows = s.k * s.o + (s.a * s.o if voters.has_bias else 0)
    du = u.new_empty((tiles, s.b, s.i, s.a, s.k), dtype=torch.float32)
    dW = u.new_empty((held, splits, rows, s.j), dtype=torch.float32)
    tables = [du if t is None else t for t in (weighed, dense)]
    planes = [du if t is None else t for t in (plane, gate, slope)]
    strides = [stride for t in (plane, slope) for stride in ((0, 0, 0) if t is None else t.stride())]
    kind = kind_of(u, voters.W, voters.bias, *planes, *strides)
    vote_gradients(
        launch, kind, u, voters.W, voters.bias, *tables, *planes, du, dW, s.b, s.i, s.j, launch.tiles, *strides,
        BIAS=voters.has_bias, WEIGHED=weighed is not None, GATE=gate is not None, DENSITY=dense is not None,
    )  # fmt: skip
    by_u = du[0] if tiles == 1 else du.sum(0)
    by_W = dW.sum((0, 1)).unsqueeze(0) if voters.shared else dW.sum(1)  # [i or 1, rows, j]
    g_W = _transforms(by_W[:, : s.k * s.o], s.k, s.o, like[1].dtype)
    g_bias = _transforms(by_W[:, s.k * s.o :], s.a, s.o, like[1].dtype) if voters.has_bias else u.new_empty(0)
    return by_u.to(like[0].dtype), g_W, g_bias


def _transforms(rows: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """[i or 1, rows, j] -> a new [i or 1, j, height, width]."""
    rows = rows.unflatten(1, (height, width)).permute(0, 3, 1, 2)
    return rows.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _beta_gradient(plane: Tensor, gate: Tensor | None, g_dots: Tensor | None, beta: Tensor | None) -> Tensor:
    if beta is None or g_dots is None:
        return plane.new_empty(0)
    (b, i, j), out = plane.shape, torch.empty_like(beta, memory_format=torch.contiguous_format)
    gates = plane if gate is None else gate
    launch = _beta_launch(b, i, j)
    kind = kind_of(plane, gates, g_dots, *plane.stride())
    beta_gradient(launch, kind, plane, gates, g_dots, out, b, i, j, *plane.stride(), GATE=gate is not None)
    return out


@functools.lru_cache(maxsize=256)
def _beta_launch(b: int, i: int, j: int) -> Launch:
    return Launch((cdiv(i, 8), cdiv(j, 64), 1), 1, 1, {"IC": 8, "JT": 64, "num_warps": 4})
