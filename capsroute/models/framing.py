"""An image of any size as a network wants it: the middle cut out, or what is drawn put where MNIST's makers put it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.models.preprocessing import Preprocessing

INK = 0.05  # brightness that counts as drawn


def frame(image: Tensor, shape: tuple[int, int, int], preprocessing: Preprocessing) -> Tensor:
    """An image [c,h,w] in [0,1] at the size of a network (c,h,w), drawn as light or dark as it knows it.

    One that has the size and the polarity already is not touched.

    >>> import torch, capsroute as cr
    >>> from capsroute.models.framing import frame
    >>> paper = torch.ones(1, 60, 40)
    >>> paper[:, 10:50, 18:22] = 0.1
    >>> mnist = cr.create_model("capsnet_max_min", pretrained=True)
    >>> framed = frame(paper, (1, 28, 28), mnist.preprocessing)
    >>> framed[0, 14, 14] > 0.8, framed[0, 0, 0]
    (tensor(True), tensor(0.))
    """
    if preprocessing.resize == "centre" and shape[0] == 1 and shape[1] == shape[2]:
        given = _grey(image)
        turned = with_polarity(given, preprocessing.polarity)
        fits = tuple(image.shape) == shape and turned is given
        return image if fits else as_mnist(_without_ground(turned), shape[1])
    wide = (shape[0], *(round(side / preprocessing.crop) for side in shape[1:]))
    image = to_shape(image, wide)
    top, left = ((have - want) // 2 for have, want in zip(wide[1:], shape[1:]))
    image = image[:, top : top + shape[1], left : left + shape[2]]
    return with_polarity(image, preprocessing.polarity) if shape[0] == 1 else image


def with_polarity(image: Tensor, polarity: str) -> Tensor:
    """A grey image [1,h,w] whose ground, judged by its outermost pixels, is dark or light as `polarity` says."""
    ground = _ground(image)
    wrong = (polarity == "light_on_dark" and ground > 0.5) or (polarity == "dark_on_light" and ground < 0.5)
    return 1 - image if wrong else image


def to_shape(image: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An image [c,h,w] as a model wants it: grey or colour, the middle cut out, scaled without aliasing.

    >>> import torch
    >>> from capsroute.models.framing import to_shape
    >>> to_shape(torch.rand(3, 40, 60), (1, 28, 28)).shape
    torch.Size([1, 28, 28])
    """
    channels, height, width = shape
    if image.shape[0] != channels:
        image = _grey(image).expand(channels, -1, -1)
    if tuple(image.shape[1:]) == (height, width):
        return image
    scale = min(image.shape[1] / height, image.shape[2] / width)
    cut = [max(1, round(side * scale)) for side in (height, width)]
    top, left = ((have - want) // 2 for have, want in zip(image.shape[1:], cut))
    return _resized(image[:, top : top + cut[0], left : left + cut[1]], (height, width))


def as_mnist(image: Tensor, size: int = 28) -> Tensor:
    """A drawing [1,h,w] as MNIST's makers would have it: in a box of 20 pixels, its centre of mass in the middle.

    >>> import torch
    >>> from capsroute.models.framing import as_mnist
    >>> drawing = torch.zeros(1, 100, 100)
    >>> drawing[:, :30, :10] = 1
    >>> as_mnist(drawing).nonzero()[:, 1].min().item()
    4
    """
    ink = image[0] > INK
    if not ink.any():
        return torch.zeros(1, size, size)
    rows, columns = ink.any(1).nonzero(), ink.any(0).nonzero()
    digit = image[:, int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]
    box = round(size * 20 / 28)
    scale = box / max(digit.shape[1:])
    sides = [max(1, round(side * scale)) for side in digit.shape[1:]]
    digit = _resized(digit, (sides[0], sides[1]))
    # As much black around it as its centre of mass needs to come to lie in the middle.
    mass = digit[0] / digit.sum()
    corner = []
    for axis, side in enumerate(sides):
        centre = float((mass.sum(1 - axis) * torch.arange(side)).sum()) + 0.5
        corner.append(min(max(round(size / 2 - centre), 0), size - side))
    top, left = corner
    return F.pad(digit, (left, size - left - sides[1], top, size - top - sides[0]))


def _ground(image: Tensor) -> float:
    """The median of the outermost pixels."""
    edges = [image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]]
    return float(torch.cat([edge.flatten() for edge in edges]).median())


def _without_ground(image: Tensor) -> Tensor:
    """Light drawn on grey, as on a photograph of paper, as light drawn on black."""
    ground, lightest = _ground(image), float(image.max())
    if ground <= INK or lightest - ground <= INK:
        return image
    return ((image - ground - INK) / (lightest - ground - INK)).clamp(0, 1)


def _grey(image: Tensor) -> Tensor:
    if image.shape[0] == 1:
        return image
    if image.shape[0] != 3:
        return image.mean(0, keepdim=True)
    return (image * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)


def _resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
