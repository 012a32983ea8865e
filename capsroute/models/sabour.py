"""CapsNet: two convolutions and one routed layer (Sabour et al. 2017, figures 1 and 2).

Its max-min variants are those of Zhao et al. 2019 (section 2 and figure 1).
"""

import math
from typing import Any

from torch import Tensor, nn

from capsroute.layers import CapsuleLinear, Capsules, PrimaryCapsules, RoutedLayer, Router, make_router
from capsroute.models.backbones import Window, map_size
from capsroute.models.base import ImageSize
from capsroute.models.class_scores import ClassCapsuleModel
from capsroute.models.registry import register_model


class CapsNet(ClassCapsuleModel):
    """Convolution -> primary capsules -> class capsules, and a decoder that sees the masked class capsules.

    `routing` is any algorithm. Where the class capsules' length is no probability, scores are the algorithm's own or
    come from a classifier that all class capsules share. `decoder` is the widths of its two hidden layers, or None.

    >>> import torch, capsroute as cr
    >>> model = cr.models.CapsNet(in_channels=3, image_size=32, num_classes=5, routing="heinsen")
    >>> output = model(torch.rand(2, 3, 32, 32), return_coefficients=True)
    >>> output.scores.shape, output.coefficients["class_capsules"].shape
    (torch.Size([2, 5]), torch.Size([2, 2048, 5]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: ImageSize = 28,
        num_classes: int = 10,
        channels: int = 256,
        kernel_size: int = 9,
        primary_capsules: int = 32,
        primary_pose: int = 8,
        primary_kernel: int = 9,
        primary_stride: int = 2,
        class_pose: int = 16,
        routing: str | dict | Router = "dynamic",
        std: float | None = None,
        decoder: tuple[int, int] | None = (512, 1024),
        backend: str = "auto",
    ):
        super().__init__(in_channels, image_size, num_classes)
        router = make_router(routing)
        windows = [Window(kernel_size), Window(primary_kernel, primary_stride)]
        height, width = map_size(self.image_size, windows)
        self.num_features = channels
        self.convolution = nn.Conv2d(in_channels, channels, kernel_size)
        self.primary_capsules = PrimaryCapsules(
            channels,
            primary_capsules,
            primary_pose,
            primary_kernel,
            primary_stride,
            activation=router.child_activation,
            scores=router.score_kind,
        )
        self.make_classes(
            self._layer((primary_capsules, height, width), num_classes, primary_pose, class_pose, router, std, backend),
            router,
            class_pose,
            decoder,
        )

    @staticmethod
    def _layer(
        children: tuple[int, int, int], parents: int, pose: int, class_pose: int, router: Router, std: float | None,
        backend: str,
    ) -> RoutedLayer:  # fmt: skip
        """From kinds of capsules on a map to classes: a transform for each of them."""
        return CapsuleLinear(math.prod(children), parents, pose, class_pose, router, std=std, backend=backend)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.convolution(self.prepare(images)).relu()

    def child_capsules(self, features: Tensor) -> Capsules:
        return self.primary_capsules(features)


_SMALL = {
    "image_size": 14,
    "num_classes": 4,
    "channels": 8,
    "kernel_size": 5,
    "primary_capsules": 4,
    "primary_kernel": 5,
    "decoder": (12, 16),
}


@register_model(small=_SMALL)
def capsnet(**options: Any) -> CapsNet:
    """CapsNet of Sabour et al. 2017: 8,215,568 parameters for 28 x 28 x 1 (figures 1 and 2)."""
    return CapsNet(**options)


@register_model(small=_SMALL)
def capsnet_max_min(**options: Any) -> CapsNet:
    """The same network routed by max-min (Zhao 2019, section 2)."""
    return CapsNet(**{"routing": "max_min", **options})


@register_model(small=_SMALL)
def capsnet_max_min_cifar10(**options: Any) -> CapsNet:
    """Max-min CapsNet for 24 x 24 x 3 crops of CIFAR-10, 1024 primary capsules of 4 numbers (Zhao 2019, figure 1)."""
    defaults = {"in_channels": 3, "image_size": 24, "primary_capsules": 64, "primary_pose": 4, "routing": "max_min"}
    return CapsNet(**{**defaults, **options})


@register_model(small={"image_size": 8, "num_classes": 3})
def capsnet_small(**options: Any) -> CapsNet:
    """CapsNet with small numbers, for a laptop's CPU and for images from 5 x 5. Not of a paper."""
    defaults = {
        "channels": 32,
        "kernel_size": 3,
        "primary_capsules": 8,
        "primary_kernel": 3,
        "class_pose": 8,
        "decoder": (128, 256),
    }
    return CapsNet(**{**defaults, **options})
