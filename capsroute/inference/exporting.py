"""`export`: write a network for elsewhere, and believe it only after running what was written."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from capsroute.extras import named_extra
from capsroute.files import write_atomically
from capsroute.inference.coefficients import uniform_coefficients
from capsroute.inference.exported_programs import (
    KEY,
    PROGRAMS,
    Normalise,
    Predictor,
    Runner,
    describe,
    random_images,
)
from capsroute.inference.folding import fold, folded_layers
from capsroute.models import load_model
from capsroute.models.files import ModelFileError, assign, check_ours, read_header, read_remake, read_tensors, remade

FORMATS = {"onnx": ".onnx", "pt2": ".pt2", "aoti": ".pt2", "safetensors": ".safetensors"}
OPSET = 18
CHECKED_BATCHES = (1, 2, 33)


@dataclass(frozen=True)
class Exported:
    """A written file: where it is, what it says about itself, and how far its scores are from the network's."""

    path: Path
    metadata: dict[str, Any]
    largest_difference: float


@named_extra
def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    format: str | None = None,
    classes: Sequence[str] | None = None,
    normalise: Normalise | None = None,
    opset: int = OPSET,
) -> Exported:
    """Write a model, dynamic or folded, as one file that takes images in batches of any size.

    The file is run on random batches of 1, 2 and 33 images before it gets its name: one that differs from the model is
    never left behind. Its metadata (class names, input size and normalisation, opset) go into it and into `path.json`.

    Args:
        model: what `create_model`, `with_coefficients` or `fold` gave. Its decoder is left out (kept in safetensors).
        path: the file. Its folder is made when it is not there.
        format: "onnx", "pt2" (torch.export), "aoti" (AOTInductor: compiled for this machine, needs a C++ compiler) or
            "safetensors" (weights for `load_exported`); None: what the name of the file says.
        classes: a name for each class; None for those of `model.preprocessing`, else the numbers.
        normalise: (mean, std) a channel that images in [0, 1] must be normalised with before they go in: only for a
            model that does not do it itself, see `model.preprocessing`.
        opset: of ONNX.

    Example:
        >>> import pathlib, tempfile, capsroute as cr
        >>> folded = cr.inference.fold(cr.create_model("capsnet_small", image_size=8), "uniform")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exported = cr.inference.export(folded, pathlib.Path(folder) / "digits.pt2")
        >>> exported.metadata["inference"], exported.largest_difference < 1e-5
        ('folded', True)
    """
    path = Path(path)
    format = _format(path, format)
    predictor = Predictor(model)
    if format != "aoti":
        predictor.cpu()
    metadata = describe(model, predictor.output_names, classes, normalise) | {"format": format}
    if format == "onnx":
        metadata["opset"] = opset
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.stem}.{os.getpid()}.partial{FORMATS[format]}")
    try:
        if format == "safetensors":
            save_weights(model, aside, metadata)
        else:
            PROGRAMS[format][0](predictor, aside, metadata)
        difference = _largest_difference(predictor, _load(format, aside))
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    write_atomically(path.with_name(path.name + ".json"), (json.dumps(metadata, indent=2) + "\n").encode())
    return Exported(path, metadata, difference)


def _format(path: Path, format: str | None) -> str:
    chosen = format or next((name for name, suffix in FORMATS.items() if suffix == path.suffix), None)
    if chosen not in FORMATS:
        given = repr(format) if format else f"a file named {path.name!r}"
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {given}")
    if path.suffix != FORMATS[chosen]:
        raise ValueError(f"path: expected a name that ends in {FORMATS[chosen]!r} for {chosen}, got {path.name!r}")
    return chosen


def _load(format: str, path: Path) -> Runner:
    if format != "safetensors":
        return PROGRAMS[format][1](path)
    loaded = Predictor(load_exported(path))
    return lambda images: list(loaded(images))


def _largest_difference(predictor: Predictor, run: Runner) -> float:
    largest = 0.0
    for batch in CHECKED_BATCHES:
        images = random_images(predictor, batch)
        with torch.no_grad():
            expected, found = predictor(images)[0], run(images)[0]
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
            raise RuntimeError(f"the exported file differs from the model by {_difference(found, expected):.2g}")
        largest = max(largest, _difference(found, expected))
    return largest


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


def save_weights(model: nn.Module, path: Path, metadata: dict[str, Any]) -> None:
    """All weights, and in the header how to make the model again; see `load_exported`."""
    check_ours(model)
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
