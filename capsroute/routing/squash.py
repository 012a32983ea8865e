"""Squash: the length of a capsule's pose becomes a probability, its direction stays (004, equation 1)."""

import torch
from torch import Tensor

__all__ = ["lengths", "squash", "unit"]


def squash(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """x |x| / (1 + |x|^2), the norm taken over `dims`; value and gradient are finite at exactly zero, in float16 too.

    >>> import torch, capsroute as cr
    >>> cr.squash(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), dims=-1).norm(dim=-1)
    tensor([0.9615, 0.0000])
    """
    wide = x.to(torch.promote_types(torch.float32, x.dtype))
    norm, zero = _norm(wide, dims)
    # n / (1 + n^2) written so that a huge n does not overflow.
    factor = torch.where(zero, 0.0, 1 / (norm + 1 / norm))
    return (wide * factor).to(x.dtype)


def unit(x: Tensor, dims: int | tuple[int, ...] = -1) -> Tensor:
    """x / |x|; zero stays zero.

    >>> import torch
    >>> from capsroute.routing import unit
    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    norm, _ = _norm(x, dims)
    return x / norm


def lengths(poses: Tensor) -> Tensor:
    """The length of each pose [..., a, o] -> [...], with gradient zero at zero.

    >>> import torch
    >>> from capsroute.routing import lengths
    >>> lengths(torch.ones(2, 10, 1, 16)).shape
    torch.Size([2, 10])
    """
    norm, zero = _norm(poses, (-2, -1))
    return torch.where(zero, 0.0, norm).squeeze(-1).squeeze(-1)


def _norm(x: Tensor, dims: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Euclidean norm with kept axes, one where it is zero, and where that is. No NaN in any derivative."""
    square = x.square().sum(dims, keepdim=True)
    zero = square == 0
    return torch.where(zero, 1.0, square).sqrt(), zero
