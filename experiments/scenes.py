"""Constellations in clutter: squares, triangles, pentagons and Ls of points, and what points say about the whole.

A vote is a pose: the place of the centre where objects are only shifted; and size and turn where they are scaled and
turned too. It is measured so that one unit is about one unit of displacement of a corner, whichever number it is in.
Points vote under each hypothesis of which corner they are; pairs of points, under each of which edge they are. Poses
that no object can have are not voted for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.data.seeding import generator_at

VARIANTS = ("shifted", "similar")  # similar: shifted, scaled and turned
OBJECTS, PER_KIND, CORNERS, CLUTTER = 3, 2, 5, 32
NOISE, PLACE, RADIUS = 0.01, 0.7, 0.3
RADII, SLACK = (0.27, 0.35), 0.03
POINTS = OBJECTS * CORNERS + CLUTTER
TURN = 0.32  # a corner moves by about this much for each radian
NAMES = ("square", "triangle", "pentagon", "L")
SYMMETRY = torch.tensor([4, 3, 5, 1])  # turns by 1/n of a circle that change nothing
SIZES = torch.tensor([4, 3, 5, 4])
MOST = {"shifted": 176, "similar": 384}  # votes for a kind, kept


def _templates() -> Tensor:
    """Corners [kind, 5] as complex numbers, about their centre, radius about one; the last are repeated."""
    rows = []
    for n in (4, 3, 5):
        corners = torch.polar(torch.ones(n), 2 * math.pi * torch.arange(n) / n + math.pi / 4)
        rows.append(torch.cat([corners, corners[-1:].expand(CORNERS - n)]))
    L = torch.tensor([2j, 1j, 0, 1], dtype=torch.complex64)
    L = 0.8 * (L - L.mean())
    rows.append(torch.cat([L, L[-1:]]))
    return torch.stack(rows)


TEMPLATES = _templates()
EDGES = ((0,), (0,), (0,), (0, 1, 2))  # from corner c to c + 1; those of a regular shape are all alike


class Scenes(NamedTuple):
    """`n` scenes: points, which object each belongs to (1, 2, 3; 0 clutter), and the objects' kinds and poses."""

    points: Tensor  # complex [n, POINTS]
    there: Tensor  # bool [n, POINTS]
    owner: Tensor  # int64 [n, POINTS]
    kind: Tensor  # int64 [n, OBJECTS]
    scale: Tensor  # complex [n, OBJECTS]: size and turn
    centre: Tensor  # complex [n, OBJECTS]

    def to(self, device: torch.device) -> Scenes:
        return Scenes(*(tensor.to(device) for tensor in self))


def draw(count: int, variant: str, clutter: int | None, *place: int | str) -> Scenes:
    """Scenes with so many points of clutter (None: any number up to CLUTTER), the same for the same place."""
    generator = generator_at(0, "constellations", variant, *place)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    kind = uniform(count, len(NAMES) * PER_KIND).argsort(1)[:, :OBJECTS] // PER_KIND
    # The furthest apart of eight draws: two objects of a kind in one place are one object.
    tries = PLACE * torch.complex(*(2 * uniform(2, count, 8, OBJECTS) - 1).unbind(0))
    gaps = torch.stack([(tries[..., a] - tries[..., b]).abs() for a, b in ((0, 1), (0, 2), (1, 2))]).amin(0)
    centre = tries[torch.arange(count), gaps.argmax(1)]
    if variant == "shifted":
        scale = torch.full((count, OBJECTS), RADIUS, dtype=torch.complex64)
    else:
        radius = RADII[0] + (RADII[1] - RADII[0]) * uniform(count, OBJECTS)
        scale = torch.polar(radius, 2 * math.pi * uniform(count, OBJECTS))
    corners = scale[..., None] * TEMPLATES[kind] + centre[..., None]  # [n, OBJECTS, CORNERS]
    noise = torch.complex(*torch.randn(2, *corners.shape, generator=generator).unbind(0))
    real = torch.arange(CORNERS) < SIZES[kind][..., None]
    stray = torch.complex(*(2 * uniform(2, count, CLUTTER) - 1).unbind(0))
    many = torch.randint(CLUTTER + 1, (count, 1), generator=generator) if clutter is None else clutter
    strays = (torch.arange(CLUTTER) < many).expand(count, -1)
    owner = torch.arange(1, OBJECTS + 1).view(1, -1, 1).expand_as(real)
    return Scenes(
        torch.cat([(corners + NOISE * noise).flatten(1), stray], 1),
        torch.cat([real.flatten(1), strays], 1),
        torch.cat([torch.where(real, owner, 0).flatten(1), torch.zeros_like(strays, dtype=torch.int64)], 1),
        kind,
        scale,
        centre,
    )


