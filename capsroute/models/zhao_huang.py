"""Routing as pooling in plain and residual networks, and capsules on ResNet-20 (Zhao & Huang 2019, section 4)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from capsroute.layers import CapsuleLinear, Capsules, Router, RoutingPool2d, make_router
from capsroute.models.backbones import Window, map_size, residual_features
from capsroute.models.base import ImageModel, ImageSize, ModelOutput
from capsroute.models.class_scores import ClassCapsuleModel
from capsroute.models.registry import register_model
from capsroute.naming import check_one_of

POOLINGS = ("routing", "average", "max")
# The routing of the paper's R-1-y; R-x-y has another sharpness.
R_1 = {"name": "pooling", "sharpness": 1.0, "activation": "squash"}


class PooledNetwork(ImageModel):
    """Features [b,c,h,w], pooled to [b,c] by routing, average or maximum, then a linear layer.

    Coefficients of "pool" are [b,i,j]: position i (row by row) in the pooling of group j of channels.
    """

    def make_head(
        self, channels: int, pooling: str, capsule_size: int, sharpness: float, iterations: int, stop_gradient: bool
    ) -> None:
        """The pooling and the classifier on features of this many channels."""
        check_one_of("pooling", pooling, POOLINGS)
        plain = {"average": nn.AdaptiveAvgPool2d, "max": nn.AdaptiveMaxPool2d}
        routed = RoutingPool2d(capsule_size, sharpness, iterations, stop_gradient=stop_gradient)
        self.pool = routed if pooling == "routing" else plain[pooling](1)
        self.classifier = nn.Linear(channels, self.num_classes)
        self.num_features = channels

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        if not return_coefficients or not isinstance(self.pool, RoutingPool2d):
            scores = self.classifier(self.pool(features).flatten(1))
            return ModelOutput(scores, coefficients={} if return_coefficients else None)
        pooled, coupling = self.pool(features, return_coefficients=True)
        return ModelOutput(self.classifier(pooled.flatten(1)), coefficients={"pool": coupling.flatten(2).mT})


class PooledCNN(PooledNetwork):
    """Four 5x5 convolutions of 64 filters with ReLU, pooling, a linear layer (Zhao & Huang 2019, section 4.1).

    >>> import torch, capsroute as cr
    >>> model = cr.models.PooledCNN(in_channels=1, image_size=28)
    >>> model(torch.rand(2, 1, 28, 28), return_coefficients=True).coefficients["pool"].shape
    torch.Size([2, 144, 4])
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: ImageSize = 32,
        num_classes: int = 10,
        channels: int = 64,
        pooling: str = "routing",
        capsule_size: int = 16,
        sharpness: float = 0.5,
        iterations: int = 1,
        stop_gradient: bool = False,
    ):
        super().__init__(in_channels, image_size, num_classes)
        map_size(self.image_size, [Window(5)] * 4)
        layers: list[nn.Module] = []
        for before in (in_channels, channels, channels, channels):
            layers += [nn.Conv2d(before, channels, 5), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.make_head(channels, pooling, capsule_size, sharpness, iterations, stop_gradient)


class PooledResNet(PooledNetwork):
    """ResNet-20, 32, 44 or 56 with its average pooling replaced by routing (Zhao & Huang 2019, table 2).

    >>> import torch, capsroute as cr
    >>> cr.models.PooledResNet(depth=20)(torch.rand(2, 3, 32, 32)).scores.shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: ImageSize = 32,
        num_classes: int = 10,
        depth: int = 20,
        channels: Sequence[int] = (16, 32, 64),
        pooling: str = "routing",
        capsule_size: int = 16,
        sharpness: float = 5.0,
        iterations: int = 1,
        stop_gradient: bool = False,
    ):
        super().__init__(in_channels, image_size, num_classes)
        self.features = residual_features(in_channels, depth, channels)
        self.make_head(channels[-1], pooling, capsule_size, sharpness, iterations, stop_gradient)


class ResidualCapsNet(ClassCapsuleModel):
    """ResNet-20's map, cut into capsules of `capsule_size` channels, routed to classes (Zhao & Huang 2019, figure 2).

    The paper's R-x-y is `routing={"name": "pooling", "sharpness": x, "activation": "squash"}, capsule_size=y`. All
    children share their transforms: nothing else gives the paper's sizes, about 2.5M for 40 x 40 and 2.2M for 36 x 36.

    >>> import torch, capsroute as cr
    >>> output = cr.models.ResidualCapsNet(image_size=24)(torch.rand(2, 1, 24, 24), return_coefficients=True)
    >>> output.scores.shape, output.coefficients["class_capsules"].shape
    (torch.Size([2, 10]), torch.Size([2, 72, 10]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: ImageSize = 40,
        num_classes: int = 10,
        depth: int = 20,
        channels: Sequence[int] = (16, 32, 64),
        capsule_size: int = 32,
        class_pose: int = 16,
        routing: str | dict | Router = R_1,
        std: float | None = None,
        decoder: tuple[int, int] | None = (512, 1024),
        backend: str = "auto",
    ):
        super().__init__(in_channels, image_size, num_classes)
        if channels[-1] % capsule_size:
            raise ValueError(f"capsule_size: expected a divisor of {channels[-1]} channels, got {capsule_size!r}")
        router = make_router(routing)
        self.capsule_size, self.num_features = capsule_size, channels[-1]
        self.features = residual_features(in_channels, depth, channels)
        layer = CapsuleLinear(None, num_classes, capsule_size, class_pose, router, std=std, backend=backend)
        self.make_classes(layer, router, class_pose, decoder)

    def child_capsules(self, features: Tensor) -> Capsules:
        return Capsules(features.unflatten(1, (-1, 1, self.capsule_size)), None)  # [b, n, 1, k, h, w]


@register_model(small={"image_size": 18, "num_classes": 3, "channels": 8, "capsule_size": 4})
def zhao_huang_conv(**options: Any) -> PooledCNN:
    """Four convolutions and routing pooling; `pooling="max"` or `"average"` to compare (Zhao & Huang 2019, table 1)."""
    return PooledCNN(**options)


_SMALL = {"image_size": 9, "num_classes": 3, "depth": 8, "channels": (4, 4, 8), "capsule_size": 4}


@register_model(small=_SMALL)
def zhao_huang_resnet20(**options: Any) -> PooledResNet:
    """ResNet-20 with routing pooling: 269,722 parameters (Zhao & Huang 2019, table 2)."""
    return PooledResNet(**{"depth": 20, **options})


@register_model(small=_SMALL)
def zhao_huang_resnet32(**options: Any) -> PooledResNet:
    """ResNet-32 with routing pooling: 464,154 parameters (Zhao & Huang 2019, table 2)."""
    return PooledResNet(**{"depth": 32, **options})


@register_model(small=_SMALL)
def zhao_huang_resnet44(**options: Any) -> PooledResNet:
    """ResNet-44 with routing pooling: 658,586 parameters (Zhao & Huang 2019, table 2)."""
    return PooledResNet(**{"depth": 44, **options})


@register_model(small=_SMALL)
def zhao_huang_resnet56(**options: Any) -> PooledResNet:
    """ResNet-56 with routing pooling: 853,018 parameters (Zhao & Huang 2019, table 2)."""
    return PooledResNet(**{"depth": 56, **options})


_SMALL_CAPSULES = {**_SMALL, "decoder": (12, 16)}


@register_model(small=_SMALL_CAPSULES)
def zhao_huang_capsnet_affnist(**options: Any) -> ResidualCapsNet:
    """R-1-32 for expanded MNIST and affNIST of 40 x 40 (Zhao & Huang 2019, table 4)."""
    return ResidualCapsNet(**options)


@register_model(small=_SMALL_CAPSULES)
def zhao_huang_capsnet_multimnist(**options: Any) -> ResidualCapsNet:
    """Capsules on ResNet-20 for MultiMNIST of 36 x 36, lambda = 5 (Zhao & Huang 2019, section 4.3)."""
    return ResidualCapsNet(**{"image_size": 36, "routing": {**R_1, "sharpness": 5.0}, **options})
