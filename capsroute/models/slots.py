"""The slot autoencoder (Locatello et al. 2020, section 4.1): a picture as a mixture of what each slot draws.

Convolutions with a position embedding -> slots -> each slot broadcast to a grid, decoded to colours and an alpha;
alphas compete by a softmax over slots, and the weighted sum of colours is the picture.
"""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsroute.form import statistics_dtype
from capsroute.layers import SlotAttention
from capsroute.models.base import ImageSize, image_shape


class SlotOutput(NamedTuple):
    """A picture, and how it was put together."""

    reconstruction: Tensor  # [b, c, h, w]
    colours: Tensor  # [b, j, c, h, w], what each slot draws
    masks: Tensor  # [b, j, h, w], where; they sum to one over slots
    slots: Tensor  # [b, j, d]
    coefficients: Tensor | None = None  # [b, i, j], which positions of the encoder's map each slot read

    def segments(self) -> Tensor:
        """Which slot each pixel belongs to [b, h, w]."""
        return self.masks.argmax(1)


class PositionEmbedding(nn.Module):
    """Adds a linear map of [x, y, 1 - x, 1 - y] to every position of a map [b,c,h,w]."""

    def __init__(self, channels: int):
        super().__init__()
        self.embed = nn.Conv2d(4, channels, 1)

    def forward(self, maps: Tensor) -> Tensor:
        # No buffer: one that no state dict holds would be lost where a model is made without memory first.
        like = self.embed.weight
        sides = (torch.linspace(0, 1, side, dtype=like.dtype, device=like.device) for side in maps.shape[2:])
        y, x = torch.meshgrid(*sides, indexing="ij")
        return maps + self.embed(torch.stack([x, y, 1 - x, 1 - y]).unsqueeze(0))


class SlotAutoencoder(nn.Module):
    """Pictures [b,c,h,w] in [0, 1] -> `SlotOutput`; train `reconstruction` by the mean squared error.

    `doublings` of the decoder start from a grid 2^n times smaller; 0 broadcasts slots to every pixel. `slots` may
    change at call time. Options of `cr.layers.SlotAttention` go in `attention`.

    >>> import torch
    >>> from capsroute.models.slots import SlotAutoencoder
    >>> model = SlotAutoencoder(image_size=14, slots=4, channels=16, features=16, hidden=32)
    >>> output = model(torch.rand(2, 3, 14, 14))
    >>> output.reconstruction.shape, output.masks.shape, model(torch.rand(2, 3, 14, 14), slots=6).masks.shape
    (torch.Size([2, 3, 14, 14]), torch.Size([2, 4, 14, 14]), torch.Size([2, 6, 14, 14]))
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: ImageSize = 35,
        slots: int = 4,
        features: int = 64,
        channels: int = 64,
        iterations: int = 3,
        hidden: int = 128,
        kernel_size: int = 5,
        doublings: int = 0,
        decoder_layers: int = 3,
        attention: dict | None = None,
    ):
        super().__init__()
        self.config = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.input_shape = image_shape(in_channels, image_size)
        _, height, width = self.input_shape
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size: expected an odd number, got {kernel_size!r}")
        same: dict[str, Any] = {"kernel_size": kernel_size, "padding": kernel_size // 2}
        sizes = [in_channels, channels, channels, channels, channels]
        encoder = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Conv2d(*pair, **same), nn.ReLU())]
        self.encoder = nn.Sequential(*encoder, PositionEmbedding(channels))
        self.tokens = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, features)
        )
        self.attention = SlotAttention(slots, features, iterations, hidden, **(attention or {}))
        self.grid = tuple(-(-side // 2**doublings) for side in (height, width))
        layers: list[nn.Module] = [PositionEmbedding(features)]
        before = features
        for layer in range(max(doublings, decoder_layers)):
            # A transposed convolution of stride 1 is a convolution.
            doubled = nn.ConvTranspose2d(before, channels, **same, stride=2, output_padding=1)
            layers += [doubled if layer < doublings else nn.Conv2d(before, channels, **same), nn.ReLU()]
            before = channels
        self.decoder = nn.Sequential(*layers, nn.Conv2d(before, in_channels + 1, 3, padding=1))

    def forward(
        self, images: Tensor, slots: int | None = None, first: Tensor | None = None, return_coefficients: bool = False
    ) -> SlotOutput:
        if images.dim() != 4 or tuple(images.shape[1:]) != self.input_shape:
            raise ValueError(f"images: expected [b,{','.join(map(str, self.input_shape))}], got {list(images.shape)}")
        tokens = self.tokens(self.encoder(images).flatten(2).mT)  # [b, h*w, d]
        routed = self.attention(tokens, slots=slots, first=first, return_coefficients=return_coefficients)
        found = routed.poses.squeeze(2)  # [b, j, d]
        reconstruction, colours, masks = self.decode(found)
        return SlotOutput(reconstruction, colours, masks, found, routed.coefficients)

    def decode(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Slots [b,j,d] -> the picture [b,c,h,w], each slot's colours [b,j,c,h,w] and masks [b,j,h,w]."""
        _, height, width = self.input_shape
        maps = slots.flatten(0, 1)[:, :, None, None].expand(-1, -1, *self.grid)
        drawn = self.decoder(maps)[:, :, :height, :width].unflatten(0, slots.shape[:2])  # [b, j, c+1, h, w]
        drawn = drawn.to(statistics_dtype(drawn))
        colours, masks = drawn[:, :, :-1], drawn[:, :, -1].softmax(1)
        return (colours * masks.unsqueeze(2)).sum(1), colours, masks
