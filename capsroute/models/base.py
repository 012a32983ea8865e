"""What every model is: images in, one `ModelOutput` out, and a record of the arguments that made it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from capsroute.layers import Decoder, RoutedLayer
from capsroute.models.arguments import recording
from capsroute.routing import Routed

__all__ = ["CapsuleModel", "ImageModel", "ImageSize", "ModelOutput", "coefficients_of", "image_shape"]

ImageSize = int | tuple[int, int]


class ModelOutput(NamedTuple):
    """What a model says about a batch of images."""

    scores: Tensor  # [b, classes]; the largest is the prediction
    poses: Tensor | None = None  # [b, j, a, o], the class capsules
    reconstruction: Tensor | None = None  # [b, c, h, w] in [0, 1], None where the model has no decoder
    coefficients: dict[str, Tensor] | None = None  # name of a routed layer -> [b, i, j] or [b, h', w', i, j]


class CapsuleModel(nn.Module):
    """The base of all models: `forward(inputs, labels=None, return_coefficients=False) -> ModelOutput`.

    `labels` ([b], or a 0/1 mask [b,classes]) only choose which capsules a decoder sees: the true ones while training,
    the predicted ones when they are not given. Asking for coefficients changes nothing else.

    `config` holds every argument as plain data, `score_kind` says what scores are ("length" and "probability" lie in
    [0, 1], "logit" anywhere) and `default_loss` which loss the paper trains them with. `input_shape` is that of one
    input, None where any number goes.
    """

    # Every class of models, by its name: what `load_model` makes of a model that was not made by a registered name.
    classes: ClassVar[dict[str, type[CapsuleModel]]] = {}

    name: str
    config: dict[str, Any]
    input_shape: tuple[int | None, ...]
    score_kind: str
    default_loss: str

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        CapsuleModel.classes[cls.__name__] = cls
        if "__init__" in cls.__dict__:
            cls.__init__ = recording(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, num_classes: int):
        super().__init__()
        self.name = type(self).__name__
        if num_classes < 1:
            raise ValueError(f"num_classes: expected a whole number >= 1, got {num_classes!r}")
        self.num_classes = num_classes

    def routed_layers(self) -> dict[str, RoutedLayer]:
        """Every layer that routes, by the name that its coefficients and its parameters go by."""
        return {name: layer for name, layer in self.named_modules() if isinstance(layer, RoutedLayer)}

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options) -> CapsuleModel:
        """The model saved in a local folder, or else in a repository of the Hugging Face Hub (extra `hub`)."""
        from capsroute.models.hub import from_pretrained

        model = from_pretrained(name, **options)
        if not isinstance(model, cls):
            raise ValueError(f"name: expected a saved {cls.__name__}, found a {type(model).__name__} in {name}")
        return model

    def push_to_hub(self, repo_id: str, **options) -> str:
        """Upload the model to a repository of the Hugging Face Hub (extra `hub`); the address of the commit."""
        from capsroute.models.hub import push_to_hub

        return push_to_hub(self, repo_id, **options)


class ImageModel(CapsuleModel):
    """A model of images [b,c,h,w] in [0, 1], all of one size."""

    input_shape: tuple[int, int, int]
    decoder: Decoder | None

    def __init__(self, in_channels: int, image_size: ImageSize, num_classes: int):
        super().__init__(num_classes)
        self.decoder = None  # on the instance: a class attribute would hide a decoder that a subclass makes
        self.input_shape = image_shape(in_channels, image_size)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.input_shape[1:]

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
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"image_size: expected a side or (height, width), got {image_size!r}")
    if in_channels < 1:
        raise ValueError(f"in_channels: expected a whole number >= 1, got {in_channels!r}")
    return in_channels, sides[0], sides[1]


def coefficients_of(names: Iterable[str], routed: Iterable[Routed]) -> dict[str, Tensor]:
    """The coefficients that routed layers gave, by the layers' names."""
    return {name: layer.coefficients for name, layer in zip(names, routed) if layer.coefficients is not None}
