"""Models of Tsai et al. 2020: tables 4 to 11 on the simple backbone, and table 1's on the residual one.

All are `ConvCapsNet` with the numbers of a table. Inverted attention is that of the released code: agreement times
1/sqrt(d), LayerNorm with a learned scale and shift.
"""

from __future__ import annotations

from typing import Any

from capsroute.models.convolutional import ConvCapsNet
from capsroute.models.registry import register_model

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
