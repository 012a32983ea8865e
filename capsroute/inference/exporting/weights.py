"""Weights alone as one safetensors file that says which model they belong to, dynamic, fast or folded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from torch import nn

from capsroute.inference.exporting.metadata import KEY
from capsroute.inference.fast import uniform_coefficients
from capsroute.inference.folding import fold, folded_layers
from capsroute.models import load_model
from capsroute.models.files import assign, read_remake
from capsroute.models.remaking import ModelFileError, read_header, read_tensors, remade

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
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"path: expected exported weights at {path}, found no such file")
    shapes, metadata = read_header(path)
    about = read_remake(path, metadata)
    if not about["folded"]:
        return load_model(path)
    model: nn.Module = remade(about, shapes, str(path), whole=False)
    try:
        model = fold(model, uniform_coefficients(model, about["folded"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelFileError(f"{path}: expected names of layers that can be folded, found others ({error})") from error
    assign(model, read_tensors(path), str(path))
    return model.eval()
