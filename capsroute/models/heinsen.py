"""Heinsen's network for stereo images of toys (Heinsen 2019, figure 3)."""

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.layers import CapsuleLinear, CapsuleStack, Pose, Router, make_router, parse_pose
from capsroute.models.backbones import Window, map_size, smallest_side
from capsroute.models.base import ImageModel, ImageSize, ModelOutput, coefficients_of
from capsroute.models.class_scores import ClassScores
from capsroute.models.registry import register_model

STRIDES = (1, 2, 1, 2, 1, 2)
_WINDOWS = [Window(3, stride) for stride in STRIDES]


class _AnySize(ImageModel):
    """A network that takes images of other sizes than it was made for, if its convolutions leave something of them."""

    def __init__(self, in_channels: int, image_size: ImageSize, num_classes: int):
        super().__init__(in_channels, image_size, num_classes)
        map_size(self.image_size, _WINDOWS)

    def check_images(self, images: Tensor) -> None:
        channels, least = self.input_shape[0], smallest_side(_WINDOWS)
        if images.dim() != 4 or images.shape[1] != channels or min(images.shape[2:]) < least:
            expected = f"[b,{channels},h,w] with h and w at least {least}"
            raise ValueError(f"images: expected {expected}, got {list(images.shape)}")


class HeinsenVision(_AnySize):
    """Coordinates beside the image, six convolutions, parts with 4x4 poses at every position, routed twice.

    The first routing takes any number of parts, so the network takes images of other sizes than it was made for.

    >>> import torch, capsroute as cr
    >>> model = cr.models.HeinsenVision(num_classes=5)
    >>> model(torch.rand(1, 2, 48, 64)).scores.shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        in_channels: int = 2,
        image_size: ImageSize = 96,
        num_classes: int = 5,
        channels: int = 64,
        parts: int = 64,
        pose: Pose = (4, 4),
        routing: str | dict | Router = "heinsen",
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(in_channels, image_size, num_classes)
        router = make_router(routing)
        self.pose = parse_pose("pose", pose)
        numbers = self.pose[0] * self.pose[1]
        self.num_features = channels
        self.convolutions = convolutions(in_channels + 2, channels)
        self.poses = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, parts * numbers, 1))
        self.part_score_kind = router.score_kind
        self.scores = None
        if router.score_kind is not None:
            self.scores = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, parts, 1))
        self.capsules = part_capsules(parts, num_classes, pose, pose, router, std, backend)
        self.class_scores = ClassScores(router, numbers)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss
        start_convolutions(self)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.convolutions(with_coordinates(self.prepare(images)))

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        poses = self.poses(features).unflatten(1, (-1, *self.pose))  # [b, n, a, k, h, w]
        scores = None
        if self.scores is not None:
            scores = self.scores(features)  # [b, n, h, w]
            scores = scores.sigmoid() if self.part_score_kind == "probability" else scores
        routed = self.capsules.route(poses, scores, return_coefficients)
        coefficients = coefficients_of(self.routed_layers(), routed) if return_coefficients else None
        return ModelOutput(self.class_scores(routed[-1]), routed[-1].poses, None, coefficients, routed[-1].variances)


class HeinsenCNN(_AnySize):
    """The same coordinates and convolutions, wider, then global average pooling and a linear layer: no capsules.

    77 channels make it as large as `HeinsenVision`: 271,361 parameters against 271,688.

    >>> import torch, capsroute as cr
    >>> cr.models.HeinsenCNN()(torch.rand(1, 2, 48, 64)).scores.shape
    torch.Size([1, 5])
    """

    def __init__(self, in_channels: int = 2, image_size: ImageSize = 96, num_classes: int = 5, channels: int = 77):
        super().__init__(in_channels, image_size, num_classes)
        self.num_features = channels
        pooled = [nn.BatchNorm2d(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
        self.layers = nn.Sequential(convolutions(in_channels + 2, channels), *pooled)
        start_convolutions(self)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layers[0](with_coordinates(self.prepare(images)))

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        return ModelOutput(self.layers[1:](features), coefficients={} if return_coefficients else None)


def convolutions(in_channels: int, channels: int) -> nn.Sequential:
    """Six 3x3 convolutions, every second one with a stride of two (Heinsen 2019, figure 3c)."""
    layers: list[nn.Module] = []
    for before, stride in zip([in_channels, *[channels] * 5], STRIDES):
        layers += [nn.BatchNorm2d(before), nn.Conv2d(before, channels, 3, stride), nn.SiLU()]
    return nn.Sequential(*layers)


def start_convolutions(model: nn.Module) -> None:
    """Kaiming's weights and no bias for every convolution, as in the authors' code."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]


def part_capsules(
    parts: int, num_classes: int, in_pose: Pose, pose: Pose, router: Router, std: float | None, backend: str
) -> CapsuleStack:
    """Any number of children -> `parts` larger parts -> classes, in both networks (Heinsen 2019, figures 3e, 5e)."""
    # A vote bias speaks for a child whose pose is zero, so only where scores can silence it.
    options: dict[str, Any] = {"routing": router, "bias": router.score_kind is not None, "std": std, "backend": backend}
    return CapsuleStack(
        [CapsuleLinear(None, parts, in_pose, pose, **options), CapsuleLinear(parts, num_classes, pose, pose, **options)]
    )


def with_coordinates(images: Tensor) -> Tensor:
    """Images [b,c,h,w] and two more channels: rows, then columns, evenly spaced from -1 to 1."""
    height, width = images.shape[2:]
    rows, columns = (torch.linspace(-1, 1, n, dtype=images.dtype, device=images.device) for n in (height, width))
    grid = torch.stack([rows[:, None].expand(-1, width), columns[None, :].expand(height, -1)])
    return torch.cat([images, grid.expand(images.shape[0], -1, -1, -1)], 1)


@register_model(small={"image_size": 33, "num_classes": 3, "channels": 8, "parts": 6, "pose": (2, 3)})
def heinsen_smallnorb(**options: Any) -> HeinsenVision:
    """Heinsen routing of pixel convolutions for smallNORB: 271,688 parameters (Heinsen 2019, figure 3)."""
    return HeinsenVision(**options)


@register_model(small={"image_size": 33, "num_classes": 3, "channels": 8})
def heinsen_smallnorb_cnn(**options: Any) -> HeinsenCNN:
    """A CNN as large as `heinsen_smallnorb` to compare it with. Not of a paper."""
    return HeinsenCNN(**options)
