"""A network with given coefficients in place of routing (Zhao et al. 2019, Fast Routing Procedure for Inference)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from capsroute.inference.master import MasterCoefficients
from capsroute.inference.routed_layers import coefficients_shape, layers_for_coefficients
from capsroute.layers import FastRouter, RoutedLayer

Coefficients = MasterCoefficients | Mapping[str, Tensor] | str
M = TypeVar("M", bound=nn.Module)


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
    return {name: _first(layer) for name, layer in layers_for_coefficients(model, layers).items()}


def _first(layer: RoutedLayer) -> Tensor:
    shape = coefficients_shape(layer)
    return torch.full(shape, layer.routing.first_coefficient(*shape))


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
