"""A small masked autoencoder of images (He et al. 2022), trained for a minute: a frozen encoder to read out."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.data import ImageSet
from capsroute.training import graphed_step


class MaskedAutoencoder(nn.Module):
    """Patches, a quarter of them seen by the encoder, the others drawn by a smaller decoder.

    >>> import torch
    >>> from experiments.masked_autoencoder import MaskedAutoencoder
    >>> model = MaskedAutoencoder(width=48, depth=1)
    >>> model.encode(torch.rand(2, 3, 32, 32)).shape, model(torch.rand(2, 3, 32, 32)).shape
    (torch.Size([2, 65, 48]), torch.Size([]))
    """

    def __init__(self, size: int = 32, patch: int = 4, width: int = 192, depth: int = 6, hidden: float = 0.75):
        super().__init__()
        self.patch, count, pixels, small = patch, (size // patch) ** 2, 3 * patch * patch, width // 2
        self.seen = round(count * (1 - hidden))
        self.embed, self.narrow = nn.Linear(pixels, width), nn.Linear(width, small)
        self.draw = nn.Linear(small, pixels)
        self.class_token, self.blank = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 1, small))
        self.places = nn.Parameter(0.02 * torch.randn(1, count, width))
        self.small_places = nn.Parameter(0.02 * torch.randn(1, count, small))
        self.encoder, self.decoder = _transformer(width, depth), _transformer(small, 2)

    def encode(self, images: Tensor) -> Tensor:
        """Images [b,3,h,w] in [0, 1] -> a class token and a token a patch, [b,1+n,width]."""
        tokens = self.embed(self._patches(images)) + self.places
        return self.encoder(torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1))

    def forward(self, images: Tensor) -> Tensor:
        """The squared error of the hidden patches, each normalised."""
        patches = self._patches(images)  # [b, n, pixels]
        b, n, _ = patches.shape
        order = torch.rand(b, n, device=images.device).argsort(1)
        seen = order[:, : self.seen, None]  # [b, seen, 1]
        tokens = self.embed(patches) + self.places
        tokens = tokens.gather(1, seen.expand(-1, -1, tokens.shape[2]))
        tokens = self.narrow(self.encoder(torch.cat([self.class_token.expand(b, -1, -1), tokens], 1)))
        width = tokens.shape[2]
        canvas = self.blank.to(tokens.dtype).expand(b, n, width)
        canvas = canvas.scatter(1, seen.expand(-1, -1, width), tokens[:, 1:]) + self.small_places
        drawn = self.draw(self.decoder(torch.cat([tokens[:, :1], canvas], 1))[:, 1:])
        wanted = F.layer_norm(patches, patches.shape[2:])
        unseen = torch.ones_like(order, dtype=torch.float32).scatter(1, seen.squeeze(2), 0.0)
        return ((drawn - wanted).square().mean(2) * unseen).sum() / unseen.sum()

    def _patches(self, images: Tensor) -> Tensor:
        return F.unfold(2 * images - 1, self.patch, stride=self.patch).mT  # [b, n, pixels]


def _transformer(width: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, max(1, width // 48), 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)


def pretrain(
    images: ImageSet, device: torch.device, steps: int, seconds: float, batch: int = 1024, **options: Any
) -> tuple[MaskedAutoencoder, dict[str, float]]:
    """A masked autoencoder of these images, trained for so many steps, or fewer where the time is up before; and what
    that took. The rate falls with whichever of the two is nearer its end."""
    torch.manual_seed(0)
    model = MaskedAutoencoder(images.shape[1], **options).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.95), weight_decay=0.05)
    pixels = images.images.to(device)
    rows = torch.randint(len(pixels), (batch,), device=device)
    step = graphed_step(
        model,
        lambda model, images: model(images),
        optimiser,
        (_crops(pixels, rows),),
        autocast=torch.bfloat16 if device.type == "cuda" else None,
        clip=1.0,
    )
    began, done, losses = time.monotonic(), 0, torch.zeros(2, device=device)
    while done < steps and time.monotonic() - began < seconds:
        progress = max(done / steps, (time.monotonic() - began) / seconds)
        rate = 1.5e-3 * min(1.0, (done + 1) / 200) * (1 + math.cos(math.pi * progress)) / 2
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = step(_crops(pixels, torch.randint(len(pixels), (batch,), device=device)))
        losses = torch.stack([losses[0] * 0.99 + loss * 0.01, losses[1] * 0.99 + 0.01])
        done += 1
        if done % 50 == 0:
            losses.tolist()  # the clock must not run ahead of the GPU
    weighed, weight = losses.tolist()
    facts = {"steps": done, "batch": batch, "seconds": time.monotonic() - began, "loss": weighed / max(weight, 1e-9)}
    return model.eval().requires_grad_(False), facts


def _crops(pixels: Tensor, rows: Tensor) -> Tensor:
    """Some of the images [n,c,h,w], half of them mirrored, all shifted by up to four pixels, the shift shared."""
    images = pixels[rows].float() / 255
    mirrored = torch.rand(len(rows), 1, 1, 1, device=pixels.device) < 0.5
    images = torch.where(mirrored, images.flip(3), images)
    down, right = torch.randint(9, (2,)).tolist()
    h, w = images.shape[2:]
    return F.pad(images, (4, 4, 4, 4))[:, :, down : down + h, right : right + w]
