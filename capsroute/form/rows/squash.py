"""Squash: the length of a capsule's pose becomes a probability, its direction stays (Sabour 2017, equation 1)."""

import torch
from torch import Tensor

from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.dispatch import check_reachable, reachable
from capsroute.form.operations import Operation, is_recorded

__all__ = ["lengths", "norm_of", "squash", "unit"]


def squash(x: Tensor, dims: int | tuple[int, ...] = -1, backend: str = "auto") -> Tensor:
    """x |x| / (1 + |x|^2), the norm taken over `dims`; value and gradient are finite at exactly zero, in float16 too.

    On a GPU it is one kernel where `dims` are neighbours in memory and short; with `backend="torch"` never, nor in a
    compiled graph, where a compiler fuses it with what is around it.

    >>> import torch, capsroute as cr
    >>> cr.squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dims=-1).norm(dim=-1)
    tensor([0.9615, 0.0000])
    """
    check_reachable("squash", backend, x.device)
    order = _order(x, dims) if reachable(x.device) and not is_recorded(x) else None
    if order is None:
        return _plain(x, dims)
    axes, first, count = order
    moved = x.permute(axes)
    found = SQUASH.attempt(backend, _middle(moved, first, count))
    if found is None:
        return _plain(x, dims)
    return found.view(moved.shape).permute([axes.index(n) for n in range(x.dim())])


def _plain(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    wide = x.to(statistics_dtype(x))
    norm, zero = norm_of(wide, dims)
    # n / (1 + n^2), above one as 1 / (n + 1/n): neither n^2 nor 1/n overflows, here or in a derivative.
    short, long = norm.clamp_max(1), norm.clamp_min(1)
    factor = torch.where(norm > 1, 1 / (long + 1 / long), short / (1 + short.square()))
    return (wide * torch.where(zero, 0.0, factor)).to(x.dtype)


def _order(x: Tensor, dims: int | tuple[int, ...]) -> tuple[list[int], int, int] | None:
    """The axes of x in the order of memory, where in it those that go together begin, and how many they are.

    None where these are not side by side in memory, nor the last, of which a copy is made.
    """
    together = [dims % x.dim()] if isinstance(dims, int) else sorted(axis % x.dim() for axis in dims)
    rest = [n for n in range(x.dim()) if n not in together]
    rest.sort(key=lambda n: -x.stride()[n])  # stable: axes of equal strides stay in order
    within = x.stride(together[-1])
    first = sum(x.stride(n) > within for n in rest)
    axes = rest[:first] + together + rest[first:]
    if x.permute(axes).is_contiguous():
        return axes, first, len(together)
    natural = sorted(rest) + together
    return (natural, len(rest), len(together)) if natural == list(range(x.dim())) else None


def _middle(x: Tensor, first: int, count: int) -> Tensor:
    """[outer, n, inner], n the axes that go together."""
    together = x.shape[first : first + count].numel()
    return x.reshape(x.shape[:first].numel(), together, -1 if x.numel() else 1)


SQUASH = Operation("squash", lambda x: _plain(x, 1), tensors=1, falls_back=True)


def unit(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """x / |x|; zero stays zero.

    >>> import torch
    >>> from capsroute.routing import unit
    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
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
    if reachable(poses.device) and not is_recorded(poses) and poses.is_contiguous():
        found = LENGTHS.attempt("auto", _middle(poses, poses.dim() - 2, 2))
        if found is not None:
            return found.view(poses.shape[:-2])
    return _plain_lengths(poses, (-2, -1)).to(poses.dtype)


def _plain_lengths(x: Tensor, dims: int | tuple[int, ...] = 1) -> Tensor:
    norm, zero = norm_of(x.to(statistics_dtype(x)), dims)
    return torch.where(zero, 0.0, norm).squeeze(dims).to(x.dtype)


LENGTHS = Operation("lengths", _plain_lengths, tensors=1, falls_back=True)


def norm_of(x: Tensor, dims: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Euclidean norm with kept axes, one where it is zero, and where that is. No NaN in any derivative."""
    largest = x.detach().abs().amax(dims, keepdim=True)
    zero = largest == 0
    # Squares of x / largest neither overflow nor vanish. Any scale gives the same norm: no gradient needed through it.
    scale = torch.where(zero, 1.0, largest)
    square = (x / scale).square().sum(dims, keepdim=True)
    return torch.where(zero, 1.0, square).sqrt() * scale, zero
