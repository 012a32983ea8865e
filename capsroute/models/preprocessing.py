"""What a network needs to know of its images: mean and deviation, size, polarity, what its classes are called.

The record stands in the model as its first module, so it goes wherever the weights go.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.routing.checks import can_look

# How an image of another size is brought to the network's: "cover" cuts the middle out of it, "centre" puts what is
# drawn on it into a box around its centre of mass, as MNIST's makers did.
RESIZES = ("cover", "centre")
POLARITIES = ("either", "light_on_dark", "dark_on_light")


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
    white: Tensor  # []; what a byte is divided by, in the dtype that the network computes in

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
        for name, given, known in (("resize", resize, RESIZES), ("polarity", polarity, POLARITIES)):
            if given not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {given!r}")
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
            images = images.to(self.white.dtype) / self.white
        if self.mean is None or self.deviation is None:
            return images
        # Who normalised by hand before would do it twice, and get wrong answers without a sign of it.
        if (
            not self.training
            and can_look(images)
            and images.numel()
            and not -0.1 <= images.min() <= images.max() <= 1.1
        ):
            found = f"{images.min().item():.3g} to {images.max().item():.3g}"
            warnings.warn(f"images: expected [0, 1], for the model normalises them itself, got {found}", stacklevel=2)
        return (images - self.mean) / self.deviation

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
