"""What goes along with an exported network: what its input must be, and what its outputs mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from capsroute import __version__
from capsroute.inference.folding import folded_layers
from capsroute.layers import RoutedLayer

__all__ = ["KEY", "describe"]

KEY = "capsroute"  # under which a file keeps it
Normalise = tuple[Sequence[float], Sequence[float]]


def describe(
    model: nn.Module, outputs: Sequence[str], classes: Sequence[str] | None, normalise: Normalise | None
) -> dict[str, Any]:
    """Plain data that a program in any language can read from JSON.

    >>> import capsroute as cr
    >>> from capsroute.inference.exporting.metadata import describe
    >>> about = describe(cr.create_model("capsnet_small", image_size=8), ["scores", "poses"], None, None)
    >>> about["inference"], about["input"]["shape"], about["classes"][:2]
    ('as trained', ['batch', 1, 8, 8], ['0', '1'])
    """
    count = int(model.num_classes)  # type: ignore[arg-type]
    preprocessing = getattr(model, "preprocessing", None)
    record = None if preprocessing is None else preprocessing.record()  # type: ignore[operator]
    if classes is None and record is not None:
        classes = record["classes"]
    names = [str(number) for number in range(count)] if classes is None else list(classes)
    if len(names) != count:
        raise ValueError(f"classes: expected {count} names, one for each class of the model, got {len(names)}")
    channels, height, width = model.input_shape  # type: ignore[misc]
    mean_std = _mean_std(normalise, channels)
    return {
        "library": KEY,
        "version": __version__,
        "torch": torch.__version__,
        "model": str(model.name),
        "inference": _inference(model),
        "classes": names,
        "input": {
            "name": "images",
            "shape": ["batch", channels, height, width],
            "range": [0.0, 1.0],
            "normalise": mean_std,
        },
        # What the file does by itself (mean, deviation), and what is left to do with an image of another size.
        "preprocessing": None if record is None else record | {"classes": names},
        "outputs": list(outputs),
        "scores": str(model.score_kind),
        "several": getattr(model, "default_loss", None) == "binary_cross_entropy",  # classes in an image
    }


def _mean_std(normalise: Normalise | None, channels: int) -> dict[str, list[float]] | None:
    if normalise is None:
        return None
    mean, std = (list(map(float, values)) for values in normalise)
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"normalise: expected mean and std of {channels} channels, got {mean} and {std}")
    return {"mean": mean, "std": std}


def _inference(model: nn.Module) -> str:
    routed = [layer for layer in model.modules() if isinstance(layer, RoutedLayer)]
    if folded_layers(model):
        return "folded" if not routed else "partly folded"
    given = [layer.routing.given_coefficients() is not None for layer in routed]
    return "fast" if given and all(given) else "as trained"
