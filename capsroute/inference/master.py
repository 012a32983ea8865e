"""Master coefficients: one matrix C[i,j] a routed layer, and how it was made; saved as safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from capsroute.files import write_atomically
from capsroute.models.pretrained import MASTER, find_pretrained

PREFIX, COUNTS, HOW = "layers.", "counts", "how"


@dataclass(frozen=True)
class MasterCoefficients:
    """Coefficients to use for every sample, by name of the routed layer.

    Attributes:
        layers: name -> C [i,j], float64.
        counts: how many examples of each class went in [classes].
        how: what they were made from, as plain data: iteration, filter, normalisation, number of examples, ...

    Example:
        >>> import torch, capsroute as cr
        >>> C = torch.full((6, 3), 0.5)
        >>> master = cr.inference.MasterCoefficients({"class_capsules": C}, counts=torch.tensor([4, 4, 4]))
        >>> master["class_capsules"].shape, list(master)
        (torch.Size([6, 3]), ['class_capsules'])
    """

    layers: dict[str, Tensor]
    counts: Tensor
    how: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; it is whole or not there."""
        tensors = {PREFIX + name: matrix.contiguous().cpu() for name, matrix in self.layers.items()}
        tensors[COUNTS] = self.counts.contiguous().cpu()
        write_atomically(Path(path), save(tensors, metadata={HOW: json.dumps(self.how)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MasterCoefficients:
        """What `save` wrote."""
        if not Path(path).is_file():
            raise ValueError(f"path: expected master coefficients at {path}, found no such file")
        try:
            with safe_open(path, framework="pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                how = json.loads((stored.metadata() or {}).get(HOW, "null"))
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path}: expected a whole safetensors file, found a damaged one ({error})") from None
        if how is None or COUNTS not in tensors:
            raise ValueError(f"{path}: expected master coefficients, found {', '.join(tensors) or 'nothing'}")
        counts = tensors.pop(COUNTS)
        return cls({name.removeprefix(PREFIX): matrix for name, matrix in tensors.items()}, counts, how)


def pretrained_coefficients(name: str, tag: bool | str = True) -> MasterCoefficients:
    """The master coefficients of a pretrained model: name and tag are those given to `cr.create_model`.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_max_min", pretrained=True)
    >>> fast = cr.inference.with_coefficients(model, cr.inference.pretrained_coefficients("capsnet_max_min"))
    >>> fast(torch.rand(1, 1, 28, 28)).scores.shape
    torch.Size([1, 10])
    """
    weights = find_pretrained(name, tag)
    if weights is None or not weights.has_master:
        raise ValueError(f"name: no master coefficients come with the weights {tag!r} of {name!r}")
    return MasterCoefficients.load(weights.file(MASTER))
