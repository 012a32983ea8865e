"""Models on disk: one folder with `model.safetensors` and `config.json`. Nothing is ever unpickled, and a model is made
again from what a file says of it only if the shapes of the tensors in the file agree."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from capsroute import __version__
from capsroute.files import write_atomically
from capsroute.models.base import CapsuleModel
from capsroute.models.registry import create_model, list_models
from capsroute.naming import OF_YOUR_OWN, did_you_mean, did_you_mean_beside

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CHECKSUM = "sha256"  # in the header of the weights
EXPORTED = "capsroute"  # under which an exported file keeps what it says of itself
RUN, BEST = "recipe.toml", "best"  # what a folder of a run has
# In a state dict only where a model normalises its images; weights of older versions have none.
OPTIONAL = ("preprocessing.mean", "preprocessing.deviation")
FOLDED_GROWTH = 4  # a model may have this many times the numbers that its folded weights have
Folder = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]


class ModelFileError(ValueError):
    """A file of a model is damaged, or its parts do not belong together; the message names the file."""


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
    check_ours(model)
    text, differs = describe(model)
    if differs:
        other = "save_weights of cr.models.files keeps weights alone, cr.inference.export writes folded layers"
        raise ValueError(f"model: expected one as {model.name!r} makes it, got one {differs}; {other}")
    save_weights(model, folder)
    write_atomically(Path(folder) / CONFIG, (text + "\n").encode())


def describe(model: CapsuleModel) -> tuple[str, str]:
    """What `load_model` makes a model from, as JSON; and how the one so made differs in its layers: "" if it does not.

    >>> import torch, capsroute as cr
    >>> from capsroute.models.files import describe
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> model.convolution = torch.nn.Sequential(model.convolution, torch.nn.Dropout())
    >>> describe(model)[1]
    "with 'convolution.0', 'convolution.1' besides"
    """
    description = {
        "name": model.name,
        "arguments": model.config,
        "library": "capsroute",
        "version": __version__,
        "routings": {name: layer.routing.config() for name, layer in model.routed_layers().items()},
        "shared": shared_names(model),
        "preprocessing": model.preprocessing.record(),
    }
    try:
        text = json.dumps(description, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model: expected arguments that JSON can hold, got {model.config!r} ({error})") from None
    with torch.device("meta"):
        layers = dict(_made(json.loads(text)).named_modules())
    own = dict(model.named_modules())
    more, fewer = ([repr(name) for name in one if name not in two] for one, two in ((own, layers), (layers, own)))
    said = [f"with {', '.join(more[:3])} besides"] * bool(more) + [f"without {', '.join(fewer[:3])}"] * bool(fewer)
    return text, " and ".join(said)


def check_ours(model: nn.Module) -> None:
    """A model that can be made again from its name and arguments; a ValueError that says what else to do, if not."""
    if not isinstance(model, CapsuleModel):
        own = "give the one inside of what is compiled or wrapped; cr.models.files.save_weights takes any module"
        raise ValueError(f"model: expected a model of cr.create_model, got {type(model).__name__}; {own}")


def save_weights(model: nn.Module, folder: Folder) -> None:
    """Write the weights of any module into a folder, for `load_weights` to read into one that is made alike."""
    shared = shared_names(model)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in shared}
    content = save(state, metadata={"format": "pt", CHECKSUM: checksum(state)})
    write_atomically(Path(folder) / WEIGHTS, _in_order(content))


def _in_order(content: bytes) -> bytes:
    """The same safetensors file with a header in fixed order, so that equal weights are equal files: the library writes
    metadata in a random one."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # what follows is aligned
    return len(header).to_bytes(8, "little") + header + content[end:]


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
        return _load_file(path)
    if path.is_dir():
        run = not (path / CONFIG).is_file() and (path / RUN).is_file()
        return _load_run(path) if run else _load_folder(path)
    return _load_named(os.fspath(source))


def _load_run(folder: Path) -> CapsuleModel:
    """The best weights of a run; a warning where the run normalised its images and is too old to have kept how."""
    kept = "preprocessing" in read_description(folder / BEST)
    if not kept and re.search(r'^normalise *= *"channels"', (folder / RUN).read_text(encoding="utf-8"), re.M):
        message = "normalised its images and was made by a version that did not keep mean and deviation"
        warnings.warn(f"{folder} {message}: cr.training.load_run measures them again", stacklevel=3)
    return _load_folder(folder / BEST)


