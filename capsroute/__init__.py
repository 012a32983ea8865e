"""capsroute: capsule networks and routing by agreement for PyTorch."""

import importlib
from typing import Any

from capsroute import form
from capsroute.extras import naming_extras
from capsroute.routing import (
    Routed,
    dynamic_routing,
    em_routing,
    exponential_squash,
    fast_routing,
    heinsen_routing,
    inverted_attention_routing,
    max_min_routing,
    pooling_routing,
    self_attention_routing,
    self_routing,
    slot_routing,
    squash,
    uniform_routing,
    vb_routing,
)
from capsroute.votes import DenseVotes, IdentityVotes, LinearVotes, Votes

__version__ = "0.2.0"

# Rooms that need more than torch, or take a moment to import, load when first asked for.
_ROOMS = ("analysis", "data", "inference", "layers", "losses", "models", "training")
_MODEL_NAMES = ("create_model", "list_models", "list_pretrained", "load_model", "register_model", "save_model")

__all__ = [
    "DenseVotes",
    "IdentityVotes",
    "LinearVotes",
    "Routed",
    "Votes",
    "dynamic_routing",
    "em_routing",
    "exponential_squash",
    "fast_routing",
    "form",
    "heinsen_routing",
    "inverted_attention_routing",
    "max_min_routing",
    "pooling_routing",
    "self_attention_routing",
    "self_routing",
    "slot_routing",
    "squash",
    "uniform_routing",
    "vb_routing",
    "predict",
    *_ROOMS,
    *_MODEL_NAMES,
]


def __getattr__(name: str) -> Any:
    if name == "predict":
        return importlib.import_module("capsroute.prediction").predict
    if name in _ROOMS:
        with naming_extras():
            return importlib.import_module(f"capsroute.{name}")
    if name in _MODEL_NAMES:
        return getattr(importlib.import_module("capsroute.models"), name)
    raise AttributeError(f"module 'capsroute' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
