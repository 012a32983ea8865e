"""Where in the image a map of child capsules looks, and a map spread over the image's pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.analysis.tracing import watching
from capsroute.inference.collect import evaluating
from capsroute.models import CapsuleModel

__all__ = ["Places", "child_places", "spread"]


class Places(NamedTuple):
    """Centres, in pixels, of what the capsules of a map see."""

    rows: Tensor  # [h]
    columns: Tensor  # [w]


def child_places(model: CapsuleModel, layer: str | None = None) -> Places:
    """Where the children of a routed layer (None: the first) look: the middles of their receptive fields.

    Receptive fields are found by gradient. Where padding cuts them off at the border, the map is taken to cover the
    image evenly.

    >>> import capsroute as cr
    >>> cr.analysis.child_places(cr.create_model("capsnet")).rows.tolist()
    [8.0, 10.0, 12.0, 14.0, 16.0, 18.0]
    """
    name = layer or next(iter(model.routed_layers()))
    device = next(model.parameters()).device
    noise = torch.rand(1, *model.input_shape, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.enable_grad(), evaluating(model), watching(model) as layers:
        height, width = _map(model, name, noise, layers).shape[4:]
        # One copy of the image a position, so that one backward pass tells all their fields apart.
        images = noise.repeat(height * width, 1, 1, 1).requires_grad_()
        layers[name].children.clear()
        poses = _map(model, name, images, layers).flatten(4)  # [h*w, n, a, k, h*w]
        own = poses.diagonal(dim1=0, dim2=4)
        (gradient,) = torch.autograd.grad(own.square().sum(), images)
    seen = (gradient != 0).any(1)  # [h*w, H, W]
    rows = _centres(seen.any(2).unflatten(0, (height, width))[:, 0])
    columns = _centres(seen.any(1).unflatten(0, (height, width))[0])
    return Places(rows, columns)


def spread(maps: Tensor, places: Places, size: tuple[int, int]) -> Tensor:
    """Maps [..., h, w] as pictures [..., H, W]: linear between the places, constant beyond the outermost.

    >>> import torch
    >>> from capsroute.analysis import Places, spread
    >>> spread(torch.tensor([[0.0, 1.0]]), Places(torch.tensor([0.0]), torch.tensor([0.0, 2.0])), (1, 4))
    tensor([[0.0000, 0.5000, 1.0000, 1.0000]])
    """
    if maps.shape[-2:] != (len(places.rows), len(places.columns)):
        expected = (len(places.rows), len(places.columns))
        raise ValueError(f"maps: expected {expected} as there are places, got {tuple(maps.shape[-2:])}")
    down, across = (_interpolation(at.to(maps), side) for at, side in zip(places, size))
    return down @ maps @ across.mT


def _map(model: CapsuleModel, name: str, images: Tensor, layers: dict) -> Tensor:
    model(images)
    children = layers[name].children[0]
    if children.dim() != 6:
        raise ValueError(f"layer: the children of {name!r} are a list, not a map over the image")
    return children


def _centres(seen: Tensor) -> Tensor:
    """Middles [p] of what each position sees of a side, seen [p, side]."""
    positions, side = seen.shape
    first = seen.float().argmax(1)
    last = side - 1 - seen.flip(1).float().argmax(1)
    if len(set((last - first).tolist())) == 1 and (positions == 1 or int(first[0]) != int(first[-1])):
        return (first + last) / 2
    return (torch.arange(positions, device=seen.device) + 0.5) * side / positions - 0.5


def _interpolation(at: Tensor, side: int) -> Tensor:
    """The matrix [side, p] that interpolates linearly from values at ascending places `at` [p]."""
    pixels = torch.arange(side, dtype=at.dtype, device=at.device)
    if len(at) == 1:
        return torch.ones_like(pixels)[:, None]
    right = torch.searchsorted(at, pixels).clamp(1, len(at) - 1)
    part = ((pixels - at[right - 1]) / (at[right] - at[right - 1])).clamp(0, 1)
    matrix = at.new_zeros(side, len(at))
    matrix.scatter_(1, right[:, None] - 1, (1 - part)[:, None])
    return matrix.scatter_add_(1, right[:, None], part[:, None])
