"""Efficient-CapsNet: few capsules from a depthwise convolution, self-attention routing (Mazzia et al. 2021)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from capsroute.layers import CapsuleLinear, Capsules, Router, make_router
from capsroute.models.backbones import Window, map_size
from capsroute.models.base import ImageSize
from capsroute.models.class_scores import ClassCapsuleModel
from capsroute.models.registry import register_model
from capsroute.naming import check_one_of
from capsroute.routing import exponential_squash

NORMS = ("batch", "instance")
# (channels, kernel size, stride) of each convolution
MNIST = ((32, 5, 1), (64, 3, 1), (64, 3, 1), (128, 3, 2))
SMALLNORB = ((32, 7, 2), (64, 3, 1), (64, 3, 1), (128, 3, 2))
MULTIMNIST = ((32, 5, 1), (64, 3, 1), (64, 3, 2), (128, 3, 2))


class EfficientCapsNet(ClassCapsuleModel):
    """Convolutions -> a depthwise convolution as large as the map -> a few capsules -> class capsules.

    `norm="batch"` is ReLU then batch norm, "instance" leaky ReLU then instance norm with scale and shift. `depthwise`
    is the kernel and stride of the depthwise convolution, None for the whole map. `decoder` is None, as the published
    parameter counts are without it; the recipe has one.

    >>> import torch, capsroute as cr
    >>> output = cr.create_model("efficient_capsnet_mnist")(torch.rand(2, 1, 28, 28), return_coefficients=True)
    >>> output.scores.shape, output.coefficients["class_capsules"].shape
    (torch.Size([2, 10]), torch.Size([2, 16, 10]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: ImageSize = 28,
        num_classes: int = 10,
        convolutions: Sequence[tuple[int, int, int]] = MNIST,
        norm: str = "batch",
        depthwise: tuple[int, int] | None = None,
        primary_pose: int = 8,
        class_pose: int = 16,
        routing: str | dict | Router = "self_attention",
        std: float | None = None,
        decoder: tuple[int, int] | None = None,
        backend: str = "auto",
    ):
        super().__init__(in_channels, image_size, num_classes)
        check_one_of("norm", norm, NORMS)
        windows = [Window(kernel, stride) for _, kernel, stride in convolutions]
        # Instance norm of one position would have no deviation.
        least = {"batch": 1, "instance": 2}[norm] if depthwise is None else depthwise[0]
        height, width = map_size(self.image_size, windows, least)
        layers: list[nn.Module] = []
        before = in_channels
        for channels, kernel, stride in convolutions:
            layers += [nn.Conv2d(before, channels, kernel, stride), *_activated(norm, channels)]
            before = channels
        self.features = nn.Sequential(*layers)
        if before % primary_pose:
            raise ValueError(f"primary_pose: expected a divisor of {before} channels, got {primary_pose!r}")
        kernel_size, step = ((height, width), 1) if depthwise is None else ((depthwise[0],) * 2, depthwise[1])
        self.primary_pose, self.num_features = primary_pose, before
        self.primary = nn.Conv2d(before, before, kernel_size, step, groups=before)
        places = ((height - kernel_size[0]) // step + 1) * ((width - kernel_size[1]) // step + 1)
        router = make_router(routing)
        layer = CapsuleLinear(
            before // primary_pose * places, num_classes, primary_pose, class_pose, router, std=std, backend=backend
        )
        self.make_classes(layer, router, class_pose, decoder)

    def child_capsules(self, features: Tensor) -> Capsules:
        poses = self.primary(features).unflatten(1, (-1, 1, self.primary_pose))  # [b, n, 1, k, h, w]
        return Capsules(exponential_squash(poses, (2, 3)), None)


def _activated(norm: str, channels: int) -> tuple[nn.Module, nn.Module]:
    if norm == "batch":
        return nn.ReLU(), nn.BatchNorm2d(channels)
    return nn.LeakyReLU(), nn.GroupNorm(channels, channels)  # InstanceNorm2d, which takes no empty batch


_SMALL = {"image_size": 14, "num_classes": 3, "convolutions": ((8, 3, 1), (16, 3, 2)), "primary_pose": 4}


@register_model(small=_SMALL)
def efficient_capsnet_mnist(**options: Any) -> EfficientCapsNet:
    """Efficient-CapsNet for MNIST: 161,824 parameters without its decoder (Mazzia et al. 2021)."""
    return EfficientCapsNet(**options)


@register_model(small=_SMALL)
def efficient_capsnet_smallnorb(**options: Any) -> EfficientCapsNet:
    """Efficient-CapsNet for smallNORB cut to 48 x 48: 151,664 parameters (Mazzia et al. 2021)."""
    defaults = {"in_channels": 2, "image_size": 48, "num_classes": 5, "convolutions": SMALLNORB, "norm": "instance"}
    return EfficientCapsNet(**{**defaults, **options})


@register_model(small={**_SMALL, "image_size": 20, "depthwise": (3, 2)})
def efficient_capsnet_multimnist(**options: Any) -> EfficientCapsNet:
    """Efficient-CapsNet for MultiMNIST of 36 x 36 (Mazzia et al. 2021)."""
    defaults = {"image_size": 36, "convolutions": MULTIMNIST, "depthwise": (5, 2)}
    return EfficientCapsNet(**{**defaults, **options})
