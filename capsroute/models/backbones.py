"""Feature extractors under capsules: one convolution, or the residual network of Tsai et al. 2020 (appendix A.1). And
how convolutions shrink a map, forwards and backwards.

A model takes `backbone=` as a name, or as a dict of a name and options.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from capsroute.form.window import Window
from capsroute.naming import make_named


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a way around them (He et al. 2016, figure 2).

    Where the size changes, the way around is a 1x1 convolution ("projection"), or strided and padded with zeros
    ("padding", option A of He et al., without parameters).
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1, shortcut: str = "projection"):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = _SHORTCUTS[shortcut](in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x)) + self.shortcut(x)).relu()


class PaddingShortcut(nn.Module):
    """Every `stride`-th position, with zeros for the new channels, half of them before and half after."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.stride, self.new_channels = stride, channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        before = self.new_channels // 2
        after = self.new_channels - before
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, after))


def _projection(in_channels: int, channels: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))


_SHORTCUTS = {"projection": _projection, "padding": PaddingShortcut}


class SimpleBackbone(nn.Sequential):
    """One convolution and ReLU, with batch normalisation between them for EM routing (Tsai 2020, tables 4 to 11)."""

    def __init__(
        self,
        in_channels: int,
        channels: int = 256,
        kernel_size: int = 3,
        stride: int = 2,
        padding: int = 1,
        batch_norm: bool = False,
    ):
        convolution = nn.Conv2d(in_channels, channels, kernel_size, stride, padding)
        norm = [nn.BatchNorm2d(channels)] if batch_norm else []
        super().__init__(convolution, *norm, nn.ReLU())
        self.out_channels = channels
        self.windows = [Window(kernel_size, stride, padding)]


def residual_stages(
    in_channels: int, channels: Sequence[int], blocks: Sequence[int], stride: int = 2, shortcut: str = "projection"
) -> list[nn.Module]:
    """A 3x3 convolution, then so many blocks of so many channels; the first block of each later stage is strided."""
    layers: list[nn.Module] = [nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)]
    layers += [nn.BatchNorm2d(channels[0]), nn.ReLU()]
    before = channels[0]
    for stage, (width, count) in enumerate(zip(channels, blocks)):
        for block in range(count):
            layers.append(ResidualBlock(before, width, stride if stage and not block else 1, shortcut))
            before = width
    return layers


def residual_features(in_channels: int, depth: int, channels: Sequence[int]) -> nn.Sequential:
    """Convolutions of ResNet-20, 32, 44, 56: three stages of (depth - 2) / 6 blocks (He et al. 2016, section 4.2)."""
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"depth: expected 6 n + 2 (20, 32, 44, 56, ...), got {depth!r}")
    return nn.Sequential(
        *residual_stages(in_channels, channels, [(depth - 2) // 6] * len(channels), shortcut="padding")
    )


class ResidualBackbone(nn.Sequential):
    """3x3 convolution to 64 channels, three blocks of 64, four blocks of `channels`, the first of them strided."""

    def __init__(
        self,
        in_channels: int,
        channels: int = 128,
        stride: int = 2,
        base_channels: int = 64,
        blocks: tuple[int, int] = (3, 4),
    ):
        super().__init__(*residual_stages(in_channels, (base_channels, channels), blocks, stride))
        self.out_channels = channels
        self.windows = [Window(3, stride, 1)]


_BACKBONES = {"simple": SimpleBackbone, "resnet": ResidualBackbone}


def make_backbone(in_channels: int, backbone: str | dict) -> SimpleBackbone | ResidualBackbone:
    """A backbone for images of so many channels, from a name or from `{"name": ..., option: value}`.

    >>> from capsroute.models.backbones import make_backbone
    >>> make_backbone(3, {"name": "resnet", "channels": 256}).out_channels
    256
    """
    return make_named("backbone", _BACKBONES, backbone, in_channels)


def map_size(image_size: tuple[int, int], windows: Sequence[Window], least: int = 1) -> tuple[int, int]:
    """Height and width after these windows; a ValueError that says the smallest image when it is less than `least`.

    >>> from capsroute.models.backbones import Window, map_size
    >>> map_size((28, 28), [Window(9), Window(9, stride=2)])
    (6, 6)
    """
    smallest = smallest_side(windows, least)
    if min(image_size) < smallest:
        raise ValueError(
            f"image_size: expected at least {smallest} x {smallest} for these kernels, "
            f"got {image_size[0]} x {image_size[1]}"
        )
    sides: tuple[int, ...] = image_size
    for window in windows:
        sides = window.positions(*sides)
    return sides[0], sides[1]


def smallest_side(windows: Sequence[Window], least: int = 1) -> int:
    """The smallest side of an image that these windows leave `least` positions of.

    >>> from capsroute.models.backbones import Window, smallest_side
    >>> smallest_side([Window(9), Window(9, stride=2)])
    17
    """
    side = least
    for window in reversed(windows):
        side = max(1, (side - 1) * window.stride + window.kernel - 2 * window.padding)
    return side
