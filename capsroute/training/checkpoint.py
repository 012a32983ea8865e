"""Checkpoints: the whole state of a run in one safetensors file, with a checksum beside it; never pickled.

A file is written aside, flushed and renamed, and only then its checksum, so that what has a checksum is whole. The
last two are kept: when one is damaged, the one before it is there.
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from capsroute.files import write_atomically

FORMAT = "1"
KEPT = 2  # checkpoints


class Checkpoints:
    """The checkpoints in a folder.

    >>> import tempfile, torch
    >>> from capsroute.training.checkpoint import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder)
    ...     _ = checkpoints.save(7, {"weights": {"w": torch.ones(2)}, "step": 7})
    ...     checkpoints.load()
    {'weights': {'w': tensor([1., 1.])}, 'step': 7}
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write the state of a run after `step` steps, and let go of all but the last ones."""
        tensors: dict[str, Tensor] = {}
        skeleton = json.dumps(_flatten(state, "", tensors))
        content = save(tensors, metadata={"format": FORMAT, "state": skeleton})
        path = self.folder / f"step-{step:09d}.safetensors"
        write_atomically(path, content)
        # The form that `sha256sum --check` reads.
        line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
        write_atomically(path.with_suffix(".sha256"), line.encode())
        # Checkpoints of later steps were passed over when this run went on: they are of no use to anybody.
        paths = self._paths()
        kept = [other for other in paths if other.name <= path.name][-KEPT:]
        for old in paths:
            if old not in kept:
                old.with_suffix(".sha256").unlink(missing_ok=True)
                old.unlink(missing_ok=True)
        return path

    def load(
        self, report: Callable[[str], None] = print, check: Callable[[dict[str, Any]], None] = lambda state: None
    ) -> dict[str, Any] | None:
        """The newest state that is whole, or None where there is none; a damaged file is reported and passed over.

        So is one whose content `check` raises an error for, whatever its checksum says.
        """
        for path in reversed(self._paths()):
            try:
                state = _read(path)
                check(state)
                return state
            except Exception as error:  # whatever is wrong with a file, the one before it may be right
                report(f"{path}: damaged checkpoint ({_reason(error)}); going back to the one before")
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return text if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {text}"


def _read(path: Path) -> dict[str, Any]:
    checksum = path.with_suffix(".sha256")
    if not checksum.is_file():
        raise ValueError("its writing was not finished")
    if hashlib.sha256(path.read_bytes()).hexdigest() != checksum.read_text().split(" ")[0]:
        raise ValueError("its checksum does not match")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {metadata.get('format')!r}")
        return _restore(json.loads(metadata["state"]), {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Plain data in which each tensor has become a reference to an entry of `tensors`."""
    if isinstance(value, Tensor):
        # Clones: two names of one tensor must not share storage in the file.
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _flatten(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_flatten(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return {type(value).__name__: items}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"state: expected tensors and plain data, got {type(value).__name__} at {path!r}")


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _restore(item, tensors) for key, item in content}
    items = [_restore(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def random_state(device: torch.device) -> dict[str, Any]:
    """States of the generators of torch (CPU and `device`), numpy and Python.

    >>> import torch
    >>> from capsroute.training.checkpoint import random_state, restore_random_state
    >>> before = random_state(torch.device("cpu"))
    >>> first = torch.rand(3)
    >>> restore_random_state(before, torch.device("cpu"))
    >>> torch.equal(first, torch.rand(3))
    True
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": (kind, np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)),  # type: ignore[union-attr]
        "python": random.getstate(),
    }


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    if state["device"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    random.setstate(state["python"])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Generators seeded inside, and as they were outside; of a CPU alone where `device` is one."""
    before = random_state(device)
    try:
        # torch.manual_seed seeds every GPU too, whose states nothing would put back.
        torch.default_generator.manual_seed(seed) if device.type == "cpu" else torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield
    finally:
        restore_random_state(before, device)
