"""Tensors whose axes have names: what every function of this room returns, before anything is drawn."""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from capsroute.files import write_atomically


def along(axes: str) -> dict[str, tuple[str, ...]]:
    """Metadata of a field of a result: the names of its tensor's axes, with commas between them."""
    return {"axes": tuple(axes.split(", "))}


class _Axes:
    """The axes of each tensor of a class of results, by the tensor's name: what its fields say."""

    def __get__(self, instance: Any, kind: type) -> dict[str, tuple[str, ...]]:
        return {field.name: field.metadata["axes"] for field in dataclasses.fields(kind) if "axes" in field.metadata}


@dataclasses.dataclass(frozen=True, eq=False)
class Named:
    """The base of all results: `axes` names the axes of each tensor, and axes of one name have one size.

    >>> import torch
    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> from capsroute.analysis import Named
    >>> @dataclass(frozen=True, eq=False)
    ... class Heights(Named):
    ...     axes: ClassVar = {"metres": ("person", "year"), "years": ("year",)}
    ...     metres: torch.Tensor
    ...     years: torch.Tensor
    >>> Heights(torch.rand(3, 2), torch.tensor([1999, 2000])).size("person")
    3
    """

    axes: ClassVar[dict[str, tuple[str, ...]]]

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for name, axes in self._present():
            shape = getattr(self, name).shape
            if len(shape) != len(axes):
                raise ValueError(f"{name}: expected the axes {', '.join(axes)}, got {list(shape)}")
            for axis, size in zip(axes, shape):
                if sizes.setdefault(axis, size) != size:
                    raise ValueError(f"{name}: expected {sizes[axis]} along {axis!r} as elsewhere, got {size}")

    def size(self, axis: str) -> int:
        """How long the axis of this name is."""
        for name, axes in self._present():
            if axis in axes:
                return getattr(self, name).shape[axes.index(axis)]
        known = sorted({axis for _, axes in self._present() for axis in axes})
        raise ValueError(f"axis: expected one of {', '.join(known)}, got {axis!r}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tensors as one .npz file; its entry `axes` is JSON that names their axes."""
        arrays = {name: getattr(self, name).detach().cpu().numpy() for name, _ in self._present()}
        content = io.BytesIO()
        np.savez_compressed(content, axes=np.array(json.dumps(dict(self._present()))), **arrays)
        write_atomically(Path(path), content.getvalue())

    def _present(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(name, axes) for name, axes in self.axes.items() if isinstance(getattr(self, name), Tensor)]


Named.axes = _Axes()  # type: ignore[assignment]  # not before: a dataclass looks at its attributes while it is made
