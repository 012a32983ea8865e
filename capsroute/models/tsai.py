"""Capsules on a backbone: primary, convolutional, linear and class capsules (Tsai et al. 2020, figure 1), and the
numbers of the paper: tables 4 to 11 on the simple backbone, table 1's on the residual one.

Inverted attention is that of the released code: agreement times 1/sqrt(d), LayerNorm with a learned scale and shift.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from capsroute.layers import (
    CapsuleConv2d,
    CapsuleDropout,
    CapsuleGlobal2d,
    CapsuleLinear,
    CapsuleStack,
    Pose,
    PrimaryCapsules,
    RoutedLayer,
    Router,
    make_router,
    parse_pose,
)
from capsroute.models.backbones import Window, make_backbone, map_size
from capsroute.models.base import ImageModel, ImageSize, ModelOutput, coefficients_of
from capsroute.models.class_scores import ClassScores
from capsroute.models.registry import register_model


class ConvCapsNet(ImageModel):
    """Backbone -> primary capsules -> convolutional capsules -> fully connected capsules -> class capsules.

    `convolutions` lists (capsules, kernel size, stride) of each convolutional layer and `hidden` the capsules of each
    fully connected one. `shared=True` shares the class layer's transforms over positions and adds coordinates to the
    votes (Hinton et al. 2018). `schedule=None` is concurrent where the routing can be stepped, else sequential.

    `poses` gives each convolutional and each fully connected layer a pose of its own, in order; empty: `pose`
    everywhere. A vector after matrices reads them as vectors. `dropout` leaves out that part of the primary capsules
    while training.

    The ablations of Tsai et al. 2020, figure 4: A is `routing={"name": "inverted_attention", "norm": "none"}`, B is
    `schedule="sequential"`, C is `routing={"name": "inverted_attention", "activations": True}`.

    >>> import torch, capsroute as cr
    >>> model = cr.models.ConvCapsNet(image_size=16, num_classes=3, convolutions=[(8, 3, 2)], primary_capsules=8)
    >>> output = model(torch.rand(2, 3, 16, 16), return_coefficients=True)
    >>> {name: list(c.shape) for name, c in output.coefficients.items()}
    {'capsules.layers.0': [2, 3, 3, 72, 8], 'capsules.layers.1': [2, 72, 3]}
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: ImageSize = 32,
        num_classes: int = 10,
        backbone: str | dict = "simple",
        primary_capsules: int = 32,
        primary_kernel: int = 1,
        primary_stride: int = 1,
        primary_padding: int = 0,
        pose: Pose = (4, 4),
        class_pose: Pose | None = None,
        convolutions: Sequence[tuple[int, int, int]] = ((32, 3, 2), (32, 3, 1)),
        hidden: Sequence[int] = (),
        shared: bool = False,
        routing: str | dict | Router = "inverted_attention",
        schedule: str | None = None,
        multi_label: bool = False,
        std: float | None = None,
        backend: str = "auto",
        poses: Sequence[Pose] = (),
        dropout: float = 0.0,
    ):
        super().__init__(in_channels, image_size, num_classes)
        sizes = list(poses) or [pose] * (len(convolutions) + len(hidden))
        if len(sizes) != len(convolutions) + len(hidden):
            layered = f"{len(convolutions)} convolutional and {len(hidden)} fully connected layers"
            raise ValueError(f"poses: expected one for each of {layered}, or none, got {list(poses)!r}")
        if shared and hidden:
            raise ValueError(f"shared: class capsules must come right after a map, got hidden={list(hidden)!r}")
        router = make_router(routing)
        self.backbone = make_backbone(in_channels, backbone)
        self.num_features = self.backbone.out_channels
        primary = Window(primary_kernel, primary_stride, primary_padding)
        windows = [*self.backbone.windows, primary, *(Window(kernel, stride) for _, kernel, stride in convolutions)]
        height, width = map_size(self.image_size, windows)
        self.primary_capsules = PrimaryCapsules(
            self.backbone.out_channels,
            primary_capsules,
            pose,
            *primary,
            activation=router.child_activation,
            scores=router.score_kind,
            bias=router.child_bias,
        )
        options: dict[str, Any] = {"routing": router, "std": std, "backend": backend}
        self.dropout = CapsuleDropout(dropout, router.mask_kind) if dropout else None
        layers: list[RoutedLayer] = []
        count = primary_capsules
        for (capsules, kernel, stride), size in zip(convolutions, sizes):
            layers.append(CapsuleConv2d(count, capsules, pose, size, kernel, stride, **options))
            count, pose = capsules, size
        if not shared:
            count *= height * width
        for capsules, size in zip(hidden, sizes[len(convolutions) :]):
            layers.append(CapsuleLinear(count, capsules, pose, size, **options))
            count, pose = capsules, size
        class_pose = pose if class_pose is None else class_pose
        last = CapsuleGlobal2d if shared else CapsuleLinear
        layers.append(last(count, num_classes, pose, class_pose, **options))
        self.capsules = CapsuleStack(layers, schedule or ("concurrent" if router.can_step() else "sequential"))
        rows, columns = parse_pose("class_pose", class_pose)
        self.class_scores = ClassScores(router, rows * columns, multi_label)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss

    def forward_features(self, images: Tensor) -> Tensor:
        return self.backbone(self.prepare(images))

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        capsules = self.primary_capsules(features)
        if self.dropout is not None:
            capsules = self.dropout(*capsules)
        if return_coefficients:
            routed = self.capsules.route(capsules.poses, capsules.scores, return_coefficients=True)
            last, coefficients = routed[-1], coefficients_of(self.routed_layers(), routed)
        else:
            last, coefficients = self.capsules(capsules.poses, capsules.scores), None
        return ModelOutput(self.class_scores(last), last.poses, None, coefficients, last.variances)


