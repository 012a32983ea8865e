"""Rendering toys as smallNORB photographs them: nine elevations, eighteen azimuths, six lightings, a stereo pair each.

The camera stands still and the toy turns, so lamps shine from fixed sides. One ray per pixel; no shadows are cast.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from capsroute.data.generated.toy_shapes import CATEGORIES, FAR, MEET, Toy, build_toy

TOYS = tuple(CATEGORIES)
ELEVATIONS, AZIMUTHS, LIGHTINGS = 9, 18, 6  # azimuths are numbered 0, 2 ... 34, in tens of degrees, as in smallNORB
DISTANCE, BASELINE, FIELD = 4.0, 0.3, 0.27  # camera to toy, eye to eye, tangent of half the angle of view
LAMPS = ((0.5, 0.8, 0.9), (0.5, -0.8, 0.9), (-0.6, 0.2, 1.0), (1.0, 0.0, 0.3))  # directions towards four lamps
# Strength of the light from everywhere and of each lamp, in the six lightings.
STRENGTHS = (
    (0.25, 0.75, 0.00, 0.00, 0.00),
    (0.25, 0.00, 0.75, 0.00, 0.00),
    (0.20, 0.45, 0.45, 0.00, 0.00),
    (0.25, 0.00, 0.00, 0.60, 0.30),
    (0.40, 0.20, 0.20, 0.20, 0.10),
    (0.10, 0.50, 0.00, 0.25, 0.00),
)
GROUND = 0.75  # grey of what is behind the toy
CHUNK = {"cpu": 18, "cuda": 1024}  # views at once: small enough for a CPU's cache, large enough for a GPU


def render_views(
    instances: Sequence[int],
    elevations: Sequence[int],
    azimuths: Sequence[int],
    lightings: Sequence[int],
    size: int,
    device: torch.device,
) -> tuple[Tensor, dict[str, Tensor]]:
    """All views of all categories: images uint8 `[n, 2, size, size]` (left, right eye) and smallNORB's metadata."""
    _check_numbers(elevations, azimuths, lightings, size)
    grid = torch.cartesian_prod(torch.tensor(list(elevations)), torch.tensor(list(azimuths))).view(-1, 2)  # [v, 2]
    lit = torch.tensor(list(lightings))
    images, facts = [], []
    for number, category in enumerate(TOYS):
        for instance in instances:
            toy = build_toy(category, instance)
            for views in grid.split(CHUNK.get(device.type, 256)):
                images.append(_render(toy, views[:, 0], views[:, 1], lit, size, device).flatten(0, 1))
            views = torch.cat([grid.repeat_interleave(len(lit), 0), lit.repeat(len(grid))[:, None]], dim=1)
            facts.append(torch.cat([torch.tensor([[number, instance]]).expand(len(views), 2), views], dim=1))
    keys = ("category", "instance", "elevation", "azimuth", "lighting")
    columns = torch.cat(facts).to(device).unbind(1)
    return torch.cat(images), {key: column.clone() for key, column in zip(keys, columns, strict=True)}


def _render(toy: Toy, elevation: Tensor, azimuth: Tensor, lightings: Tensor, size: int, device: torch.device) -> Tensor:
    """uint8 `[v, l, 2, size, size]` of views `[v]` under lightings `[l]`."""
    eyes = []
    for side in (-0.5, 0.5):
        position, rays = _camera(elevation, side * BASELINE, size, device)
        normal, grey, hit = _first_hits(toy, azimuth, position, rays)
        eyes.append(_shade(normal, grey, hit, lightings).view(len(azimuth), len(lightings), size, size))
    return torch.stack(eyes, dim=2)


