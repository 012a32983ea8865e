"""Draw docs/images/toynorb.png: a training and a test toy of each category, then six lightings and six elevations."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import capsroute as cr

AZIMUTHS, ELEVATIONS = (0, 4, 8, 14, 22, 30), (0, 2, 4, 6, 7, 8)


def views(split: str, toy: int, **options: object) -> Tensor:
    """The left eye's six views of one toy of each category, side by side: `[category, 96, 6 * 96]`."""
    toys = cr.data.load("toynorb", split, **options)
    left = toys.images.view(5, -1, 6, 2, 96, 96)[:, toy, :, 0]
    return left.permute(0, 2, 1, 3).reshape(5, 96, -1)


def main() -> None:
    turned = [views(split, 0, elevations=(1,), azimuths=AZIMUTHS, lightings=(2,)) for split in ("train", "test")]
    lit = views("test", 3, elevations=(1,), azimuths=(8,))
    raised = views("test", 3, elevations=ELEVATIONS, azimuths=(8,), lightings=(2,))
    rows = [torch.cat(turned, dim=2), torch.cat([lit, raised], dim=2)[[0, 4]]]
    sheet = torch.cat(rows).reshape(-1, 12 * 96)
    Image.fromarray(sheet.numpy()).save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main()
