import pytest
import torch

from capsroute.data.generated.toys.shapes import CATEGORIES, build_toy
from capsroute.data.generated.toys.solids import BOX, CYLINDER


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
