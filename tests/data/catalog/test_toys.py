import pytest
import torch

from capsroute.data import load
from capsroute.data.catalog.toys import BALL, BOX, CATEGORIES, CYLINDER, FAR, MEET, TOYS, Toy, _render, build_toy


def _surface(kind):
    """Many points on a unit solid."""
    direction = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == BOX:
        return direction / direction.abs().amax(dim=1, keepdim=True)
    if kind == CYLINDER:
        round_ = direction[:, :2] / direction[:, :2].norm(dim=1, keepdim=True)
        return torch.cat([round_, direction[:, 2:].clamp(-1, 1)], dim=1)
    return direction / direction.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("instance", range(10))
def test_every_toy_fills_the_unit_ball_and_stays_inside(category, instance):
    toy = build_toy(category, instance)
    points = torch.cat(
        [centre + _surface(kind) @ frame.T for kind, frame, centre in zip(toy.kinds, toy.frames, toy.centres)]
    )
    assert 0.9 < float(points.norm(dim=1).max()) < 1.05
    assert (toy.greys > 0).all()
    assert (toy.greys < 1).all()


@pytest.mark.parametrize("category", CATEGORIES)
def test_no_two_instances_are_alike(category):
    toys = [build_toy(category, instance).frames.flatten() for instance in range(10)]
    for i in range(10):
        for j in range(i):
            assert toys[i].shape != toys[j].shape or float((toys[i] - toys[j]).abs().max()) > 0.02


def test_an_instance_is_always_the_same():
    assert torch.equal(build_toy("car", 3).frames, build_toy("car", 3).frames)


INSIDE = {
    BALL: lambda p: p.norm(dim=0) <= 1,
    BOX: lambda p: p.abs().amax(dim=0) <= 1,
    CYLINDER: lambda p: (p[:2].norm(dim=0) <= 1) & (p[2].abs() <= 1),
}
STEP = 0.002


def _rays():
    generator = torch.Generator().manual_seed(0)
    origin = torch.randn(3, 6, 1, generator=generator, dtype=torch.float64)
    origin = 3 * origin / origin.norm(dim=0)
    target = 2.4 * torch.rand(3, 6, 80, generator=generator, dtype=torch.float64) - 1.2
    ray = target - origin
    return origin, ray / ray.norm(dim=0)


@pytest.mark.parametrize("kind", [BALL, BOX, CYLINDER])
def test_first_hit_against_marching(kind):
    origin, ray = _rays()
    hit = MEET[kind](origin, ray)
    times = torch.arange(0, 6, STEP, dtype=torch.float64)
    points = origin[..., None] + ray[..., None] * times  # [3, v, r, t]
    inside = INSIDE[kind](points)
    first = torch.where(inside.any(dim=2), times[inside.int().argmax(dim=2)], FAR)
    found = hit.distance < FAR
    assert 0.2 < float(found.double().mean()) < 0.98
    # A ray that only grazes the solid, for less than a step, may pass between two points of the march.
    grazing = found & (first == FAR)
    assert float(grazing.double().mean()) < 0.01
    both = found & ~grazing
    assert torch.equal(both, first < FAR)
    assert float((hit.distance - first).abs()[both].max()) <= STEP


@pytest.mark.parametrize("kind", [BALL, BOX, CYLINDER])
def test_normals_point_out_of_the_surface_towards_the_eye(kind):
    origin, ray = _rays()
    hit = MEET[kind](origin, ray)
    found = hit.distance < FAR
    point, normal = origin + hit.distance * ray, hit.normal
    assert float((normal * ray).sum(dim=0)[found].max()) < 1e-9
    assert (INSIDE[kind](point - 1e-6 * normal)[found]).all()
    assert (~INSIDE[kind](point + 1e-6 * normal)[found]).all()


@pytest.mark.parametrize("kind", [BALL, BOX, CYLINDER])
def test_a_solid_behind_the_eye_is_not_seen(kind):
    origin, ray = _rays()
    assert (MEET[kind](origin, -ray).distance == FAR).all()


@pytest.mark.parametrize("kind", [BALL, BOX, CYLINDER])
def test_rays_along_an_axis(kind):
    origin = torch.tensor([0.2, 0.1, 3.0]).view(3, 1, 1)
    hit = MEET[kind](origin, torch.tensor([0.0, 0.0, -1.0]).view(3, 1, 1))
    assert float(hit.distance) == pytest.approx(2.0 if kind != BALL else 3 - 0.95**0.5, abs=1e-5)
    assert hit.normal.isfinite().all()


FEW = {"size": 32, "elevations": (2,), "azimuths": (0, 8), "lightings": (0, 1)}


def _background(images):
    """The grey in the corners, which no toy reaches: `[n]`."""
    return images[:, 0, 0, 0]


def test_every_view_of_every_toy_once():
    toys = load("toynorb", "train+validation", size=8)
    assert toys.images.shape == (24_300, 2, 8, 8)
    keys = ("category", "instance", "elevation", "azimuth", "lighting")
    rows = {tuple(row) for row in torch.stack([toys.metadata[key] for key in keys], dim=1).tolist()}
    assert len(rows) == 24_300
    for key, values in zip(keys, (range(5), (4, 6, 7, 8, 9), range(9), range(0, 36, 2), range(6))):
        assert toys.metadata[key].unique().tolist() == list(values)
    assert torch.equal(toys.labels, toys.metadata["category"])


