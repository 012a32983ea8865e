"""What a network needs to know of its images: mean and deviation, size, polarity, what its classes are called. And an
image of any size as it wants it: the middle cut out, or what is drawn put where MNIST's makers put it.

The record stands in the model as its first module, so it goes wherever the weights go.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.naming import check_one_of
from capsroute.routing.checks import can_look

# How an image of another size is brought to the network's: "cover" cuts the middle out of it, "centre" puts what is
# drawn on it into a box around its centre of mass, as MNIST's makers did.
RESIZES = ("cover", "centre")
POLARITIES = ("either", "light_on_dark", "dark_on_light")

BYTES = 32.0  # larger numbers are no image in [0, 1], however it was normalised


class Preprocessing(nn.Module):
    """Images [b,c,h,w] in [0, 1], or bytes -> the same less `mean`, divided by `deviation`, channel by channel.

    All else is plain data that `cr.predict` goes by: `resize` and `crop` (the part of the shorter side that the network
    sees), `polarity` (what is drawn is lighter than what is around it, or darker), and the names of the `classes`.
    Mean and deviation are buffers: a model's state dict has them where there are any, and `load_state_dict` takes them.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8, num_classes=2)
    >>> model.set_preprocessing(mean=[0.5], deviation=[0.25], classes=["cat", "dog"])
    >>> model.preprocessing(torch.ones(1, 1, 8, 8)).max(), model.preprocessing.classes
    (tensor(2.), ('cat', 'dog'))
    """

    mean: Tensor | None  # [c, 1, 1]
    deviation: Tensor | None  # [c, 1, 1]
    white: Tensor  # []; the device and the dtype that the network computes in. `to_empty` forgets its value

    def __init__(
        self,
        mean: Sequence[float] | None = None,
        deviation: Sequence[float] | None = None,
        resize: str = "cover",
        crop: float = 1.0,
        polarity: str = "either",
        classes: Sequence[str] | None = None,
    ):
        super().__init__()
        if (mean is None) != (deviation is None):
            raise ValueError(f"mean: expected mean and deviation together, got {mean!r} and {deviation!r}")
        check_one_of("resize", resize, RESIZES)
        check_one_of("polarity", polarity, POLARITIES)
        if not 0 < crop <= 1:
            raise ValueError(f"crop: expected a number in (0, 1], got {crop!r}")
        self.register_buffer("mean", None if mean is None else _column("mean", mean))
        self.register_buffer("deviation", None if deviation is None else _column("deviation", deviation))
        self.register_buffer("white", torch.tensor(255.0), persistent=False)
        self.resize, self.crop, self.polarity = resize, float(crop), polarity
        self.classes = None if classes is None else tuple(map(str, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Images as the network was trained to see them."""
        if images.dtype == torch.uint8:
            images = images.to(self.white.dtype) / 255
        if not images.is_floating_point():
            raise ValueError(f"images: expected [0, 1], or bytes as uint8, got {images.dtype}")
        if not self.training and can_look(images) and images.numel():
            self._check_range(images.min().item(), images.max().item())
        if self.mean is None or self.deviation is None:
            return images
        return (images - self.mean) / self.deviation

    def _check_range(self, low: float, high: float) -> None:
        """Who normalised by hand before would do it twice, and bytes as floats are 255 times too large: wrong answers
        without a sign of it. A model that does not normalise may have been trained on what its owner normalised."""
        if self.mean is not None and not -0.1 <= low <= high <= 1.1:
            wanted = "expected [0, 1], for the model normalises them itself"
        elif high > BYTES:
            wanted = "expected [0, 1], or bytes as uint8"
        else:
            return
        warnings.warn(f"images: {wanted}, got {low:.3g} to {high:.3g}", stacklevel=3)

    def record(self) -> dict[str, Any]:
        """Every field as plain data; `Preprocessing(**record)` is the same again."""
        return {
            "mean": _numbers(self.mean),
            "deviation": _numbers(self.deviation),
            "resize": self.resize,
            "crop": self.crop,
            "polarity": self.polarity,
            "classes": None if self.classes is None else list(self.classes),
        }

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Weights bring their mean and deviation along; those of older files, which have none, leave ours alone."""
        for name in ("mean", "deviation"):
            given, own = state_dict.get(prefix + name), getattr(self, name)
            if given is not None and own is None:
                setattr(self, name, torch.empty_like(given, device=self.white.device))
            elif given is None and own is not None:
                state_dict[prefix + name] = own
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        names = None if self.classes is None else f"{len(self.classes)} names"
        fields = {"mean": _numbers(self.mean), "deviation": _numbers(self.deviation), "resize": self.resize}
        return ", ".join(f"{key}={value!r}" for key, value in fields.items()) + f", classes={names}"


def _column(name: str, values: Sequence[float]) -> Tensor:
    numbers = [float(value) for value in values]
    if not all(math.isfinite(number) for number in numbers) or (name == "deviation" and min(numbers, default=1) <= 0):
        raise ValueError(f"{name}: expected finite numbers{' > 0' * (name == 'deviation')}, got {numbers}")
    return torch.tensor(numbers)[:, None, None]  # [c, 1, 1]


def _numbers(column: Tensor | None) -> list[float] | None:
    return None if column is None else column.flatten().tolist()


INK = 0.05  # brightness that counts as drawn


def frame(image: Tensor, shape: tuple[int, int, int], preprocessing: Preprocessing) -> Tensor:
    """An image [c,h,w] in [0,1] at the size of a network (c,h,w), drawn as light or dark as it knows it.

    One that has the size and the polarity already is not touched.

    >>> import torch, capsroute as cr
    >>> from capsroute.models.preprocessing import frame
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
    >>> from capsroute.models.preprocessing import to_shape
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
    >>> from capsroute.models.preprocessing import as_mnist
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
