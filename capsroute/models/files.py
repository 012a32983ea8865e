"""Models on disk: one folder with `model.safetensors` and `config.json`. Nothing is ever unpickled."""

import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from capsroute import __version__
from capsroute.files import write_atomically
from capsroute.models.base import CapsuleModel
from capsroute.models.remaking import (
    ModelFileError,
    misfits,
    parse_json,
    read_header,
    read_tensors,
    remade,
    shared_names,
)
from capsroute.naming import did_you_mean, did_you_mean_beside

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CHECKSUM = "sha256"  # in the header of the weights
EXPORTED = "capsroute"  # under which an exported file keeps what it says of itself
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
    check_ours(model)
    shared = shared_names(model)
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
    save_weights(model, folder)
    write_atomically(Path(folder) / CONFIG, (text + "\n").encode())


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
    problems = misfits(model, {name: tuple(tensor.shape) for name, tensor in state.items()})
    if problems:
        raise ModelFileError(f"{source}: these weights do not fit the model:\n  " + "\n  ".join(problems))
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