def to_pose(scale: Tensor, centre: Tensor, kind: Tensor, variant: str) -> Tensor:
    """Complex scale and centre [...] of objects of these kinds -> pose [..., 2 or 5]."""
    if variant == "shifted":
        return torch.view_as_real(centre)
    n = SYMMETRY.to(kind.device)[kind]
    turn = torch.view_as_real(torch.polar(TURN / n, n * scale.angle()))
    return torch.cat([torch.view_as_real(centre), scale.abs().unsqueeze(-1), turn], -1)


def from_pose(pose: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """The complex scale and centre of a pose; its turn is one of several that look alike."""
    centre = torch.view_as_complex(pose[..., :2].contiguous())
    if pose.shape[-1] == 2:
        return torch.full_like(centre, RADIUS), centre
    angle = torch.atan2(pose[..., 4], pose[..., 3]) / SYMMETRY.to(kind.device)[kind]
    return torch.polar(pose[..., 2].clamp(0.05, 1.0), angle), centre


def corners_of(pose: Tensor, kind: Tensor) -> Tensor:
    """Corners [..., 5], complex; the last are repeated where a shape has fewer."""
    scale, centre = from_pose(pose, kind)
    return scale[..., None] * TEMPLATES.to(kind.device)[kind] + centre[..., None]


def votes(scenes: Scenes, variant: str) -> tuple[Tensor, Tensor]:
    """Votes [n, kind, i, 2 or 5] and whether they are there [n, kind, i]."""
    found = [_votes_for(kind, scenes, variant) for kind in range(len(NAMES))]
    return torch.stack([poses for poses, _ in found], 1), torch.stack([there for _, there in found], 1)


def _votes_for(kind: int, scenes: Scenes, variant: str) -> tuple[Tensor, Tensor]:
    p, there, corners = scenes.points, scenes.there, TEMPLATES[kind].to(scenes.points.device)
    if variant == "shifted":
        centre = p[:, :, None] - RADIUS * corners[: int(SIZES[kind])]  # [n, points, corners]
        scale = torch.full_like(centre, RADIUS)
        valid = there[:, :, None].expand_as(scale)
    else:
        first = torch.tensor(EDGES[kind], device=p.device)
        edge = corners[first + 1] - corners[first]  # [edges]
        scale = (p[:, None, :] - p[:, :, None])[..., None] / edge  # [n, from, to, edges]
        centre = p[:, :, None, None] - scale * corners[first]
        possible = (scale.abs() > RADII[0] - SLACK) & (scale.abs() < RADII[1] + SLACK)
        valid = there[:, :, None, None] & there[:, None, :, None] & possible
    inside = (centre.real.abs() < PLACE + SLACK) & (centre.imag.abs() < PLACE + SLACK)
    valid, scale, centre = ((t.flatten(1)) for t in (valid & inside, scale, centre))
    keep = valid.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : MOST[variant]]
    valid, scale, centre = (t.gather(1, keep) for t in (valid, scale, centre))
    pose = to_pose(scale, centre, torch.full_like(keep, kind), variant)
    pose, valid = torch.where(valid[..., None], pose, 0.0), valid.float()
    short = MOST[variant] - pose.shape[1]
    return torch.nn.functional.pad(pose, (0, 0, 0, max(0, short))), torch.nn.functional.pad(valid, (0, max(0, short)))


