"""Modules that own parameters and call routing."""

import importlib
from typing import Any

# First: `list_routings` shows the oldest algorithms first.
from capsroute.layers.dot_routers import DynamicRouter, FastRouter, MaxMinRouter, PoolingRouter, UniformRouter

# isort: split
from capsroute.layers.attention_routers import InvertedAttentionRouter, SelfAttentionRouter, SelfRouter
from capsroute.layers.conv import CapsuleConv2d, CapsuleGlobal2d
from capsroute.layers.decoder import Decoder, mask_capsules
from capsroute.layers.gaussian_routers import EMRouter, HeinsenRouter, VBRouter
from capsroute.layers.heinsen_layer import HeinsenRouting
from capsroute.layers.linear import CapsuleLinear, RoutedLayer
from capsroute.layers.pool import RoutingPool2d, replace_pooling
from capsroute.layers.pose import Capsules, Pose, PoseLayerNorm, flatten_positions, parse_pose
from capsroute.layers.primary import CapsuleDropout, PrimaryCapsules
from capsroute.layers.router import Router, list_routings, make_router, register_routing
from capsroute.layers.slot_attention import SlotAttention
from capsroute.layers.stack import CapsuleStack
from capsroute.layers.vector_routing import VectorRouting, credit

__all__ = [
    "CapsuleConv2d",
    "CapsuleDropout",
    "CapsuleGlobal2d",
    "CapsuleLinear",
    "CapsuleStack",
    "Capsules",
    "Decoder",
    "DynamicRouter",
    "EMRouter",
    "FastRouter",
    "HeinsenRouter",
    "HeinsenRouting",
    "InvertedAttentionRouter",
    "MaxMinRouter",
    "PoolingRouter",
    "Pose",
    "PoseLayerNorm",
    "PrimaryCapsules",
    "RoutedLayer",
    "Router",
    "RoutingPool2d",
    "SelfAttentionRouter",
    "SelfRouter",
    "SlotAttention",
    "UniformRouter",
    "VBRouter",
    "VectorRouting",
    "credit",
    "flatten_positions",
    "list_routings",
    "make_router",
    "mask_capsules",
    "parse_pose",
    "register_routing",
    "replace_pooling",
]


def __getattr__(name: str) -> Any:
    # A head of whole networks is made of layers and lives with the models; people look for it here too.
    if name == "RoutingHead":
        return getattr(importlib.import_module("capsroute.models"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
