"""The five categories of toys: each instance is built of solids with proportions of its own, drawn once and for all;
rendered as smallNORB photographs its toys: nine elevations, eighteen azimuths, six lightings, a stereo pair each.

Solids are a ball, a box and a cylinder, each the unit one in its own coordinates, where rays meet them in closed form.
x points forward, y to the left, z up; lengths are free, since a finished toy is scaled to fit the picture. The camera
stands still and the toy turns, so lamps shine from fixed sides. One ray per pixel; no shadows are cast.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.seeding import generator_at
from capsroute.data.sets import ImageSet, cut_instance

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


Vector = tuple[float, float, float]


class Solid(NamedTuple):
    """A unit solid stretched to `half` sizes, turned by `pitch` about y then `yaw` about z, and moved to `centre`."""

    kind: str
    centre: Vector
    half: Vector
    grey: float
    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0  # about x, before the others: lays a cylinder across


class Draw:
    """The proportions of one instance, a fixed sequence of random numbers."""

    def __init__(self, category: str, instance: int) -> None:
        self.generator = generator_at(0, "toynorb", category, instance)

    def __call__(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))


LYING = math.pi / 2


def animal(draw: Draw, instance: int) -> list[Solid]:
    length, width, height, leg = draw(0.7, 1.2), draw(0.28, 0.42), draw(0.3, 0.45), draw(0.35, 0.8)
    thick, neck, head, coat = draw(0.08, 0.14), draw(0.2, 0.8), draw(0.2, 0.32), draw(0.45, 0.85)
    dark, back = coat * draw(0.5, 0.9), leg + height
    lean = draw(0.2, 1.0)
    nape = (0.85 * length + 0.5 * neck * math.sin(lean), 0.0, back + 0.5 * height + 0.5 * neck * math.cos(lean))
    face = (0.85 * length + neck * math.sin(lean) + 0.6 * head, 0.0, back + 0.5 * height + neck * math.cos(lean))
    solids = [
        Solid(BALL, (0, 0, back), (length, width, height), coat),
        Solid(CYLINDER, nape, (0.45 * width, 0.45 * width, 0.6 * neck), coat, pitch=lean),
        Solid(BALL, face, (1.4 * head, 0.8 * head, 0.8 * head), dark, pitch=0.3),
        Solid(BALL, (-length, 0, back + 0.1), (draw(0.2, 0.5), 0.06, 0.06), dark, pitch=draw(-0.9, 0.9)),
    ]
    for x in (0.6 * length, -0.6 * length):
        for y in (0.55 * width, -0.55 * width):
            solids.append(Solid(CYLINDER, (x, y, 0.5 * leg), (thick, thick, 0.5 * leg + 0.1), dark))
    for y in (0.5 * head, -0.5 * head):
        ear = (face[0] - 0.6 * head, y, face[2] + 0.7 * head)
        solids.append(Solid(BALL, ear, (0.06, 0.1, draw(0.12, 0.3)), coat))
    return solids


def human(draw: Draw, instance: int) -> list[Solid]:
    leg, torso, shoulder, head = draw(0.7, 1.0), draw(0.4, 0.6), draw(0.24, 0.38), draw(0.18, 0.26)
    limb, arm, skin, cloth = draw(0.08, 0.13), draw(0.35, 0.5), draw(0.6, 0.9), draw(0.3, 0.7)
    chest, stride = leg + torso, draw(0.0, 0.5)
    trunk = BOX if instance % 2 else BALL
    solids = [
        Solid(trunk, (0, 0, chest), (0.6 * shoulder, shoulder, torso), cloth),
        Solid(BALL, (0, 0, chest + torso + 0.8 * head), (head, head, 1.15 * head), skin),
    ]
    for side in (1, -1):
        swing = side * stride
        hip = (0.5 * leg * -math.sin(swing), 0.5 * side * shoulder, 0.5 * leg + 0.05)
        solids.append(Solid(CYLINDER, hip, (limb, limb, 0.5 * leg + 0.05), 0.7 * cloth, pitch=swing))
        raised = draw(-0.6, 1.6)  # forward
        hand = (arm * math.sin(raised), side * (shoulder + limb), chest + 0.6 * torso - arm * math.cos(raised))
        solids.append(Solid(CYLINDER, hand, (0.8 * limb, 0.8 * limb, arm), skin, pitch=-raised))
    if instance % 3 == 0:
        solids.append(Solid(BOX, (-0.9 * shoulder, 0, chest + 0.1), (0.15, 0.7 * shoulder, 0.6 * torso), 0.35))
    else:
        brim = (head * draw(1.0, 1.7), head * draw(1.0, 1.7), 0.07)
        solids.append(Solid(CYLINDER, (0, 0, chest + torso + 1.75 * head), brim, draw(0.3, 0.95)))
    return solids


def plane(draw: Draw, instance: int) -> list[Solid]:
    length, girth, span, chord = draw(0.9, 1.3), draw(0.12, 0.2), draw(0.8, 1.3), draw(0.16, 0.3)
    sweep, skin, paint, fin = draw(0.0, 0.5), draw(0.6, 0.95), draw(0.3, 0.8), draw(0.2, 0.4)
    at, height, raised = draw(-0.1, 0.3), draw(-0.5, 0.5) * girth, 0.3 * girth
    solids = [
        Solid(BALL if instance % 2 else CYLINDER, (0, 0, 0), (girth, girth, length), skin, pitch=LYING),
        Solid(BALL, (0.9 * length, 0, 0), (0.35, 0.9 * girth, 0.9 * girth), paint),
        Solid(BOX, (-0.9 * length, 0, raised + 0.5 * fin), (0.6 * chord, 0.03, fin), paint, pitch=0.3),
        Solid(BOX, (-0.92 * length, 0, raised), (0.5 * chord, 0.4 * span, 0.03), paint),
    ]
    for side in (1, -1):
        reach = 0.5 * span
        wing = (at - reach * math.sin(sweep), side * reach * math.cos(sweep), height)
        solids.append(Solid(BOX, wing, (chord, reach, 0.035), skin, yaw=side * sweep))
        pod = (at - 0.8 * reach * math.sin(sweep) + 0.1, 0.9 * side * reach, height - 0.1)
        solids.append(Solid(CYLINDER, pod, (0.08, 0.08, draw(0.12, 0.25)), 0.4, pitch=LYING))
    return solids


def truck(draw: Draw, instance: int) -> list[Solid]:
    length, width, cargo, wheel = draw(0.9, 1.3), draw(0.3, 0.4), draw(0.3, 0.5), draw(0.14, 0.2)
    cab, tall, paint, load = draw(0.2, 0.3), draw(0.32, 0.48), draw(0.3, 0.9), draw(0.4, 0.95)
    floor = 1.6 * wheel
    rear = (-cab - 0.05, 0.0, floor + cargo + 0.08)
    if instance % 3 == 2:  # a tanker
        body = Solid(CYLINDER, rear, (cargo, 0.95 * width, length - cab), load, pitch=LYING)
    else:
        body = Solid(BOX, rear, (length - cab, width, cargo), load)
    solids = [
        body,
        Solid(BOX, (0, 0, floor), (length + 0.05, 0.85 * width, 0.07), 0.35),
        Solid(BOX, (length - cab, 0, floor + tall), (cab, 0.95 * width, tall), paint),
        Solid(BOX, (length + 0.06, 0, floor + 0.4 * tall), (draw(0.06, 0.25), 0.8 * width, 0.4 * tall), paint),
    ]
    for x in (length - cab, -0.45 * length, -0.8 * length):
        solids += _wheels(x, 0.9 * width, wheel)
    return solids


def car(draw: Draw, instance: int) -> list[Solid]:
    length, width, body, wheel = draw(0.85, 1.15), draw(0.38, 0.48), draw(0.14, 0.22), draw(0.16, 0.22)
    roof, tall, paint, at = draw(0.35, 0.6), draw(0.16, 0.28), draw(0.35, 0.95), draw(-0.3, 0.1)
    top = 1.2 * wheel + 2 * body
    solids = [
        Solid(BOX, (0, 0, 1.2 * wheel + body), (length, width, body), paint),
        Solid(BALL if instance % 2 else BOX, (at, 0, top), (roof, 0.85 * width, 2 * tall), 0.6 * paint),
        Solid(BALL, (0.9 * length, 0, 1.2 * wheel + body), (0.3, 0.95 * width, 0.9 * body), paint),
    ]
    if instance % 3 == 1:
        solids.append(Solid(BOX, (-0.95 * length, 0, top + 0.12), (0.1, width, 0.03), 0.4))
    for x in (0.6 * length, -0.6 * length):
        solids += _wheels(x, width, wheel)
    return solids


def _wheels(x: float, y: float, radius: float) -> list[Solid]:
    return [Solid(CYLINDER, (x, side * y, radius), (radius, radius, 0.08), 0.2, roll=LYING) for side in (1, -1)]


CATEGORIES: dict[str, Callable[[Draw, int], list[Solid]]] = {
    "animal": animal,
    "human": human,
    "plane": plane,
    "truck": truck,
    "car": car,
}


class Toy(NamedTuple):
    """A toy of `s` solids, centred and scaled into the unit ball: their kinds, and `[s, ...]` tensors in float64."""

    kinds: tuple[str, ...]
    frames: Tensor  # [s, 3, 3]: from unit coordinates of a solid to the toy's
    centres: Tensor  # [s, 3]
    greys: Tensor  # [s]


def build_toy(category: str, instance: int) -> Toy:
    """Instance 0 to 9 of a category."""
    solids = CATEGORIES[category](Draw(category, instance), instance)
    frames = torch.stack([_turn(solid) * torch.tensor(solid.half, dtype=torch.float64) for solid in solids])
    centres = torch.tensor([solid.centre for solid in solids], dtype=torch.float64)
    outlines = torch.stack([_outline(solid.kind) for solid in solids])  # [s, 26, 3]
    points = (centres[:, None] + outlines @ frames.transpose(1, 2)).reshape(-1, 3)
    middle = (points.amin(dim=0) + points.amax(dim=0)) / 2
    size = (points - middle).norm(dim=1).max()
    greys = torch.tensor([solid.grey for solid in solids], dtype=torch.float64)
    return Toy(tuple(solid.kind for solid in solids), frames / size, (centres - middle) / size, greys)


def _outline(kind: str) -> Tensor:
    """Points `[26, 3]` all over the surface of a unit solid, for measuring a toy."""
    steps = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    points = torch.cartesian_prod(steps, steps, steps)
    points = points[points.abs().sum(dim=1) > 0]
    if kind == BOX:
        return points
    round_ = points if kind == BALL else points[:, :2]
    scaled = round_ / round_.norm(dim=1, keepdim=True).clamp(min=1)
    return scaled if kind == BALL else torch.cat([scaled, points[:, 2:]], dim=1)


def _turn(solid: Solid) -> Tensor:
    (cp, sp), (cy, sy), (cr, sr) = ((math.cos(a), math.sin(a)) for a in (solid.pitch, solid.yaw, solid.roll))
    pitch = torch.tensor([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]], dtype=torch.float64)
    yaw = torch.tensor([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]], dtype=torch.float64)
    roll = torch.tensor([[1, 0, 0], [0, cr, -sr], [0, sr, cr]], dtype=torch.float64)
    return yaw @ pitch @ roll


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


LOW = 3  # elevations to train on where the others are kept unseen, a third as in Hinton et al. 2018
TRAINING_TOYS, TEST_TOYS = (4, 6, 7, 8, 9), (0, 1, 2, 3, 5)  # smallNORB's own division
AT_ONE_ELEVATION = {"train": 2_160, "validation": 540, "test": 2_700}
SETS = {
    "toynorb": ("ToyNORB: rendered toys from many sides, a stand-in for smallNORB", range(ELEVATIONS)),
    "toynorb_low": ("ToyNORB from the three lowest elevations, 30 to 40 degrees", range(LOW)),
    "toynorb_high": ("ToyNORB from the six other elevations, 45 to 70 degrees", range(LOW, ELEVATIONS)),
}


def _read(
    info: DatasetInfo,
    folder: None,
    split: str,
    size: int = 96,
    elevations: Sequence[int] | None = None,
    azimuths: Sequence[int] = range(0, 2 * AZIMUTHS, 2),
    lightings: Sequence[int] = range(LIGHTINGS),
    device: torch.device | str = "cpu",
) -> ImageSet:
    instances = TEST_TOYS if split == "test" else TRAINING_TOYS
    elevations = SETS[info.name][1] if elevations is None else elevations
    images, metadata = render_views(instances, elevations, azimuths, lightings, size, torch.device(device))
    toys = ImageSet(images, metadata["category"], info.classes, info.name, split, metadata)
    return cut_instance(toys, split)


for _name, (_title, _elevations) in SETS.items():
    register(
        DatasetInfo(
            name=_name,
            title=_title,
            classes=TOYS,
            shape=(2, 96, 96),
            sizes={split: count * len(_elevations) for split, count in AT_ONE_ELEVATION.items()},
            licence="Apache-2.0, as capsroute",
            origin="rendered here",
            read=_read,
        )
    )