INVERTED_ATTENTION = {"name": "inverted_attention", "iterations": 2, "scale": True, "norm": "affine"}

_SIMPLE = {"name": "simple", "channels": 8}
_RESNET = {"name": "resnet", "channels": 16, "base_channels": 8, "blocks": (1, 1)}
_SMALL = {"image_size": 16, "num_classes": 3, "primary_capsules": 4, "convolutions": ((4, 3, 2), (4, 3, 1))}

_CIFAR100 = {"num_classes": 100, "pose": (6, 6), "hidden": (20,)}


def _inverted_attention(defaults: dict, options: dict) -> ConvCapsNet:
    return ConvCapsNet(**{"routing": INVERTED_ATTENTION, **defaults, **options})


@register_model(small={**_SMALL, "backbone": _SIMPLE})
def tsai_simple_cifar10(**options: Any) -> ConvCapsNet:
    """Inverted attention on one convolution for CIFAR-10: 561,297 parameters (Tsai 2020, table 8)."""
    return _inverted_attention({}, options)


@register_model(small={**_SMALL, "backbone": _SIMPLE, "pose": (2, 2), "hidden": (5,)})
def tsai_simple_cifar100(**options: Any) -> ConvCapsNet:
    """Inverted attention on one convolution for CIFAR-100: 1,462,989 parameters (Tsai 2020, table 9)."""
    return _inverted_attention({**_CIFAR100, "backbone": {"name": "simple", "channels": 128}}, options)


@register_model(small={**_SMALL, "backbone": _RESNET})
def tsai_resnet_cifar10(**options: Any) -> ConvCapsNet:
    """Inverted attention on the residual backbone for CIFAR-10: 1,828,817 parameters (Tsai 2020, tables 1 and 8)."""
    return _inverted_attention({"backbone": "resnet"}, options)


@register_model(small={**_SMALL, "backbone": _RESNET, "pose": (2, 2), "hidden": (5,)})
def tsai_resnet_cifar100(**options: Any) -> ConvCapsNet:
    """Inverted attention on the residual backbone for CIFAR-100: 2,799,629 parameters (Tsai 2020, tables 1 and 9)."""
    return _inverted_attention({**_CIFAR100, "backbone": "resnet"}, options)