def test_training_validation_and_test_toys_are_disjoint():
    instances = {
        split: set(load("toynorb", split, **FEW).metadata["instance"].tolist())
        for split in ("train", "validation", "test")
    }
    assert instances == {"train": {4, 6, 7, 8}, "validation": {9}, "test": {0, 1, 2, 3, 5}}


def test_pictures_are_those_of_their_metadata():
    every = load("toynorb", "test", size=32, elevations=(0, 8), azimuths=(0, 2), lightings=(3, 5))
    one = load("toynorb", "test", size=32, elevations=(8,), azimuths=(2,), lightings=(3,))
    facts = every.metadata
    chosen = (facts["elevation"] == 8) & (facts["azimuth"] == 2) & (facts["lighting"] == 3)
    assert torch.equal(every.subset(chosen).images, one.images)
    assert torch.equal(every.subset(chosen).metadata["instance"], one.metadata["instance"])


def test_every_toy_is_seen_whole():
    toys = load("toynorb", "test", size=48, elevations=(0, 4, 8), azimuths=range(0, 36, 6), lightings=(2,))
    different = (toys.images.int() - _background(toys.images).int()[:, None, None, None]).abs() > 2
    share = different.float().mean(dim=(1, 2, 3))
    assert float(share.min()) > 0.03
    assert float(share.max()) < 0.6
    ring = torch.ones(48, 48, dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    assert not different[:, :, ring].any()


def test_lighting_changes_greys_and_nothing_else():
    toys = load("toynorb", "test", **FEW | {"azimuths": (8,)})
    bright = toys.images.view(5, 5, 2, 2, 32, 32)
    assert not torch.equal(bright[:, :, 0], bright[:, :, 1])
    outline = (bright != bright[..., :1, :1]).float()
    assert float((outline[:, :, 0] - outline[:, :, 1]).abs().mean()) < 0.01


def test_turning_the_toy_and_raising_the_camera_change_the_picture():
    toys = load("toynorb", "test", size=32, elevations=(0, 8), azimuths=(0, 18), lightings=(2,))
    views = toys.images.view(25, 4, 2, 32, 32)
    for i in range(4):
        for j in range(i):
            assert (views[:, i] != views[:, j]).flatten(1).any(dim=1).all()


def test_what_is_nearer_lies_further_right_in_the_left_eye():
    # The near end of a car that points at the camera, against its far end: disparity has opposite signs.
    cars = load("toynorb", "test", elevations=(0,), azimuths=(0,), lightings=(2,)).subset(torch.arange(20, 25))
    ink = (cars.images.int() - _background(cars.images).int()[:, None, None, None]).abs() > 2
    columns = torch.arange(96.0)
    for picture in ink.float():
        rows = picture[0].any(dim=1).nonzero()[:, 0]
        near, far = int(rows[-1]) - 3, int(rows[0]) + 3
        centre = (picture * columns).sum(dim=2) / picture.sum(dim=2)  # [eye, row]
        assert centre[0, near] - centre[1, near] > 0.5 > centre[0, far] - centre[1, far]


def test_near_solids_hide_far_ones_in_whatever_order_they_come():
    toy = build_toy("truck", 1)
    backwards = Toy(toy.kinds[::-1], *(values.flip(0) for values in (toy.frames, toy.centres, toy.greys)))
    view = (torch.tensor([1, 6]), torch.tensor([4, 22]), torch.tensor([2]), 64, torch.device("cpu"))
    assert torch.equal(_render(toy, *view), _render(backwards, *view))


def test_the_same_pictures_every_time():
    assert torch.equal(load("toynorb", "test", **FEW).images, load("toynorb", "test", **FEW).images)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"azimuths": (1,)}, "azimuths: expected some of"),
        ({"elevations": (9,)}, "elevations: expected some of"),
        ({"lightings": ()}, "lightings: expected some of"),
        ({"size": 0}, "size: expected 1 pixel or more"),
    ],
)
def test_what_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        load("toynorb", "test", **FEW | options)


def test_categories_are_smallnorb_s():
    assert TOYS == ("animal", "human", "plane", "truck", "car")


@pytest.mark.gpu
def test_cpu_and_gpu_render_the_same():
    here, there = (load("toynorb", "test", **FEW | {"size": 96}, device=device) for device in ("cpu", "cuda"))
    difference = (here.images.int() - there.images.cpu().int()).abs()
    # Rounding decides a pixel on an edge one way or the other; everything else agrees to a grey level.
    assert float((difference > 1).float().mean()) < 1e-4


def test_low_and_high_elevations_share_no_view_and_make_up_the_whole():
    few = {key: value for key, value in FEW.items() if key != "elevations"} | {"size": 4}
    found = {name: load(name, "test", **few) for name in ("toynorb", "toynorb_low", "toynorb_high")}
    seen, unseen = (set(found[name].metadata["elevation"].tolist()) for name in ("toynorb_low", "toynorb_high"))
    assert seen == {0, 1, 2}
    assert unseen == {3, 4, 5, 6, 7, 8}
    assert len(found["toynorb"]) == len(found["toynorb_low"]) + len(found["toynorb_high"])
