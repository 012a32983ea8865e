"""The part of a network that depends on the number of classes: found by comparing shapes, replaced, frozen around."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from capsroute.models.base import CapsuleModel


def class_modules(model: CapsuleModel) -> list[str]:
    """Names of the modules that hold parameters whose shape depends on the number of classes.

    >>> import capsroute as cr
    >>> from capsroute.models.classifier import class_modules
    >>> class_modules(cr.create_model("capsnet_small", image_size=8))
    ['class_capsules', 'decoder.layers.0']
    """
    with torch.device("meta"):
        more = type(model)(**{**model.config, "num_classes": model.num_classes + 1})
        same = type(model)(**{**model.config, "num_classes": model.num_classes})
    shapes = {name: tensor.shape for name, tensor in more.state_dict().items()}
    owners = [name.rpartition(".")[0] for name, tensor in same.state_dict().items() if shapes[name] != tensor.shape]
    return list(dict.fromkeys(owners))


def classifier_name(model: CapsuleModel) -> str:
    """The one module that all of them lie in, a decoder's apart: the class capsules, or a linear layer."""
    owners = [name.split(".") for name in class_modules(model) if name.split(".")[0] != "decoder"]
    common = [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*owners))]
    if not common:
        raise ValueError(f"model: no one module of a {type(model).__name__} is its classifier")
    return ".".join(common)


def replace_classifier(model: CapsuleModel, num_classes: int) -> None:
    """Fresh weights for another number of classes where they depend on it; all others stay as they are."""
    if num_classes < 1:
        message = "forward_features gives the features without a classifier"
        raise ValueError(f"num_classes: expected a whole number >= 1, got {num_classes!r}; {message}")
    classifier = classifier_name(model)
    inside = f"{classifier}."
    replaced = [classifier, *(name for name in class_modules(model) if not f"{name}.".startswith(inside))]
    fresh = type(model)(**{**model.config, "num_classes": num_classes})
    routings = {name: layer.routing.config() for name, layer in model.routed_layers().items()}
    for name, layer in fresh.routed_layers().items():
        if f"{name}.".startswith(inside) and name in routings and layer.routing.config() != routings[name]:
            layer.set_routing(routings[name])
    white = model.preprocessing.white
    for name in replaced:
        old: nn.Module = model.get_submodule(name)
        model.set_submodule(name, fresh.get_submodule(name).to(white).train(old.training))
    model.num_classes = num_classes
    model.config = {**model.config, "num_classes": num_classes}
