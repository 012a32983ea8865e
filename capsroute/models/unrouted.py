"""Networks without routing: AffCapsNet (Gu & Tresp 2020), homogeneous vector capsules (Byerly et al. 2020)."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.layers import CapsuleGlobal2d, RoutedLayer, Router
from capsroute.models.backbones import Window, map_size
from capsroute.models.base import ImageModel, ImageSize, ModelOutput
from capsroute.models.registry import register_model
from capsroute.models.sabour import CapsNet


class AffCapsNet(CapsNet):
    """CapsNet with equal coefficients and one transform for each kind of capsule, shared over positions.

    Further options are those of `CapsNet`.

    >>> import torch, capsroute as cr
    >>> cr.create_model("affcapsnet", image_size=28)(torch.rand(2, 1, 28, 28)).scores.shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: ImageSize = 40,
        num_classes: int = 10,
        *,
        routing: str | dict | Router = "uniform",
        **options: Any,
    ):
        super().__init__(in_channels, image_size, num_classes, routing=routing, **options)

    @staticmethod
    def _layer(
        children: tuple[int, int, int], parents: int, pose: int, class_pose: int, router: Router, std: float | None,
        backend: str,
    ) -> RoutedLayer:  # fmt: skip
        return CapsuleGlobal2d(children[0], parents, pose, class_pose, router, False, std, backend)


class ElementwiseCapsules(nn.Module):
    """Parents that are sums of children times weights, number by number: v_j = sum_i W_ij * u_i.

    children [b,i,k] -> parents [b,j,k]. W [i,j,k] is k times smaller than a full transform would be.

    >>> import torch
    >>> from capsroute.models.unrouted import ElementwiseCapsules
    >>> ElementwiseCapsules(64, 10, 8)(torch.randn(2, 64, 8)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(self, children: int, parents: int, pose: int):
        super().__init__()
        self.W = nn.Parameter(torch.empty(children, parents, pose))
        nn.init.normal_(self.W, std=children**-0.5)

    def forward(self, poses: Tensor) -> Tensor:
        return torch.einsum("bik,ijk->bjk", poses, self.W)


class HVC(ImageModel):
    """Nine 3 x 3 convolutions; after the third, sixth and ninth a branch of homogeneous vector capsules; no routing.

    A capsule is one channel of a map as a vector of its positions, the same length in parent and child. Each branch
    sums its class capsules to logits (batch norm and ReLU between), and learned weights add up the branches.

    >>> import torch, capsroute as cr
    >>> cr.create_model("hvc")(torch.rand(2, 1, 28, 28)).scores.shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: ImageSize = 28,
        num_classes: int = 10,
        channels: Sequence[int] = (32, 48, 64, 80, 96, 112, 128, 144, 160),
        branches: Sequence[int] = (3, 6, 9),
    ):
        super().__init__(in_channels, image_size, num_classes)
        if not branches or any(not 1 <= branch <= len(channels) for branch in branches):
            raise ValueError(f"branches: expected numbers of convolutions, 1 to {len(channels)}, got {list(branches)}")
        map_size(self.image_size, [Window(3)] * max(branches))
        sizes = [in_channels, *channels]
        self.num_features = channels[max(branches) - 1]
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, bias=False), nn.BatchNorm2d(after), nn.ReLU())
            for before, after in itertools.pairwise(sizes[: max(branches) + 1])
        )
        self.branches = tuple(branches)
        self.classifier = _Branches(
            [(channels[n - 1], *map_size(self.image_size, [Window(3)] * n)) for n in self.branches], num_classes
        )

    def forward_features(self, images: Tensor) -> Tensor:
        return self._maps(self.prepare(images))[-1]

    def _maps(self, features: Tensor) -> list[Tensor]:
        maps = []
        for number, convolution in enumerate(self.convolutions, 1):
            features = convolution(features)
            if number in self.branches:
                maps.append(features)
        return maps

    def forward(self, images: Tensor, labels: Tensor | None = None, return_coefficients: bool = False) -> ModelOutput:
        scores = self.classifier(self._maps(self.prepare(images)))
        return ModelOutput(scores, None, None, {} if return_coefficients else None)


class _Branches(nn.Module):
    """Maps of several depths -> logits: homogeneous capsules of each, added up with learned weights."""

    def __init__(self, shapes: Sequence[tuple[int, int, int]], num_classes: int):
        super().__init__()
        self.capsules = nn.ModuleList(ElementwiseCapsules(c, num_classes, h * w) for c, h, w in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(num_classes) for _ in shapes)
        self.weights = nn.Parameter(torch.ones(len(shapes)))

    undecayed = ("weights",)

    def forward(self, maps: list[Tensor]) -> Tensor:
        logits = [
            norm(capsules(features.flatten(2))).relu().mean(2)
            for capsules, norm, features in zip(self.capsules, self.norms, maps)
        ]
        return torch.stack(logits, 2) @ self.weights


@register_model(
    small={
        "image_size": 20, "num_classes": 4, "channels": 8, "kernel_size": 5, "primary_capsules": 4,
        "primary_kernel": 5, "decoder": (12, 16),
    }
)  # fmt: skip
def affcapsnet(**options: Any) -> AffCapsNet:
    """AffCapsNet for expanded MNIST and affNIST: no routing, transforms shared over positions (Gu & Tresp 2020)."""
    return AffCapsNet(**options)


@register_model(small={"image_size": 12, "num_classes": 3, "channels": (4, 6), "branches": (1, 2)})
def hvc(**options: Any) -> HVC:
    """Homogeneous vector capsules on nine convolutions, without routing (after Byerly et al. 2020)."""
    return HVC(**options)
