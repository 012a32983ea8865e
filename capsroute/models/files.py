"""Models on disk: one folder with `model.safetensors` and `config.json`. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from capsroute import __version__
from capsroute.files import write_atomically
from capsroute.models.base import CapsuleModel
from capsroute.models.registry import create_model, did_you_mean, list_models

__all__ = ["CONFIG", "WEIGHTS", "assign", "load_model", "load_weights", "read_description", "save_model"]

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
RUN, BEST = "recipe.toml", "best"  # what a folder of a run has
Folder = str | os.PathLike[str]


def save_model(model: CapsuleModel, folder: Folder) -> None:
    """Write a model's weights, and all that is needed to make it again, into a folder.

    >>> import tempfile, torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cr.save_model(model, folder)
    ...     again = cr.load_model(folder)
    >>> image = torch.rand(1, 1, 8, 8)
    >>> torch.equal(model(image).scores, again(image).scores)
    True
    """
    shared = _shared_names(model)
    description = {
        "name": model.name,
        "arguments": model.config,
        "library": "capsroute",
        "version": __version__,
        "routings": {name: layer.routing.config() for name, layer in model.routed_layers().items()},
        "shared": shared,
        "preprocessing": model.preprocessing.record(),
    }
    try:
        text = json.dumps(description, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model: expected arguments that JSON can hold, got {model.config!r} ({error})") from None
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in shared}
    path = Path(folder)
    write_atomically(path / WEIGHTS, save(state, metadata={"format": "pt"}))
    write_atomically(path / CONFIG, (text + "\n").encode())


def load_model(source: Folder) -> CapsuleModel:
    """A trained model by where it is, on the CPU and in evaluation mode.

    `source` is a folder that `save_model` wrote, the folder of a run (its best weights), the .safetensors file of
    either or of `capsroute export`, the tag of weights of the package or the name of a model that comes with some, or
    a name on the Hugging Face Hub (`someone/something`, extra `hub`). What is there on the disk comes first.

    >>> import capsroute as cr
    >>> cr.load_model("mnist-max-min").classes[:3]
    ('0', '1', '2')
    """
    path = Path(source)
    if path.is_file() and path.name == WEIGHTS and path.with_name(CONFIG).is_file():
        path = path.parent
    if path.is_file():
        from capsroute.inference.exporting import load_exported

        return load_exported(path)  # type: ignore[return-value]
    if path.is_dir():
        run = not (path / CONFIG).is_file() and (path / RUN).is_file()
        return _load_folder(path / BEST if run else path)
    return _load_named(os.fspath(source))


def _load_named(name: str) -> CapsuleModel:
    """Weights of the package, else those of a repository of the Hub."""
    from capsroute.models.pretrained import pretrained_model, pretrained_weights

    entries = pretrained_weights()
    chosen = next((entry for entry in entries if name in (entry.tag, entry.model)), None)
    if chosen is not None:
        return pretrained_model(chosen.model, chosen.tag, {})
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        return CapsuleModel.from_pretrained(name)
    known = [named for entry in entries for named in (entry.tag, entry.model)]
    raise ValueError(
        f"source: expected a folder with {CONFIG} and {WEIGHTS}, a run, an exported file, a name on the Hub or one of "
        f"{', '.join(known)}; found no {CONFIG} at {name!r}{did_you_mean(name, known)}"
    )


def _load_folder(folder: Path) -> CapsuleModel:
    description = read_description(folder)
    model = _fresh(description["name"], description["arguments"])
    layers = model.routed_layers()
    for name, routing in description.get("routings", {}).items():
        if name in layers and layers[name].routing.config() != routing:
            layers[name].set_routing(routing)
    for name, kept in description.get("shared", {}).items():
        _share(model, name, kept)
    model.set_preprocessing(**description.get("preprocessing", {}))
    load_weights(model, folder)
    return model.eval()


def _fresh(name: str, arguments: dict[str, Any]) -> CapsuleModel:
    """A model by its registered name, or by its class's where it was made without one."""
    if name not in list_models() and name in CapsuleModel.kinds:
        return CapsuleModel.kinds[name](**arguments)
    return create_model(name, **arguments)


def load_weights(model: nn.Module, folder: Folder) -> None:
    """Copy the weights in a folder into a model that has the same names and shapes."""
    path = Path(folder) / WEIGHTS
    assign(model, _read_weights(path), str(path))


def assign(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Copy tensors into a model; a ValueError that lists everything about them that does not fit, if anything does not.

    A tensor that the model holds under several names may come under any one of them.
    """
    own, state = model.state_dict(), dict(state)
    optional = {f"preprocessing.{name}" for name in ("mean", "deviation")} if hasattr(model, "preprocessing") else set()
    for name, kept in _shared_names(model).items():
        given = state.get(name, state.get(kept))
        if given is not None:
            state[name] = state[kept] = given
    problems = [
        *(f"missing {name} {list(own[name].shape)}" for name in own if name not in {*state, *optional}),
        *(f"unexpected {name} {list(state[name].shape)}" for name in state if name not in {*own, *optional}),
        *(
            f"{name} is {list(state[name].shape)}, expected {list(own[name].shape)}"
            for name in own
            if name in state and state[name].shape != own[name].shape
        ),
    ]
    if problems:
        raise ValueError(f"{source}: these weights do not fit the model:\n  " + "\n  ".join(problems))
    model.load_state_dict(state)


def read_description(folder: Folder) -> dict[str, Any]:
    """What `save_model` wrote down of a model: its name, its arguments, its routings."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ValueError(f"folder: expected {CONFIG} and {WEIGHTS} in {folder}, found no {CONFIG}")
    try:
        description = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, found something else ({error})") from None
    if not isinstance(description, dict) or not {"name", "arguments"} <= set(description):
        raise ValueError(f"{path}: expected the fields name and arguments of a saved model")
    return description


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"folder: expected {path.name} in {path.parent}, found none")
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a whole safetensors file, found a damaged one ({error})") from None


def _shared_names(model: nn.Module) -> dict[str, str]:
    """Each further name of a tensor that the model holds under several names -> the first of its names."""
    first: dict[int, str] = {}
    shared = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        kept = first.setdefault(id(tensor), name)
        if kept != name:
            shared[name] = kept
    return shared


def _share(model: nn.Module, name: str, kept: str) -> None:
    """Make two names of a model mean one tensor."""
    (owner, attribute), (source, original) = (name.rpartition(".")[::2], kept.rpartition(".")[::2])
    tensor = getattr(model.get_submodule(source), original)
    kind = "_parameters" if isinstance(tensor, nn.Parameter) else "_buffers"
    getattr(model.get_submodule(owner), kind)[attribute] = tensor
