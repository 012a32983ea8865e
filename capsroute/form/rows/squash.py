"""Squash: the length of a capsule's pose becomes a probability, its direction stays (Sabour 2017, equation 1)."""

import torch
from torch import Tensor

from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.dispatch import check_reachable, reachable
from capsroute.form.operations import Operation

__all__ = ["lengths", "squash", "unit"]


def squash(x: Tensor, dims: int | tuple[int, ...] = -1, backend: str = "auto") -> Tensor:
    """x |x| / (1 + |x|^2), the norm taken over `dims`; value and gradient are finite at exactly zero, in float16 too.

    On a GPU it is one kernel where `dims` are the last axes and short; with `backend="torch"` never, nor in a compiled
    graph, where a compiler fuses it with what is around it.

    >>> import torch, capsroute as cr
    >>> cr.squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dims=-1).norm(dim=-1)
    tensor([0.9615, 0.0000])
    """
    check_reachable("squash", backend, x.device)
    rows = _rows(x, dims) if reachable(x.device) else None
    found = None if rows is None else SQUASH.attempt(backend, rows)
    return _plain(x, dims) if found is None else found.view(x.shape)


def _plain(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    wide = x.to(statistics_dtype(x))
    norm, zero = _norm(wide, dims)
    # n / (1 + n^2), above one as 1 / (n + 1/n): neither n^2 nor 1/n overflows, here or in a derivative.
    short, long = norm.clamp_max(1), norm.clamp_min(1)
    factor = torch.where(norm > 1, 1 / (long + 1 / long), short / (1 + short.square()))
    return (wide * torch.where(zero, 0.0, factor)).to(x.dtype)


def _rows(x: Tensor, dims: int | tuple[int, ...]) -> Tensor | None:
    """The numbers that are squashed together as a last axis, for the kernels; None where they are not the last."""
    last = [dims % x.dim()] if isinstance(dims, int) else sorted(axis % x.dim() for axis in dims)
    return x.flatten(last[0]) if last == list(range(x.dim() - len(last), x.dim())) else None


SQUASH = Operation("squash", _plain, tensors=1, falls_back=True)


def unit(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """x / |x|; zero stays zero.

    >>> import torch
    >>> from capsroute.routing import unit
    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    wide = x.to(statistics_dtype(x))
    norm, _ = _norm(wide, dims)
    return (wide / norm).to(x.dtype)


def lengths(poses: Tensor) -> Tensor:
    """The length of each pose [..., a, o] -> [...], with gradient zero at zero.

    >>> import torch
    >>> from capsroute.routing import lengths
    >>> lengths(torch.ones(2, 10, 1, 16)).shape
    torch.Size([2, 10])
    """
    wide = poses.to(statistics_dtype(poses))
    norm, zero = _norm(wide, (-2, -1))
    return torch.where(zero, 0.0, norm).squeeze(-1).squeeze(-1).to(poses.dtype)


def _norm(x: Tensor, dims: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Euclidean norm with kept axes, one where it is zero, and where that is. No NaN in any derivative."""
    largest = x.detach().abs().amax(dims, keepdim=True)
    zero = largest == 0
    # Squares of x / largest neither overflow nor vanish. Any scale gives the same norm: no gradient needed through it.
    scale = torch.where(zero, 1.0, largest)
    square = (x / scale).square().sum(dims, keepdim=True)
    return torch.where(zero, 1.0, square).sqrt() * scale, zero
