"""Which routed layers can have master coefficients, and which of them is the class layer."""

from __future__ import annotations

from typing import cast

from torch import nn

from capsroute.layers import CapsuleConv2d, RoutedLayer


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
    """The named routed layers of a model; None: all of them."""
    if not hasattr(model, "routed_layers"):
        raise ValueError(f"model: expected one with routed_layers(), got {type(model).__name__}")
    layers = cast(dict[str, RoutedLayer], model.routed_layers())  # type: ignore[operator]
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
    """The layer whose parents are the classes: the last routed one, if it has one parent a class and no positions.

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