def _camera(elevation: Tensor, aside: float, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Camera positions `[3, v, 1]`, and rays `[3, v, size * size]` through the pixels, towards the toy."""
    angle = torch.deg2rad(30.0 + 5.0 * elevation.double())
    position = DISTANCE * torch.stack([angle.cos(), torch.full_like(angle, aside / DISTANCE), angle.sin()])  # [3, v]
    forward = -position / position.norm(dim=0)
    right = torch.linalg.cross(forward, torch.tensor([0.0, 0.0, 1.0]).double()[:, None].expand_as(forward), dim=0)
    right = right / right.norm(dim=0)
    up = torch.linalg.cross(right, forward, dim=0)
    steps = FIELD * ((torch.arange(size, dtype=torch.float64) + 0.5) * 2 / size - 1)
    y, x = torch.meshgrid(-steps, steps, indexing="ij")
    basis = torch.stack([forward, right, up]).float().to(device)  # [3 vectors, 3, v]
    pixels = torch.stack([torch.ones_like(x), x, y]).view(3, -1).float().to(device)  # [3 vectors, r]
    return position.float().to(device)[:, :, None], torch.einsum("nkv,nr->kvr", basis, pixels)


def _first_hits(toy: Toy, azimuth: Tensor, position: Tensor, rays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the nearest solid along each ray: normals `[3, v, r]`, greys `[v, r]`, whether there is any `[v, r]`."""
    nearest = torch.full(rays.shape[1:], FAR, device=rays.device)
    normal, grey = torch.zeros_like(rays), torch.zeros_like(nearest)
    turn = _turns(azimuth)  # [v, 3, 3]
    for kind, frame, centre, shade in zip(toy.kinds, toy.frames, toy.centres, toy.greys.tolist(), strict=True):
        frames = turn @ frame  # [v, 3, 3]
        inverse = torch.linalg.inv(frames).float().to(rays.device)
        start = position - (turn @ centre).T.float().to(rays.device)[:, :, None]
        hit = MEET[kind](torch.einsum("vij,jvr->ivr", inverse, start), torch.einsum("vij,jvr->ivr", inverse, rays))
        closer = hit.distance < nearest
        nearest = torch.where(closer, hit.distance, nearest)
        normal = torch.where(closer, torch.einsum("vji,jvr->ivr", inverse, hit.normal), normal)
        grey = grey.masked_fill(closer, shade)
    length = (normal * normal).sum(dim=0).sqrt_()  # several times faster than norm(), whose reduction is not vectorised
    return normal / length.clamp_(min=1e-9), grey, nearest < FAR


def _shade(normal: Tensor, grey: Tensor, hit: Tensor, lightings: Tensor) -> Tensor:
    """uint8 `[v, l, r]`: how bright each pixel is under each lighting."""
    lamps = torch.tensor(LAMPS, device=normal.device)
    lamps = lamps / lamps.norm(dim=1, keepdim=True)
    strengths = torch.tensor(STRENGTHS, device=normal.device)[lightings.to(normal.device)]  # [l, 1 + lamps]
    ambient, lamp_strengths = strengths[:, 0], strengths[:, 1:]
    facing = torch.einsum("nk,kvr->nvr", lamps, normal).clamp_(min=0)
    light = torch.einsum("ln,nvr->vlr", lamp_strengths, facing) + ambient[:, None]
    # The ground faces upwards: it is as bright as a flat surface would be.
    ground = GROUND * (ambient + (lamp_strengths * lamps[:, 2]).sum(dim=1))
    picture = torch.where(hit[:, None], grey[:, None] * light, ground[:, None])
    return picture.mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def _turns(azimuth: Tensor) -> Tensor:
    angle = torch.deg2rad(10.0 * azimuth.double())
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], dim=1).view(-1, 3, 3)


def _check_numbers(elevations: Sequence[int], azimuths: Sequence[int], lightings: Sequence[int], size: int) -> None:
    for name, given, allowed in (
        ("elevations", elevations, range(ELEVATIONS)),
        ("azimuths", azimuths, range(0, 2 * AZIMUTHS, 2)),
        ("lightings", lightings, range(LIGHTINGS)),
    ):
        if not given or not set(given) <= set(allowed):
            raise ValueError(f"{name}: expected some of {list(allowed)}, got {list(given)}")
    if size < 1:
        raise ValueError(f"size: expected 1 pixel or more, got {size}")
