"""Squash: the length of a capsule's pose becomes a probability, its direction stays (Sabour 2017, equation 1)."""

import functools
import math

import torch
from torch import Tensor

from capsroute.form.checks import check_axes, check_floating
from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.dispatch import check_reachable, reachable
from capsroute.form.operations import Operation, is_recorded

SHORT = 1e-4  # below it four terms of a series are exact in float64


def squash(x: Tensor, dims: int | tuple[int, ...] = -1, backend: str = "auto") -> Tensor:
    """x |x| / (1 + |x|^2), the norm taken over `dims`; value and gradient are finite at exactly zero, in float16 too.

    On a GPU it is one kernel where `dims` are neighbours in memory and short; with `backend="torch"` never, nor in a
    compiled graph, where a compiler fuses it with what is around it.

    >>> import torch, capsroute as cr
    >>> cr.squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dims=-1).norm(dim=-1)
    tensor([0.9615, 0.0000])
    """
    check_floating("x", x)
    dims = check_axes("dims", dims, x)
    check_reachable("squash", backend, x.device)
    order = _order(x.shape, x.stride(), dims) if reachable(x.device) and not is_recorded(x) else None
    if order is None:
        return _plain(x, dims)
    copied, *how = order
    found = SQUASH.attempt(backend, x.contiguous() if copied else x, *how, dims)
    return _plain(x, dims) if found is None else found


def _plain(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    wide = x.to(statistics_dtype(x))
    norm, zero = norm_of(wide, dims)
    # n / (1 + n^2), above one as 1 / (n + 1/n): neither n^2 nor 1/n overflows, here or in a derivative.
    short, long = norm.clamp_max(1), norm.clamp_min(1)
    factor = torch.where(norm > 1, 1 / (long + 1 / long), short / (1 + short.square()))
    return (wide * torch.where(zero, 0.0, factor)).to(x.dtype)


def exponential_squash(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """(1 - exp(-|x|)) x / |x|, the norm taken over `dims`: steeper than `cr.squash` near zero, where it is x itself.

    >>> import torch, capsroute as cr
    >>> cr.exponential_squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).norm(dim=-1)
    tensor([0.9933, 0.0000])
    """
    check_floating("x", x)
    dims = check_axes("dims", dims, x)
    wide = x.to(statistics_dtype(x))
    norm, zero = norm_of(wide, dims)
    # Near zero by its series: 1 / norm has no finite derivative at the smallest numbers there are.
    small, large = norm.clamp_max(SHORT), norm.clamp_min(SHORT)
    series = 1 - small * (1 / 2 - small * (1 / 6 - small / 24))
    factor = torch.where(norm > SHORT, -torch.expm1(-large) / large, series)
    return (wide * torch.where(zero, 1.0, factor)).to(x.dtype)


@functools.lru_cache(maxsize=1024)
def _order(
    shape: tuple[int, ...], stride: tuple[int, ...], dims: int | tuple[int, ...]
) -> tuple[bool, int, int, tuple[int, ...] | None] | None:
    """Whether a tensor is copied first; then it lies in memory as [outer, n, inner], n the axes that go together: n,
    inner, and its axes in that order, None for that in which they are.

    None where these are not side by side in memory, nor the last, of which a copy is made.
    """
    own = tuple(range(len(shape)))
    together = [dims % len(shape)] if isinstance(dims, int) else sorted(axis % len(shape) for axis in dims)
    rest = [axis for axis in own if axis not in together]
    length = math.prod(shape[axis] for axis in together)
    rest.sort(key=lambda axis: -stride[axis])  # stable: axes of equal strides stay in order
    first = sum(stride[axis] > stride[together[-1]] for axis in rest)
    axes = (*rest[:first], *together, *rest[first:])
    if _is_contiguous(axes, shape, stride):
        return False, length, math.prod(shape[axis] for axis in rest[first:]), None if axes == own else axes
    return (True, length, 1, None) if (*sorted(rest), *together) == own else None


def _is_contiguous(axes: tuple[int, ...], shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Of a tensor whose axes are put in this order."""
    step = 1
    for axis in reversed(axes):
        if shape[axis] != 1 and stride[axis] != step:
            return False
        step *= shape[axis]
    return True


# x, n, inner, axes, dims
SQUASH = Operation("squash", lambda x, *how: _plain(x, how[-1]), tensors=1, asks=(0, 1), falls_back=True)


def unit(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """x / |x|; zero stays zero.

    >>> import torch
    >>> from capsroute.routing import unit
    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    check_floating("x", x)
    dims = check_axes("dims", dims, x)
    wide = x.to(statistics_dtype(x))
    norm, _ = norm_of(wide, dims)
    return (wide / norm).to(x.dtype)


def lengths(poses: Tensor) -> Tensor:
    """The length of each pose [..., a, o] -> [...], with gradient zero at zero.

    >>> import torch
    >>> from capsroute.routing import lengths
    >>> lengths(torch.ones(2, 10, 1, 16)).shape
    torch.Size([2, 10])
    """
    check_floating("poses", poses)
    if reachable(poses.device) and not is_recorded(poses) and poses.is_contiguous():
        found = LENGTHS.attempt("auto", poses)
        if found is not None:
            return found
    return plain_lengths(poses)


def plain_lengths(x: Tensor, dims: int | tuple[int, ...] = (-2, -1)) -> Tensor:
    """Euclidean norm without these axes, without kernels; gradient zero at zero."""
    norm, zero = norm_of(x.to(statistics_dtype(x)), dims)
    return torch.where(zero, 0.0, norm).squeeze(dims).to(x.dtype)


LENGTHS = Operation("lengths", plain_lengths, tensors=1, falls_back=True)


def norm_of(x: Tensor, dims: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Euclidean norm with kept axes, one where it is zero, and where that is. No NaN in any derivative."""
    largest = x.detach().abs().amax(dims, keepdim=True)
    zero = largest == 0
    # Squares of x / largest neither overflow nor vanish. Any scale gives the same norm: no gradient needed through it.
    scale = torch.where(zero, 1.0, largest)
    square = (x / scale).square().sum(dims, keepdim=True)
    return torch.where(zero, 1.0, square).sqrt() * scale, zero
