"""What every model is: images in, one `ModelOutput` out, and a record of the arguments that made it; and the part of it
that depends on the number of classes: found by comparing shapes, replaced, frozen around."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from capsroute.layers import Decoder, RoutedLayer, Router
from capsroute.layers.pose import check_like
from capsroute.models.preprocessing import Preprocessing
from capsroute.naming import did_you_mean
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least
from capsroute.routing.routed import register_output

if TYPE_CHECKING:
    from typing_extensions import Self

ImageSize = int | tuple[int, int]


class ModelOutput(NamedTuple):
    """What a model says about a batch of images."""

    scores: Tensor  # [b, classes]; the largest is the prediction
    poses: Tensor | None = None  # [b, j, a, o], the class capsules
    reconstruction: Tensor | None = None  # [b, c, h, w] in [0, 1], None where the model has no decoder
    coefficients: dict[str, Tensor] | None = None  # name of a routed layer -> [b, i, j] or [b, h', w', i, j]
    variances: Tensor | None = None  # [b, j, a, o] of the votes for each class capsule, where the routing has them


register_output(ModelOutput)


def _recording(init: Callable) -> Callable:
    """`__init__` that keeps its arguments, defaults included, in `self.config`; one that passes `**options` on keeps
    those of the class that it passes them to."""
    signature = inspect.signature(init)
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)

    @functools.wraps(init)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            arguments = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            known = [name for name in signature.parameters if name not in ("self", rest)]
            near = "".join(did_you_mean(name, known) for name in kwargs if name not in known)
            raise TypeError(f"{type(self).__name__}: {error}{near}") from None
        arguments.apply_defaults()
        given = {name: _plain(value) for name, value in list(arguments.arguments.items())[1:] if name != rest}
        init(self, *args, **kwargs)
        self.config = given if rest is None else {**self.config, **given}

    return recorded


def _plain(value: Any) -> Any:
    """An argument as JSON would give it back."""
    if isinstance(value, Router):
        return _plain(value.config())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


class CapsuleModel(nn.Module):
    """The base of all models: `forward(inputs, labels=None, return_coefficients=False) -> ModelOutput`.

    `labels` ([b], or a 0/1 mask [b,classes]) only choose which capsules a decoder sees: the true ones while training,
    the predicted ones when they are not given. Asking for coefficients changes nothing else.

    `config` holds every argument as plain data, `score_kind` says what scores are ("length" and "probability" lie in
    [0, 1], "logit" anywhere) and `default_loss` which loss the paper trains them with. `input_shape` is that of one
    input, None where any number goes.
    """

    # Every class of models, by its name: what `load_model` makes of a model that was not made by a registered name.
    kinds: ClassVar[dict[str, type[CapsuleModel]]] = {}

    name: str
    config: dict[str, Any]
    input_shape: tuple[int | None, ...]
    score_kind: str = "logit"
    default_loss: str = "cross_entropy"
    preprocessing: Preprocessing

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        CapsuleModel.kinds[cls.__name__] = cls
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, num_classes: int):
        super().__init__()
        self.name = type(self).__name__
        check_at_least("num_classes", num_classes, 1)
        self.num_classes = num_classes
        self.trained_modules: list[str] | None = None  # all but these are frozen; None: nothing is
        self.preprocessing = Preprocessing()
        self.register_load_state_dict_post_hook(_follow_weights)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """A name for each class, where they are known; `set_preprocessing(classes=...)` gives them."""
        return self.preprocessing.classes

    def set_preprocessing(self, **fields: Any) -> None:
        """Change fields of `preprocessing`; those that are not given stay as they are.

        >>> import capsroute as cr
        >>> model = cr.create_model("capsnet_small", image_size=8, num_classes=2)
        >>> model.set_preprocessing(classes=["cat", "dog"])
        >>> model.classes
        ('cat', 'dog')
        """
        made = Preprocessing(**{**self.preprocessing.record(), **fields})
        if made.classes is not None and len(made.classes) != self.num_classes:
            raise ValueError(f"classes: expected {self.num_classes} names, got {len(made.classes)}: {made.classes}")
        channels = self.input_shape[0]
        for name in ("mean", "deviation"):
            numbers = getattr(made, name)
            if numbers is not None and len(numbers) != channels:
                raise ValueError(f"{name}: expected {channels} numbers, one a channel, got {len(numbers)}")
        self.preprocessing = made.to(self.preprocessing.white).train(self.preprocessing.training)

    def get_classifier(self) -> nn.Module:
        """The module whose weights depend on the number of classes: the class capsules, or a linear layer.

        >>> import capsroute as cr
        >>> type(cr.create_model("capsnet_small", image_size=8).get_classifier()).__name__
        'CapsuleLinear'
        """
        return self.get_submodule(classifier_name(self))

    def reset_classifier(self, num_classes: int, classes: Iterable[str] | None = None) -> None:
        """A fresh classifier for so many classes, by these names; a decoder's first layer is made anew with it.

        >>> import torch, capsroute as cr
        >>> model = cr.create_model("capsnet_max_min", pretrained=True)
        >>> model.reset_classifier(3, ["circle", "square", "triangle"])
        >>> model(torch.rand(2, 1, 28, 28)).scores.shape, model.classes[0]
        (torch.Size([2, 3]), 'circle')
        """
        names = None if classes is None else list(classes)
        if names is not None and len(names) != num_classes:
            raise ValueError(f"classes: expected {num_classes} names, got {len(names)}")
        replace_classifier(self, num_classes)
        self.set_preprocessing(classes=names)

    def freeze_features(self, frozen: bool = True) -> None:
        """Train nothing but the classifier, and a decoder; all else keeps its weights and its batch statistics.

        >>> import capsroute as cr
        >>> model = cr.create_model("zhao_huang_resnet20", pretrained=True, num_classes=3)
        >>> model.freeze_features()
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['classifier.weight', 'classifier.bias']
        """
        self.requires_grad_(not frozen)
        self.trained_modules = self._head() if frozen else None
        for name in self.trained_modules or ():
            self.get_submodule(name).requires_grad_(True)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """As for any module, but frozen features stay in evaluation mode."""
        if self.trained_modules is None:
            return super().train(mode)
        super().train(False)
        self.training = mode
        for name in self.trained_modules:
            self.get_submodule(name).train(mode)
        return self

    def _head(self) -> list[str]:
        return [classifier_name(self), *([] if getattr(self, "decoder", None) is None else ["decoder"])]

    def routed_layers(self) -> dict[str, RoutedLayer]:
        """Every layer that routes, by the name that its coefficients and its parameters go by."""
        return {name: layer for name, layer in self.named_modules() if isinstance(layer, RoutedLayer)}

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> CapsuleModel:
        """The model saved in a local folder, or else in a repository of the Hugging Face Hub (extra `hub`).

        Options (`revision`, `token`, ...) are those of `huggingface_hub`.

        >>> import tempfile, capsroute as cr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cr.save_model(cr.create_model("capsnet_small", image_size=8), folder)
        ...     cr.models.CapsNet.from_pretrained(folder).name
        'capsnet_small'
        """
        from capsroute.models.hub import HubModel

        model = HubModel.from_pretrained(os.fspath(name), **options).model
        if not isinstance(model, cls):
            raise ValueError(f"name: expected a saved {cls.__name__}, found a {type(model).__name__} in {name}")
        return model

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the model and a card to a repository of the Hugging Face Hub (extra `hub`); the address of the commit.

        Options (`private`, `token`, ...) are those of `huggingface_hub`.
        """
        from capsroute.models.hub import HubModel

        return HubModel(self).push_to_hub(repo_id, model_card_kwargs={"repo_id": repo_id}, **options)


