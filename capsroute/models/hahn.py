"""Self-routing capsules on ResNet-20 (Hahn, Pyeon & Kim 2019)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.form import statistics_dtype
from capsroute.layers import CapsuleConv2d
from capsroute.layers.attention_routers import SelfRouter
from capsroute.models.backbones import residual_features
from capsroute.models.base import ImageModel, ImageSize, ModelOutput
from capsroute.models.registry import register_model
from capsroute.routing.normalise import over_parents


class ClassShares(nn.Module):
    """A class layer without poses: a_j = sum_i a_i r_ij / sum_i a_i, with r of `cr.self_routing`.

    poses [b,i,k], activations [b,i] -> activations of the classes [b,j], which sum to one, and r [b,i,j].
    """

    undecayed = ("b",)

    def __init__(self, children: int, classes: int, features: int):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(children, classes, features))
        self.b = nn.Parameter(torch.zeros(children, classes))

    def forward(self, poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.bmm(poses.transpose(0, 1), self.w.mT).transpose(0, 1) + self.b
        r = over_parents(logits.to(statistics_dtype(logits)))
        weights = activations.to(r.dtype).unsqueeze(2)
        total = weights.sum(1)
        # Where no child is active, no class is more likely than another.
        idle = total == 0
        shares = (weights * r).sum(1) / total.masked_fill(idle, 1.0)
        return torch.where(idle, 1 / self.w.shape[1], shares), r


class SelfRoutingResNet(ImageModel):
    """ResNet-20's map -> 32 capsules of 16 at each position -> self-routing to classes; scores are log activations.

    `hidden` adds so many convolutional layers of 3 x 3 and stride 2 between them. The softmax of the scores are the
    class activations, so that cross-entropy is the paper's negative log-likelihood.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("self_routing_resnet20")
    >>> model(torch.rand(2, 3, 32, 32)).scores.exp().sum(1).allclose(torch.ones(2))
    True
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: ImageSize = 32,
        num_classes: int = 10,
        depth: int = 20,
        channels: Sequence[int] = (16, 32, 64),
        capsules: int = 32,
        pose: int = 16,
        hidden: int = 0,
        backend: str = "auto",
    ):
        super().__init__(in_channels, image_size, num_classes)
        self.num_features, self.num_capsules, self.pose = channels[-1], capsules, pose
        self.features = residual_features(in_channels, depth, channels)
        self.activations = _convolved(channels[-1], capsules)
        self.poses = _convolved(channels[-1], capsules * pose)
        self.capsules = nn.ModuleList(
            CapsuleConv2d(capsules, capsules, pose, pose, 3, 2, 1, SelfRouter(), backend=backend) for _ in range(hidden)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(capsules * pose) for _ in range(hidden))
        height, width = (-(-side // 4) for side in self.image_size)
        for _ in range(hidden):
            height, width = -(-height // 2), -(-width // 2)
        self.class_shares = ClassShares(capsules * height * width, num_classes, pose)

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        poses, activations = self.poses(features), self.activations(features).sigmoid()
        coefficients = {}
        for index, (layer, norm) in enumerate(zip(self.capsules, self.norms)):
            capsules = poses.unflatten(1, (self.num_capsules, 1, self.pose))  # [b, n, 1, k, h, w]
            routed = layer(capsules, activations, return_coefficients)
            poses, activations = norm(routed.poses.flatten(1, 3)), routed.scores
            coefficients[f"capsules.{index}"] = routed.coefficients
        children = poses.unflatten(1, (self.num_capsules, self.pose)).flatten(3).transpose(2, 3).flatten(1, 2)
        shares, r = self.class_shares(children, activations.flatten(1))
        coefficients["class_shares"] = r
        scores = shares.clamp_min(torch.finfo(shares.dtype).tiny).log()
        return ModelOutput(scores, None, None, coefficients if return_coefficients else None)


def _convolved(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after))


_SMALL = {"image_size": 9, "num_classes": 3, "depth": 8, "channels": (4, 4, 8), "capsules": 3, "pose": 4}


@register_model(small=_SMALL)
def self_routing_resnet20(**options: Any) -> SelfRoutingResNet:
    """ResNet-20 and one self-routing layer: 931,664 parameters (Hahn et al. 2019)."""
    return SelfRoutingResNet(**options)


@register_model(small=_SMALL)
def self_routing_resnet20_two(**options: Any) -> SelfRoutingResNet:
    """ResNet-20 and two self-routing layers: 3,187,536 parameters (Hahn et al. 2019)."""
    return SelfRoutingResNet(**{"hidden": 1, **options})