def targets(scenes: Scenes, variant: str) -> tuple[Tensor, Tensor]:
    """For each kind and each of two places: the pose [n, kind, 2, 2 or 5], and whether there is one [n, kind, 2]."""
    pose = to_pose(scenes.scale, scenes.centre, scenes.kind, variant)  # [n, OBJECTS, p]
    is_kind = scenes.kind[:, None] == torch.arange(len(NAMES), device=pose.device)[None, :, None]  # [n, kind, OBJECTS]
    order = is_kind.to(torch.uint8).argsort(dim=2, descending=True, stable=True)[..., :PER_KIND]
    present = is_kind.gather(2, order).float()
    pose = pose[:, None].expand(-1, len(NAMES), -1, -1).gather(2, order[..., None].expand(-1, -1, -1, pose.shape[2]))
    return pose * present[..., None], present


def exhaustive_fit(scenes: Scenes, variant: str, tolerance: float = 0.04) -> tuple[Tensor, Tensor]:
    """The best that a search can do: kinds [n, 3] and poses [n, 3, p] of the objects that most points agree on.

    Every vote is tried. The object with most corners that have a point near them is taken (a whole one first, and of
    equals the one that fits best), fitted to its points by least squares, its points are taken away, and again.
    """
    poses, there = votes(scenes, variant)
    n, kinds, many, _ = poses.shape
    kind = torch.arange(kinds, device=poses.device).view(1, -1, 1).expand(n, -1, many)
    corners = corners_of(poses, kind)  # [n, kind, i, 5]
    distance = (corners[..., None] - scenes.points[:, None, None, None]).abs()  # [n, kind, i, 5, points]
    size = SIZES.to(poses.device).view(1, -1, 1)
    real = torch.arange(CORNERS, device=poses.device) < size[..., None]
    free, found_kinds, found_poses = scenes.there.clone(), [], []
    for _ in range(OBJECTS):
        nearest, which = distance.masked_fill(~free[:, None, None, None], math.inf).min(4)  # [n, kind, i, 5]
        near = (nearest < tolerance) & real
        hits = near.sum(3)
        misfit = (torch.where(near, nearest, 0.0).sum(3) / hits.clamp_min(1)) / tolerance  # 0 to 1
        worth = hits + 10 * (hits == size) - misfit
        best = worth.masked_fill(there == 0, -math.inf).flatten(1).argmax(1)  # [n]
        at = torch.arange(n, device=poses.device)
        chosen = best // many
        near, which = (t.flatten(1, 2)[at, best] for t in (near, which))
        found_kinds.append(chosen)
        refitted = _fit(scenes.points.gather(1, which), near, chosen, variant)
        found_poses.append(torch.where(near.sum(1, keepdim=True) > 1, refitted, poses.flatten(1, 2)[at, best]))
        taken = torch.zeros_like(free, dtype=torch.float32).scatter_add(1, which, near.float())
        free &= taken == 0
    return torch.stack(found_kinds, 1), torch.stack(found_poses, 1)


def _fit(points: Tensor, near: Tensor, kind: Tensor, variant: str) -> Tensor:
    """Least squares: the pose [n, p] that maps corners to their points [n, 5], of those that are near."""
    weights = near.float() / near.sum(1, keepdim=True).clamp_min(1)
    corners = TEMPLATES.to(points.device)[kind]
    mean_points, mean_corners = (points * weights).sum(1), (corners * weights).sum(1)
    if variant == "shifted":
        scale = torch.full_like(mean_points, RADIUS)
    else:
        p, c = points - mean_points[:, None], corners - mean_corners[:, None]
        scale = (weights * p * c.conj()).sum(1) / (weights * c.abs().square()).sum(1).clamp_min(1e-6)
    return to_pose(scale, mean_points - scale * mean_corners, kind, variant)