def _follow_weights(model: CapsuleModel, _: Any) -> None:
    """Weights that were assigned, not copied, may be of another dtype or device than the model was made in."""
    like = next(model.parameters(), None)
    if like is not None:
        model.preprocessing.white = torch.full((), 255, dtype=like.dtype, device=like.device)


class ImageModel(CapsuleModel):
    """A model of images [b,c,h,w] in [0, 1] or bytes, all of one size; `preprocessing` does the rest.

    A subclass has two halves: `features`, or a `forward_features` that begins with `self.prepare(images)`; and
    `forward_head`.
    """

    input_shape: tuple[int, int, int]
    num_features: int  # channels of `forward_features`
    features: nn.Module
    decoder: Decoder | None

    def __init__(self, in_channels: int, image_size: ImageSize, num_classes: int):
        super().__init__(num_classes)
        self.decoder = None  # on the instance: a class attribute would hide a decoder that a subclass makes
        self.input_shape = image_shape(in_channels, image_size)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.input_shape[1:]

    def forward(self, images: Tensor, labels: Tensor | None = None, return_coefficients: bool = False) -> ModelOutput:
        return self.forward_head(self.forward_features(images), labels, return_coefficients)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images [b,c,h,w] -> the features [b,num_features,h',w'] that capsules or a classifier are made from."""
        return self.features(self.prepare(images))

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        """What `forward` makes of the features."""
        raise NotImplementedError

    def prepare(self, images: Tensor) -> Tensor:
        """Images of the right size, normalised as `preprocessing` says."""
        self.check_images(images)
        prepared = self.preprocessing(images)
        check_like("images", prepared, self.preprocessing.white, "model")
        return prepared

    def check_images(self, images: Tensor) -> None:
        """Images of the size that the model was made for."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.input_shape:
            expected = ",".join(map(str, self.input_shape))
            raise ValueError(f"images: expected [b,{expected}], got {list(images.shape)}")

    def reconstruct(self, poses: Tensor, scores: Tensor, labels: Tensor | None) -> Tensor | None:
        """The decoder's images from the labelled class capsules, or from the predicted ones; None without a decoder."""
        if self.decoder is None:
            return None
        return self.decoder(poses, scores.argmax(1) if labels is None else labels)


def image_shape(in_channels: int, image_size: ImageSize) -> tuple[int, int, int]:
    """(channels, height, width) from a channel count and a side, or a pair of sides."""
    sides = tuple(image_size) if isinstance(image_size, (tuple, list)) else (image_size, image_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
        raise ValueError(f"image_size: expected a side or (height, width), got {image_size!r}")
    check_at_least("in_channels", in_channels, 1)
    return in_channels, sides[0], sides[1]


def coefficients_of(names: Iterable[str], routed: Iterable[Routed]) -> dict[str, Tensor]:
    """The coefficients that routed layers gave, by the layers' names."""
    return {name: layer.coefficients for name, layer in zip(names, routed) if layer.coefficients is not None}


def class_modules(model: CapsuleModel) -> list[str]:
    """Names of the modules that hold parameters whose shape depends on the number of classes.

    >>> import capsroute as cr
    >>> from capsroute.models.base import class_modules
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
