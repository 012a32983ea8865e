"""Capsules routed by variational Bayes, 64-8-16-16-n (Ribeiro, Leontidis & Kollias 2020)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.layers import CapsuleConv2d, CapsuleGlobal2d, Pose, VBRouter, parse_pose
from capsroute.models.backbones import Window, map_size
from capsroute.models.base import ImageModel, ImageSize, ModelOutput, coefficients_of
from capsroute.models.registry import register_model


class _ClassCapsules(CapsuleGlobal2d):
    """Class capsules whose coordinates are a tenth: (n + 1) / (10 F) of the n-th of F positions."""

    def coordinate(self, side: int) -> Tensor:
        return (torch.arange(side, dtype=self.W.dtype, device=self.W.device) + 1) / (10 * side)


class VBCapsNet(ImageModel):
    """Convolution -> primary capsules -> two capsule convolutions -> class capsules, all routed by variational Bayes.

    Parents at all positions that see a child compete for it. Scores are logits: the released code puts them through
    the logistic function and then into a cross-entropy.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("vb_capsnet", image_size=20)
    >>> model(torch.rand(2, 2, 20, 20)).scores.shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_channels: int = 2,
        image_size: ImageSize = 32,
        num_classes: int = 5,
        channels: int = 64,
        kernel_size: int = 5,
        capsules: Sequence[int] = (8, 16, 16),
        pose: Pose = (4, 4),
        iterations: int = 3,
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(in_channels, image_size, num_classes)
        if len(capsules) < 2:
            raise ValueError(f"capsules: expected primary capsules and one convolution or more, got {capsules!r}")
        self.rows, self.columns = parse_pose("pose", pose)
        self.num_features, primary = channels, capsules[0]
        strides = [2] + [1] * (len(capsules) - 2)
        map_size(self.image_size, [Window(kernel_size, 2, kernel_size // 2), *(Window(3, s) for s in strides)])
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, channels, kernel_size, 2, kernel_size // 2, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.poses = nn.Conv2d(channels, primary * self.rows * self.columns, 1, bias=False)
        self.activations = nn.Conv2d(channels, primary, 1, bias=False)
        # One mean and deviation for all numbers of a capsule.
        self.pose_norm, self.activation_norm = nn.BatchNorm3d(primary), nn.BatchNorm2d(primary)
        router = VBRouter(iterations)
        self.capsules = nn.ModuleList(
            CapsuleConv2d(before, after, pose, pose, 3, stride, routing=router, std=std, backend=backend)
            for before, after, stride in zip(capsules, capsules[1:], strides)
        )
        last = VBRouter(iterations, logits=True)
        self.class_capsules = _ClassCapsules(capsules[-1], num_classes, pose, pose, last, std=std, backend=backend)

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        poses = self.poses(features).unflatten(1, (-1, self.rows * self.columns))  # [b, n, a*k, h, w]
        poses = self.pose_norm(poses).unflatten(2, (self.rows, self.columns))
        activations: Tensor | None = self.activation_norm(self.activations(features)).sigmoid()
        routed = []
        for layer in (*self.capsules, self.class_capsules):
            routed.append(layer(poses, activations, return_coefficients))
            poses, activations = routed[-1].poses, routed[-1].scores
        assert activations is not None
        coefficients = coefficients_of(self.routed_layers(), routed) if return_coefficients else None
        return ModelOutput(activations, poses, None, coefficients)


@register_model(small={"image_size": 12, "num_classes": 3, "channels": 8, "capsules": (2, 3), "pose": (2, 2)})
def vb_capsnet(**options: Any) -> VBCapsNet:
    """Variational Bayes capsules 64-8-16-16-5 for smallNORB: 68,714 parameters (Ribeiro et al. 2020)."""
    return VBCapsNet(**options)
