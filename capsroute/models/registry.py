"""Models by name. Registering one is all it takes to be in the tests, the command line and the documentation."""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, overload

import torch

from capsroute.models.base import CapsuleModel
from capsroute.naming import check_one_of, names_like

Builder = Callable[..., CapsuleModel]
B = TypeVar("B", bound=Builder)

_builders: dict[str, Builder] = {}
_small: dict[str, dict] = {}


@overload
def register_model(builder: B) -> B: ...
@overload
def register_model(*, small: dict) -> Callable[[B], B]: ...
def register_model(builder: Any = None, *, small: dict | None = None) -> Any:
    """Put a function that builds a model into the registry, under its own name.

    The function takes keyword arguments and passes on those that it does not set itself, so that each of them can be
    overridden. `small` is overrides that make a version of it that a test can run in a moment.

    >>> import capsroute as cr
    >>> @cr.register_model(small={"image_size": 20})
    ... def capsnet_of_mine(**options):
    ...     "CapsNet with 4 numbers in a primary capsule."
    ...     return cr.models.CapsNet(**{"primary_pose": 4, **options})
    >>> cr.create_model("capsnet_of_mine", num_classes=3).name
    'capsnet_of_mine'
    >>> cr.models.unregister_model("capsnet_of_mine")
    """
    if builder is None:
        return functools.partial(register_model, small=small)
    name = builder.__name__
    if name in _builders and _builders[name].__module__ != builder.__module__:
        raise ValueError(f"builder: the name {name!r} is taken by {_builders[name].__module__}")
    _builders[name] = builder
    _small[name] = dict(small or {})
    return builder


def unregister_model(name: str) -> None:
    """Take a model out of the registry; `register_model` has an example."""
    registered(name)
    del _builders[name], _small[name]


def small_options(name: str) -> dict:
    """Overrides that make the small version of a model.

    >>> import capsroute as cr
    >>> cr.create_model("capsnet", **cr.models.small_options("capsnet")).input_shape
    (1, 14, 14)
    """
    registered(name)
    return dict(_small[name])


def list_models(filter: str | None = None) -> list[str]:
    """Names of all models in alphabetical order, or of those that match a pattern.

    >>> import capsroute as cr
    >>> "capsnet" in cr.list_models("caps*")
    True
    """
    return names_like(filter, _builders)


def registered(name: str) -> Builder:
    """The function behind a name, or a ValueError that lists the names."""
    check_one_of("name", name, list_models())
    return _builders[name]


def create_model(name: str, pretrained: bool | str | os.PathLike[str] = False, **overrides: Any) -> CapsuleModel:
    """A fresh model by name; `overrides` replace any of its arguments.

    `pretrained` takes True (the weights that come with the package, see `cr.list_pretrained`), the tag of one of
    several, or a folder of saved weights. A model with trained weights comes in evaluation mode.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", in_channels=1, image_size=8, num_classes=10)
    >>> model(torch.rand(2, 1, 8, 8)).scores.shape
    torch.Size([2, 10])
    >>> cr.create_model("capsnet_max_min", pretrained=True).training
    False
    """
    builder = registered(name)
    if pretrained:
        from capsroute.models.pretrained import pretrained_model

        return pretrained_model(name, pretrained, overrides)
    model = builder(**overrides)
    model.name = name
    return model


class Summary(NamedTuple):
    """A model in a line or two."""

    name: str
    description: str
    parameters: int
    input_shape: tuple[int | None, ...]
    num_classes: int


def summarise(name: str, **overrides: Any) -> Summary:
    """What a model is and how large, without making its weights.

    >>> import capsroute as cr
    >>> cr.models.summarise("capsnet").parameters
    8215568
    """
    with torch.device("meta"):
        model = create_model(name, **overrides)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    description = (registered(name).__doc__ or "").strip().split("\n")[0]
    return Summary(name, description, parameters, model.input_shape, model.num_classes)
