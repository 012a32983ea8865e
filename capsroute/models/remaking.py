"""A model made again from what a file says of it, and only if the shapes of the tensors in the file agree."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from capsroute.models.base import CapsuleModel
from capsroute.models.registry import create_model, list_models
from capsroute.naming import OF_YOUR_OWN

Shapes = dict[str, tuple[int, ...]]
# In a state dict only where a model normalises its images; weights of older versions have none.
OPTIONAL = ("preprocessing.mean", "preprocessing.deviation")
FOLDED_GROWTH = 4  # a model may have this many times the numbers that its folded weights have


class ModelFileError(ValueError):
    """A file of a model is damaged, or its parts do not belong together; the message names the file."""


def parse_json(text: str | bytes, source: str) -> Any:
    """Plain data; a ModelFileError for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{source}: expected JSON, found something else ({error})") from None


def read_header(path: Path) -> tuple[Shapes, dict[str, str]]:
    """Names and shapes of the tensors in a safetensors file, and its metadata; no tensor is read."""
    with _explained(path), safe_open(path, framework="pt") as stored:
        return {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}, stored.metadata() or {}  # noqa: SIM118


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    with _explained(path), safe_open(path, framework="pt") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise ModelFileError(f"{path}: expected a whole safetensors file, found a damaged one ({error})") from None


def remade(description: Mapping[str, Any], shapes: Shapes, source: str, whole: bool = True) -> CapsuleModel:
    """The model that `description` (name, arguments, routings, shared, preprocessing) speaks of, with fresh weights.

    It is made without memory first, and refused where its tensors are not those of `shapes`, so that a file which asks
    for more than it holds costs nothing. `whole=False`: some tensors have other names, for layers were folded.
    """
    try:
        with torch.device("meta"), _at_most(4 * len(shapes) + 100):
            sketch = _made(description)
        numbers = sum(tensor.numel() for tensor in sketch.state_dict().values())
        held = sum(math.prod(shape) for shape in shapes.values())
    except Exception as error:  # whatever a constructor makes of arguments that are none
        own = f"; {OF_YOUR_OWN}" if "expected one of" in str(error) else ""  # a name that nobody registered
        raise ModelFileError(f"{source}: expected what makes a model, found other ({error}){own}") from error
    problems = misfits(sketch, shapes, whole)
    if problems:
        raise ModelFileError(f"{source}: these weights do not fit the model:\n  " + "\n  ".join(problems))
    if numbers > FOLDED_GROWTH * held:
        raise ModelFileError(f"{source}: expected a model of about {held:,} numbers, found one of {numbers:,}")
    return _made(description)


def misfits(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], whole: bool = True) -> list[str]:
    """What is missing, unexpected or of another shape among tensors that a model is to take over."""
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = dict(shapes)
    for name, kept in shared_names(model).items():
        found = given.get(name, given.get(kept))
        if found is not None:
            given[name] = given[kept] = found
    optional = OPTIONAL if hasattr(model, "preprocessing") else ()
    missing = [f"missing {name} {list(own[name])}" for name in own if name not in {*given, *optional}]
    unexpected = [f"unexpected {name} {list(given[name])}" for name in given if name not in {*own, *optional}]
    others = [
        f"{name} is {list(given[name])}, expected {list(own[name])}"
        for name in own
        if name in given and given[name] != own[name]
    ]
    return [*missing, *unexpected, *others] if whole else others


def shared_names(model: nn.Module) -> dict[str, str]:
    """Each further name of a tensor that the model holds under several names -> the first of its names."""
    first: dict[int, str] = {}
    shared = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        kept = first.setdefault(id(tensor), name)
        if kept != name:
            shared[name] = kept
    return shared


def _made(description: Mapping[str, Any]) -> CapsuleModel:
    name, arguments = description["name"], description["arguments"]
    # By its registered name, or by its class's where it was made without one.
    unnamed = name not in list_models() and name in CapsuleModel.kinds
    model = CapsuleModel.kinds[name](**arguments) if unnamed else create_model(name, **arguments)
    layers = model.routed_layers()
    for name, routing in description.get("routings", {}).items():
        if name in layers and layers[name].routing.config() != routing:
            layers[name].set_routing(routing)
    for name, kept in description.get("shared", {}).items():
        _share(model, name, kept)
    model.set_preprocessing(**(description.get("preprocessing") or {}))
    return model


def _share(model: nn.Module, name: str, kept: str) -> None:
    """Make two names of a model mean one tensor."""
    (owner, attribute), (source, original) = (name.rpartition(".")[::2], kept.rpartition(".")[::2])
    tensor = getattr(model.get_submodule(source), original)
    kind = "_parameters" if isinstance(tensor, nn.Parameter) else "_buffers"
    getattr(model.get_submodule(owner), kind)[attribute] = tensor


@contextmanager
def _at_most(count: int) -> Iterator[None]:
    """A network whose layers do not come to an end is given up after so many parameters."""
    made, here = 0, threading.get_ident()

    def counted(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal made
        made += threading.get_ident() == here
        if made > count:
            raise ValueError(f"more than {count} parameters")

    hook = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()