_DYNAMIC = {"primary_kernel": 9, "primary_stride": 2, "pose": 8, "class_pose": 16, "convolutions": ()}
_SMALL_DYNAMIC = {"image_size": 16, "num_classes": 3, "primary_capsules": 4, "primary_kernel": 3}


@register_model(small={**_SMALL_DYNAMIC, "backbone": {"name": "simple", "channels": 8}})
def tsai_dynamic_simple(**options: Any) -> ConvCapsNet:
    """Dynamic routing on one convolution: 7,992,576 parameters for 10 classes, 31,585,536 for 100 (tables 4 and 5)."""
    backbone = {"name": "simple", "channels": 256, "kernel_size": 9, "stride": 1, "padding": 0}
    return ConvCapsNet(**{"routing": "dynamic", "backbone": backbone, **_DYNAMIC, **options})


@register_model(small={**_SMALL_DYNAMIC, "backbone": _RESNET})
def tsai_dynamic_resnet(**options: Any) -> ConvCapsNet:
    """Dynamic routing on the residual backbone: 12,451,136 parameters for 10 classes, 36,044,096 for 100 (table 1).

    These counts are those of a backbone with 256 channels and 2048 primary capsules, so the 9x9 convolution is padded.
    """
    defaults = {"backbone": {"name": "resnet", "channels": 256}, "primary_padding": 4}
    return ConvCapsNet(**{"routing": "dynamic", **_DYNAMIC, **defaults, **options})


_SMALL_EM = {**_SMALL, "image_size": 8, "convolutions": ((4, 3, 1),)}


@register_model(small={**_SMALL_EM, "backbone": {**_SIMPLE, "batch_norm": True}})
def tsai_em_simple(**options: Any) -> ConvCapsNet:
    """EM routing on one convolution: 453,044 parameters for 10 classes, 499,304 for 100 (tables 6 and 7)."""
    backbone = {"name": "simple", "channels": 256, "kernel_size": 4, "batch_norm": True}
    return ConvCapsNet(**{"routing": "em", "shared": True, "backbone": backbone, **options})


@register_model(small={**_SMALL_EM, "backbone": _RESNET})
def tsai_em_resnet(**options: Any) -> ConvCapsNet:
    """EM routing on the residual backbone: 1,710,580 parameters for 10 classes, 1,756,840 for 100 (table 1)."""
    return ConvCapsNet(**{"routing": "em", "shared": True, "backbone": "resnet", **options})


_MULTIMNIST = {
    "in_channels": 1,
    "image_size": 36,
    "backbone": {"name": "simple", "channels": 1024},
    "primary_capsules": 16,
    "primary_kernel": 3,
    "primary_stride": 2,
    "convolutions": ((16, 3, 1),),
    "multi_label": True,
}
_SMALL_MULTIMNIST = {
    "image_size": 15,
    "num_classes": 3,
    "backbone": _SIMPLE,
    "primary_capsules": 4,
    "convolutions": ((4, 3, 1),),
}


@register_model(small={**_SMALL_MULTIMNIST, "pose": (2, 2)})
def tsai_multimnist_matrix(**options: Any) -> ConvCapsNet:
    """Matrix poses for DiverseMultiMNIST: 9,963,969 parameters for one channel (Tsai 2020, table 10)."""
    return _inverted_attention({**_MULTIMNIST, "pose": (8, 8)}, options)


@register_model(small={**_SMALL_MULTIMNIST, "pose": 6})
def tsai_multimnist_vector(**options: Any) -> ConvCapsNet:
    """Vector poses for DiverseMultiMNIST: 42,478,017 parameters for one channel (Tsai 2020, table 11).

    With `routing="dynamic"` it is the CapsNet* of figure 5.
    """
    return _inverted_attention({**_MULTIMNIST, "pose": 64}, options)
