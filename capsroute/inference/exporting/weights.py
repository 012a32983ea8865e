"""Weights alone as one safetensors file that says which model they belong to, dynamic, fast or folded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from capsroute.inference.exporting.metadata import KEY
from capsroute.inference.fast import uniform_coefficients
from capsroute.inference.folding import fold, folded_layers
from capsroute.models import create_model

__all__ = ["load_exported", "save_weights"]


def save_weights(model: nn.Module, path: Path, metadata: dict[str, Any]) -> None:
    """All weights, and in the header how to make the model again; see `load_exported`."""
    routings = {name: layer.routing.config() for name, layer in model.routed_layers().items()}  # type: ignore[operator]
    remake = {"arguments": model.config, "routings": routings, "folded": folded_layers(model)}
    if metadata["preprocessing"] is not None:
        remake["preprocessing"] = metadata["preprocessing"]
    save_model(model, str(path), metadata={KEY: json.dumps({**metadata, "remake": remake})})


def load_exported(path: str | os.PathLike[str]) -> nn.Module:
    """The model whose weights `export(..., format="safetensors")` wrote, in evaluation mode.

    >>> import pathlib, tempfile, torch, capsroute as cr
    >>> folded = cr.inference.fold(cr.create_model("capsnet_small", image_size=8), "uniform")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = cr.inference.export(folded, pathlib.Path(folder) / "digits.safetensors")
    ...     again = cr.inference.load_exported(exported.path)
    >>> type(again.class_capsules).__name__
    'FoldedCapsuleLinear'
    """
    if not Path(path).is_file():
        raise ValueError(f"path: expected exported weights at {path}, found no such file")
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = json.loads((stored.metadata() or {}).get(KEY, "{}"))
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: expected a whole safetensors file, found a damaged one ({error})") from None
    if "remake" not in metadata:
        raise ValueError(f"{path}: expected weights that `export` wrote, found others")
    model = _remade(metadata["model"], **metadata["remake"])
    load_model(model, path)
    return model.eval()


def _remade(
    name: str,
    arguments: dict[str, Any],
    routings: dict[str, dict],
    folded: list[str],
    preprocessing: dict[str, Any] | None = None,
) -> nn.Module:
    model = create_model(name, **arguments)
    model.set_preprocessing(**preprocessing or {})
    layers = model.routed_layers()
    for layer, routing in routings.items():
        if layers[layer].routing.config() != routing:
            layers[layer].set_routing(routing)
    return fold(model, uniform_coefficients(model, folded)) if folded else model
