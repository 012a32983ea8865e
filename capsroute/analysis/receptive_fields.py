"""Where in the image a map of child capsules looks, and a map spread over the image's pixels."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsroute.analysis.tracing import watching
from capsroute.inference.collect import evaluating
from capsroute.layers import RoutedLayer
from capsroute.models import ImageModel


class Places(NamedTuple):
    """Centres, in pixels, of what the capsules of a map see."""

    rows: Tensor  # [h]
    columns: Tensor  # [w]


def child_places(model: ImageModel, layer: str | None = None) -> Places:
    """Where the children of a routed layer (None: the first), or of a routing pooling, look in the image.

    In a network without padding these are the middles of receptive fields, found by gradient. With padding the map is
    taken to cover the image evenly.

    >>> import capsroute as cr
    >>> cr.analysis.child_places(cr.create_model("capsnet")).rows.tolist()
    [8.0, 10.0, 12.0, 14.0, 16.0, 18.0]
    """
    name = layer or next(iter(model.routed_layers()))
    noise = torch.rand(1, *model.input_shape, generator=torch.Generator().manual_seed(0)).to(next(model.parameters()))
    height, width = _map(model, name, noise).shape[-2:]
    paddings = (getattr(module, "padding", 0) for module in model.modules() if not isinstance(module, RoutedLayer))
    if any(padding not in (0, (0, 0), "valid") for padding in paddings):
        sides = zip((height, width), model.input_shape[1:])
        return Places(*((torch.arange(count) + 0.5) * side / count - 0.5 for count, side in sides))
    with torch.enable_grad():
        # One copy of the image per position, so that one backward pass tells all their fields apart.
        images = noise.repeat(height * width, 1, 1, 1).requires_grad_()
        own = _map(model, name, images).flatten(-2).diagonal(dim1=0, dim2=-1)
        (gradient,) = torch.autograd.grad(own.square().sum(), images)
    seen = (gradient != 0).any(1).unflatten(0, (height, width))  # [h, w, H, W]
    return Places(_middles(seen[:, 0].any(2)), _middles(seen[0].any(1)))


def spread(maps: Tensor, places: Places, size: tuple[int, int]) -> Tensor:
    """Maps [..., h, w] as pictures [..., H, W]: linear between the places, constant for half a step around them.

    Farther out no capsule has its middle, and the pictures are NaN.

    >>> import torch
    >>> from capsroute.analysis import Places, spread
    >>> spread(torch.tensor([[0.0, 1.0]]), Places(torch.tensor([0.0]), torch.tensor([0.0, 2.0])), (1, 4))
    tensor([[0.0000, 0.5000, 1.0000, 1.0000]])
    """
    if maps.shape[-2:] != (len(places.rows), len(places.columns)):
        expected = (len(places.rows), len(places.columns))
        raise ValueError(f"maps: expected {expected} as there are places, got {tuple(maps.shape[-2:])}")
    down, across = (_interpolation(at, side).to(maps) for at, side in zip(places, size))
    return torch.where(_near(places, size).to(maps.device), down @ maps @ across.mT, torch.nan)


def _near(places: Places, size: tuple[int, int]) -> Tensor:
    """Pixels [H, W] not farther out than half a step."""
    near = []
    for at, side in zip(places, size):
        half = float(at[1] - at[0]) / 2 if len(at) > 1 else side
        pixels = torch.arange(side)
        near.append((pixels >= at[0] - half) & (pixels <= at[-1] + half))
    return near[0][:, None] & near[1]


def _map(model: ImageModel, name: str, images: Tensor) -> Tensor:
    """What goes into a layer: capsules [b,n,a,k,h,w], or features [b,c,h,w] of a pooling."""
    given: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda module, args: given.append(args[0]))
    with evaluating(model), watching(model) as layers, hook:
        model(images)
    maps = (layers[name].children if name in layers else given)[0]
    if name in layers and maps.dim() != 6:
        raise ValueError(f"layer: the children of {name!r} are a list, not a map over the image")
    return maps


def _middles(seen: Tensor) -> Tensor:
    """Middles [p] of what each position sees of a side, seen [p, side]."""
    first = seen.float().argmax(1)
    last = seen.shape[1] - 1 - seen.flip(1).float().argmax(1)
    return ((first + last) / 2).cpu()


def _interpolation(at: Tensor, side: int) -> Tensor:
    """The matrix [side, p] that interpolates linearly from values at ascending places `at` [p]."""
    columns = [np.interp(np.arange(side), at.cpu().numpy(), column) for column in np.eye(len(at))]
    return torch.from_numpy(np.stack(columns, 1))
