"""Where rays meet a ball, a box or a cylinder, each the unit one in its own coordinates: batched, closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BALL, BOX, CYLINDER = "ball", "box", "cylinder"
FAR = 1e6  # distance of a ray that meets nothing


class Hit(NamedTuple):
    """Distances `[v, r]` along the rays (FAR where there is no hit) and the outward normals there, `[3, v, r]`."""

    distance: Tensor
    normal: Tensor


def meet_ball(origin: Tensor, ray: Tensor) -> Hit:
    """Rays `origin + t ray` and the ball of radius 1. `origin` `[3, v, 1]`, `ray` `[3, v, r]`."""
    a, b, c = _dot(ray, ray), _dot(origin, ray), _dot(origin, origin) - 1
    inside = b * b - a * c
    distance = (-b - inside.clamp(min=0).sqrt()) / a
    return Hit(torch.where((inside > 0) & (distance > 0), distance, FAR), origin + distance * ray)


def meet_box(origin: Tensor, ray: Tensor) -> Hit:
    """Rays and the cube from -1 to 1."""
    enter, leave = _slab(origin, ray)  # [3, v, r] each
    distance, axis = enter.max(dim=0)
    hit = (distance <= leave.amin(dim=0)) & (distance > 0)
    facing = torch.stack([axis == number for number in range(3)])
    return Hit(torch.where(hit, distance, FAR), torch.where(facing, -ray.sign(), 0.0))


def meet_cylinder(origin: Tensor, ray: Tensor) -> Hit:
    """Rays and the closed cylinder of radius 1 about the third axis, from -1 to 1."""
    across, along = ray[:2], ray[2:]
    a = _dot(across, across).clamp(min=1e-12)
    b, c = _dot(origin[:2], across), _dot(origin[:2], origin[:2]) - 1
    inside = b * b - a * c
    root = inside.clamp(min=0).sqrt()
    side, cap, leave_cap = (-b - root) / a, *(value[0] for value in _slab(origin[2:], along))
    distance = torch.maximum(side, cap)
    hit = (inside > 0) & (distance <= torch.minimum((root - b) / a, leave_cap)) & (distance > 0)
    round_normal = torch.cat([origin[:2] + distance * across, torch.zeros_like(along)])
    flat_normal = torch.cat([torch.zeros_like(across), -along.sign()])
    return Hit(torch.where(hit, distance, FAR), torch.where(side > cap, round_normal, flat_normal))


MEET = {BALL: meet_ball, BOX: meet_box, CYLINDER: meet_cylinder}


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(dim=0)


def _slab(origin: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Where rays enter and leave the space between -1 and 1 of each axis."""
    ray = torch.where(ray.abs() < 1e-9, 1e-9, ray)
    near, far = (-1 - origin) / ray, (1 - origin) / ray
    return torch.minimum(near, far), torch.maximum(near, far)