def _load_named(name: str) -> CapsuleModel:
    """Weights of the package, else those of a repository of the Hub."""
    from capsroute.models.pretrained import pretrained_model, pretrained_weights

    entries = pretrained_weights()
    chosen = next((entry for entry in entries if name in (entry.tag, entry.model)), None)
    if chosen is not None:
        return pretrained_model(chosen.model, chosen.tag, {})
    # What would lie in a folder that is here is not looked for elsewhere.
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) and not Path(name).parent.is_dir():
        try:
            return CapsuleModel.from_pretrained(name)
        except (OSError, ModuleNotFoundError) as error:  # no connection, no such repository, no package
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"source: found no folder {name!r} here, and the Hub gave none: {reason}") from error
    known = [named for entry in entries for named in (entry.tag, entry.model)]
    near = did_you_mean(name, known) or did_you_mean_beside(Path(name), RUN) or did_you_mean_beside(Path(name), CONFIG)
    raise ValueError(
        f"source: expected a folder with {CONFIG} and {WEIGHTS}, a run, an exported file, a name on the Hub or one of "
        f"{', '.join(known)}; found no {CONFIG} at {name!r}{near}"
    )


def _load_folder(folder: Path) -> CapsuleModel:
    description, (shapes, _) = read_description(folder), read_header(_weights_in(folder))
    model = remade(description, shapes, str(folder))
    load_weights(model, folder)
    return model.eval()


def _load_file(path: Path) -> CapsuleModel:
    """What `cr.inference.export` wrote with the format safetensors, if no layer of it is folded."""
    shapes, metadata = read_header(path)
    about = read_remake(path, metadata)
    if about["folded"]:
        raise ValueError(f"{path}: some layers of it are folded; cr.inference.load_exported reads it")
    model = remade(about, shapes, str(path))
    assign(model, read_tensors(path), str(path))
    return model.eval()


def read_remake(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """What the header of an exported file says of its model, as `remade` takes it, and which layers are `folded`."""
    about = parse_json(metadata.get(EXPORTED, "{}"), str(path))
    remake = about.get("remake") if isinstance(about, dict) else None
    if not isinstance(remake, dict) or not isinstance(remake.get("folded", []), list):
        raise ModelFileError(f"{path}: expected weights that `export` wrote, found others")
    return {"folded": [], **remake, "name": about.get("model")}


def load_weights(model: nn.Module, folder: Folder) -> None:
    """Copy the weights in a folder into a model that has the same names and shapes."""
    path = _weights_in(Path(folder))
    (_, metadata), tensors = read_header(path), read_tensors(path)
    if metadata.get(CHECKSUM, checksum(tensors)) != checksum(tensors):
        raise ModelFileError(f"{path}: its checksum does not match: the file was damaged after it was written")
    assign(model, tensors, str(path))


def checksum(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values. It stands in the file itself, so that both are written at once."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        values = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def assign(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Copy tensors into a model; a ModelFileError that lists all about them that does not fit, if anything does not.

    A tensor that the model holds under several names may come under any one of them.
    """
    _check_fits(model, {name: tuple(tensor.shape) for name, tensor in state.items()}, source)
    state = dict(state)
    for name, kept in shared_names(model).items():
        state[name] = state[kept] = state.get(name, state.get(kept))  # type: ignore[assignment]
    model.load_state_dict(state)


def read_description(folder: Folder) -> dict[str, Any]:
    """What `save_model` wrote down of a model: its name, its arguments, its routings."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ModelFileError(f"folder: expected {CONFIG} and {WEIGHTS} in {folder}, found no {CONFIG}")
    description = parse_json(path.read_bytes(), str(path))
    if not isinstance(description, dict) or not {"name", "arguments"} <= set(description):
        raise ModelFileError(f"{path}: expected the fields name and arguments of a saved model")
    return description


def _weights_in(folder: Path) -> Path:
    path = folder / WEIGHTS
    if not path.is_file():
        raise ModelFileError(f"folder: expected {WEIGHTS} in {folder}, found none")
    return path


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
    _check_fits(sketch, shapes, source, whole)
    if numbers > FOLDED_GROWTH * held:
        raise ModelFileError(f"{source}: expected a model of about {held:,} numbers, found one of {numbers:,}")
    return _made(description)


def _check_fits(model: nn.Module, shapes: Shapes, source: str, whole: bool = True) -> None:
    """A ModelFileError that lists what is missing, unexpected or of another shape among tensors for a model."""
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
    problems = [*missing, *unexpected, *others] if whole else others
    if problems:
        raise ModelFileError(f"{source}: these weights do not fit the model:\n  " + "\n  ".join(problems))


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
