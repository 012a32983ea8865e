"""Convolutional networks that the papers compare capsules with (Tsai et al. 2020, tables 1, 2, 3 and 12)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from capsroute.models.backbones import Window, map_size, residual_stages
from capsroute.models.base import ImageModel, ImageSize, ModelOutput
from capsroute.models.registry import register_model


class CNN(ImageModel):
    """A network without capsules: images -> logits."""

    layers: nn.Sequential

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layers[: self._maps()](self.prepare(images))

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        return ModelOutput(self.layers[self._maps() :](features), coefficients={} if return_coefficients else None)

    def _maps(self) -> int:
        """How many of the layers still have a map: those before pooling, or before the map is flattened."""
        ends = (nn.AdaptiveAvgPool2d, nn.Flatten)
        return next(number for number, layer in enumerate(self.layers) if isinstance(layer, ends))


class PlainCNN(CNN):
    """Three strided 3x3 convolutions, average pooling after the last two, and a linear layer (Tsai 2020, table 2)."""

    def __init__(self, in_channels: int = 3, image_size: ImageSize = 32, num_classes: int = 10, channels: int = 1024):
        super().__init__(in_channels, image_size, num_classes)
        convolution, pool = Window(3, 2, 1), Window(2, 2)
        height, width = map_size(self.image_size, [convolution, convolution, pool, convolution, pool])
        self.num_features = channels
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, channels, *convolution),
            nn.ReLU(),
            *_pooled(channels, convolution),
            *_pooled(channels, convolution),
            nn.Flatten(),
            nn.Linear(channels * height * width, num_classes),
        )


def _pooled(channels: int, window: Window) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, *window), nn.ReLU(), nn.BatchNorm2d(channels), nn.AvgPool2d(2)]


class MultiDigitCNN(CNN):
    """Three 3x3 convolutions, a linear layer at every position, their average, a linear layer (Tsai 2020, table 12).

    `pool=False` learns the whole map from the last convolution to the hidden layer instead of averaging (section 6).
    """

    default_loss = "binary_cross_entropy"

    def __init__(
        self,
        in_channels: int = 1,
        image_size: ImageSize = 36,
        num_classes: int = 10,
        channels: int = 1024,
        hidden: int = 640,
        pool: bool = True,
    ):
        super().__init__(in_channels, image_size, num_classes)
        windows = [Window(3, 2, 1), Window(3, 2), Window(3)]
        height, width = map_size(self.image_size, windows)
        pooled: list[nn.Module] = [nn.Conv2d(channels, hidden, 1), nn.AvgPool2d((height, width)), nn.Flatten()]
        learned: list[nn.Module] = [nn.Flatten(), nn.Linear(channels * height * width, hidden)]
        self.num_features = hidden if pool else channels
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, channels, *windows[0]),
            nn.ReLU(),
            *(nn.Conv2d(channels, channels, *windows[1]), nn.ReLU(), nn.BatchNorm2d(channels)),
            *(nn.Conv2d(channels, channels, *windows[2]), nn.ReLU(), nn.BatchNorm2d(channels)),
            *(pooled if pool else learned),
            nn.Linear(hidden, num_classes),
        )


class ResNet18(CNN):
    """The 18-layer residual network in its form for 32 x 32 images (He et al. 2016): no pooling before the blocks."""

    def __init__(
        self,
        in_channels: int = 3,
        image_size: ImageSize = 32,
        num_classes: int = 10,
        channels: Sequence[int] = (64, 128, 256, 512),
    ):
        super().__init__(in_channels, image_size, num_classes)
        self.num_features = channels[-1]
        self.layers = nn.Sequential(
            *residual_stages(in_channels, channels, [2] * len(channels)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels[-1], num_classes),
        )


@register_model(small={"num_classes": 3, "channels": 8})
def tsai_cnn(**options: Any) -> PlainCNN:
    """Baseline CNN: 18,919,434 parameters for 10 classes, 19,011,684 for 100 (Tsai 2020, tables 2 and 3)."""
    return PlainCNN(**options)


@register_model(small={"image_size": 15, "num_classes": 3, "channels": 8, "hidden": 6})
def tsai_multimnist_cnn(**options: Any) -> MultiDigitCNN:
    """Baseline CNN for DiverseMultiMNIST: 19,553,162 parameters for one channel (Tsai 2020, table 12)."""
    return MultiDigitCNN(**options)


@register_model(small={"image_size": 16, "num_classes": 3, "channels": (4, 8, 8, 16)})
def tsai_resnet18(**options: Any) -> ResNet18:
    """ResNet-18: 11,173,962 parameters for 10 classes, 11,220,132 for 100 (Tsai 2020, table 1)."""
    return ResNet18(**options)
