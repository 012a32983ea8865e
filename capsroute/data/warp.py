"""Batched affine resampling of images: one grid, one bilinear lookup, black outside."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data.transfer import send


def linear_maps(angle: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor) -> Tensor:
    """`[b, 2, 2]` maps of (x, y) offsets from the centre, y downwards: scale, then shear x by y, then turn by `angle`.

    A positive angle (radians) turns the picture counter-clockwise as seen on the screen.
    """
    cos, sin, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([cos, sin, -sin, cos], dim=-1).view(-1, 2, 2)
    shears = torch.stack([one, shear, zero, one], dim=-1).view(-1, 2, 2)
    scales = torch.stack([scale_x, zero, zero, scale_y], dim=-1).view(-1, 2, 2)
    return turn @ shears @ scales


def warp(images: Tensor, maps: Tensor, shifts: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Move every pixel of float `images` `[b, c, h, w]` from `p` to `map p + shift`, in pixels from the centres.

    `maps` `[b, 2, 2]` and `shifts` `[b, 2]` are in (x, y); the result is `[b, c, *size]`.
    """
    b, c, h, w = images.shape
    height, width = size or (h, w)
    inverse = torch.linalg.inv(maps.double())  # [b, 2, 2]
    offset = -(inverse @ shifts.double()[:, :, None])[:, :, 0]
    # grid_sample measures both pictures from -1 to 1; convert from pixels.
    to_units = torch.tensor([2 / w, 2 / h], dtype=torch.float64)
    from_units = torch.tensor([width / 2, height / 2], dtype=torch.float64)
    theta = torch.cat([to_units[:, None] * inverse * from_units, (to_units * offset)[:, :, None]], dim=2)
    theta = send(theta.to(images.dtype), images.device)
    grid = F.affine_grid(theta, [b, c, height, width], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
