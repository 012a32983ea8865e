"""Master coefficients, one matrix C[i,j] a routed layer: saved as safetensors; which layers can have them; and networks
with given coefficients in place of routing (Zhao et al. 2019, Fast Routing Procedure for Inference)."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from capsroute.files import write_atomically
from capsroute.layers import CapsuleConv2d, FastRouter, RoutedLayer
from capsroute.models.files import parse_json, read_header, read_tensors
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
        (_, metadata), tensors = read_header(Path(path)), read_tensors(Path(path))
        how = parse_json(metadata.get(HOW, "null"), str(path))
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


Coefficients = MasterCoefficients | Mapping[str, Tensor] | str
M = TypeVar("M", bound=nn.Module)


def refusal(layer: RoutedLayer) -> str | None:
    """Why a layer cannot have master coefficients C[i,j]; None when it can.

    >>> from capsroute.inference import refusal
    >>> from capsroute.layers import CapsuleLinear
    >>> refusal(CapsuleLinear(1152, 10, 8, 16)) is None
    True
    >>> refusal(CapsuleLinear(None, 10, 8, 16))
    'CapsuleLinear takes any number of children here, so no coefficient could belong to a particular child'
    """
    if getattr(layer, "num_children", None) is None:
        kind = type(layer).__name__
        return f"{kind} takes any number of children here, so no coefficient could belong to a particular child"
    return layer.routing.refuses_coefficients()


def routed_layers(model: nn.Module, names: list[str] | None = None) -> dict[str, RoutedLayer]:
    """The named routed layers of a model, or of any module that has some; None: all of them."""
    if hasattr(model, "routed_layers"):
        layers = cast(dict[str, RoutedLayer], model.routed_layers())  # type: ignore[operator]
    else:
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, RoutedLayer)}
    if not layers:
        raise ValueError(f"model: expected at least one routed layer, {type(model).__name__} has none")
    for name in names or ():
        if name not in layers:
            raise ValueError(f"layers: expected names among {', '.join(layers)}, got {name!r}")
    return layers if names is None else {name: layers[name] for name in names}


def layers_for_coefficients(model: nn.Module, names: list[str] | None = None) -> dict[str, RoutedLayer]:
    """The named routed layers, or all; a ValueError with the reason if one cannot have master coefficients."""
    chosen = routed_layers(model, names)
    for name, layer in chosen.items():
        reason = refusal(layer)
        if reason:
            others = [other for other, candidate in routed_layers(model).items() if refusal(candidate) is None]
            hint = f"; layers={others} takes the others and leaves it as trained" if others else ""
            raise ValueError(f"layers: {name!r} cannot have master coefficients: {reason}{hint}")
    return chosen


def class_layer(model: nn.Module, num_classes: int) -> str | None:
    """The layer whose parents are the classes: the last routed one, if it has one parent per class and no positions.

    Only there does an example have a ground-truth column.
    """
    name, layer = list(routed_layers(model).items())[-1]
    return name if layer.W.shape[1] == num_classes and not isinstance(layer, CapsuleConv2d) else None


def coefficients_shape(layer: RoutedLayer) -> tuple[int, int]:
    """(children, parents) of a layer that can have master coefficients."""
    return int(layer.num_children), layer.W.shape[1]  # type: ignore[arg-type]


def check_dynamic(layers: dict[str, RoutedLayer]) -> None:
    """The layers route: those with given coefficients have none of their own to look at."""
    for name, layer in layers.items():
        if not layer.routing.adapts:
            raise ValueError(f"model: layer {name!r} has given coefficients already; give the model that routes")


def with_coefficients(model: M, coefficients: Coefficients, learned: bool = False) -> M:
    """A copy of a model whose routed layers use given coefficients; layers that have none given stay dynamic.

    coefficients: what `accumulate` made, {layer: C [i,j]}, or "uniform": the equal coefficients that routing starts
    from, the control that shows what routing adds. learned: C is a parameter that an optimiser sees.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> uniform = cr.inference.with_coefficients(model, "uniform")
    >>> uniform(torch.rand(2, 1, 8, 8)).scores.shape
    torch.Size([2, 10])
    """
    matrices = _matrices(model, coefficients)
    layers_for_coefficients(model, list(matrices))
    fast = copy.deepcopy(model)
    for name, layer in layers_for_coefficients(fast, list(matrices)).items():
        _replace_routing(name, layer, matrices[name], learned)
    return fast


def uniform_coefficients(model: nn.Module, layers: list[str] | None = None) -> dict[str, Tensor]:
    """The coefficients of the first iteration: max-min starts with 1, pooling with 1 / children, others 1 / parents.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> cr.inference.uniform_coefficients(model)["class_capsules"].unique()
    tensor([0.1000])
    """
    chosen = layers_for_coefficients(model, layers)
    shapes = {name: coefficients_shape(layer) for name, layer in chosen.items()}
    return {name: torch.full(shape, chosen[name].routing.first_coefficient(*shape)) for name, shape in shapes.items()}


def _matrices(model: nn.Module, coefficients: Coefficients) -> dict[str, Tensor]:
    if isinstance(coefficients, str):
        if coefficients != "uniform":
            raise ValueError(f"coefficients: expected MasterCoefficients, a dict or 'uniform', got {coefficients!r}")
        return uniform_coefficients(model)
    return {name: coefficients[name] for name in coefficients}


def _replace_routing(name: str, layer: RoutedLayer, matrix: Tensor, learned: bool) -> None:
    expected = coefficients_shape(layer)
    if tuple(matrix.shape) != expected:
        raise ValueError(f"coefficients: layer {name!r} needs {expected} [i,j], got {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError(f"coefficients: expected finite numbers for layer {name!r}, got NaN or infinity")
    replaced, fast = layer.routing, FastRouter(learned, layer.routing.declared("activation"))
    layer.set_routing(fast)
    if fast.activation == "affine_layer_norm":
        layer.routing.layer_norm.load_state_dict(replaced.layer_norm.state_dict())  # type: ignore[union-attr, operator]
    with torch.no_grad():
        layer.routing.coefficients.copy_(matrix)  # type: ignore[union-attr, operator]
