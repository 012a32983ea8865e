import pytest
import torch

from capsroute.data.generated.toy_shapes import BALL, BOX, CATEGORIES, CYLINDER, FAR, MEET, build_toy


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
