"""Pose changes against loops, and multidimensional scaling where the right picture is known."""

import math

import pytest
import torch

from capsroute.analysis import draw_pose_change, pose_change, pose_trajectory, viewpoint_sequences
from capsroute.analysis.poses import plane
from capsroute.data import ImageSet
from tests.analysis.small import images, lookup, small


def pixels(*rows):
    """Images of one pixel that say which row of a table to answer with."""
    return torch.tensor(rows, dtype=torch.float32)[..., None, None, None]


def test_change_of_each_vector_of_the_capsule_that_the_first_image_activates():
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(6, 3, 2, 4, generator=generator)  # [row, class, vector, number]
    scores = torch.rand(6, 3, generator=generator)
    result = pose_change(lookup(scores, poses), pixels([0, 1, 2], [3, 4, 5]))
    for sequence, rows in enumerate(([0, 1, 2], [3, 4, 5])):
        name = int(scores[rows[0]].argmax())
        assert int(result.classes[sequence]) == name
        for vector in range(2):
            first = poses[rows[0], name, vector]
            for step, row in enumerate(rows):
                now = poses[row, name, vector]
                distance = float((now - first).norm() / first.norm())
                assert float(result.distance[sequence, vector, step]) == pytest.approx(distance, rel=1e-5)
                assert float(result.norm[sequence, vector, step]) == pytest.approx(float(now.norm() / first.norm()))
                cosine = float(now @ first / (now.norm() * first.norm()))
                assert float(result.cosine[sequence, vector, step]) == pytest.approx(cosine, abs=1e-6)


def test_a_turning_vector_goes_away_and_comes_back():
    angles = torch.arange(8) * 2 * math.pi / 8
    poses = torch.stack([angles.cos(), angles.sin()], 1)[:, None, None]  # [8, 1, 1, 2]
    result = pose_change(lookup(torch.ones(8, 1), poses), pixels(list(range(8))), angles)
    torch.testing.assert_close(result.norm, torch.ones(1, 1, 8, dtype=torch.float64))
    torch.testing.assert_close(result.cosine[0, 0], angles.double().cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(result.distance[0, 0], 2 * (angles.double() / 2).sin().abs(), atol=1e-6, rtol=0)


def test_scaling_keeps_all_distances_where_the_plane_has_room_for_them():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q[:2]
    points, stress = plane(flat @ turned + 3.0)
    assert stress < 1e-5
    torch.testing.assert_close(
        torch.cdist(points.double(), points.double()), torch.cdist(flat, flat), atol=1e-4, rtol=0
    )


def test_scaling_finds_less_stress_than_projection():
    vectors = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, stress = plane(vectors)
    wanted = torch.cdist(vectors, vectors)
    left, values, _ = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    projected = (left * values)[:, :2]
    projection = float(((torch.cdist(projected, projected) - wanted).square().sum() / wanted.square().sum()).sqrt())
    assert stress < projection


def test_trajectory_has_a_point_for_every_vector_of_every_image():
    poses = torch.randn(5, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    result = pose_trajectory(lookup(torch.tensor([[0.0, 1.0]] * 5), poses), pixels(*range(5)))
    assert result.points.shape == (5, 3, 2)
    torch.testing.assert_close(result.poses, poses[:, 1])
    assert 0 < result.stress < 1


def toys(missing: int = 0) -> ImageSet:
    facts = [(c, i, e, a, l) for c in (0, 1) for i in (3, 5) for e in (0, 1, 2) for a in (0, 2) for l in (0, 4)]
    facts = facts[missing:]
    order = torch.randperm(len(facts), generator=torch.Generator().manual_seed(0))
    columns = torch.tensor(facts)[order].unbind(1)
    names = ("category", "instance", "elevation", "azimuth", "lighting")
    images = torch.zeros(len(facts), 1, 1, 1, dtype=torch.uint8)
    return ImageSet(images, columns[0], ("a", "b"), metadata=dict(zip(names, columns)))


@pytest.mark.parametrize(("by", "amounts"), [("elevation", [0, 1, 2]), ("azimuth", [0, 2])])
@pytest.mark.parametrize("fixed", [{}, {"lighting": 4}, {"lighting": 0, "category": 1}])
def test_a_sequence_differs_only_in_what_varies(by, amounts, fixed):
    data = toys()
    rows, given = viewpoint_sequences(data, by, **fixed)
    assert given.tolist() == amounts
    matching = [r for r in range(len(data)) if all(int(data.metadata[k][r]) == v for k, v in fixed.items())]
    assert sorted(rows.flatten().tolist()) == matching
    for sequence in rows:
        for name, values in data.metadata.items():
            found = values[sequence].tolist()
            assert found == amounts if name == by else len(set(found)) == 1


def test_missing_views_and_facts_are_errors():
    with pytest.raises(ValueError, match="some are missing"):
        viewpoint_sequences(toys(missing=1), "elevation")
    plain = ImageSet(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.tensor([0]), ("a",))
    with pytest.raises(ValueError, match="data: expected the metadata category"):
        viewpoint_sequences(plain)
    with pytest.raises(ValueError, match="by: expected one of"):
        viewpoint_sequences(toys(), "colour")


def test_a_model_without_capsules_says_so():
    with pytest.raises(ValueError, match="gives no poses"):
        pose_change(lookup(torch.ones(2, 1)), pixels([0, 1]))


@pytest.mark.parametrize(("seen", "shaded"), [(None, False), ([0, 1], True), ([0, 1, 2, 3, 4], False)])
def test_amounts_seen_in_training_are_shaded_where_others_are_not(seen, shaded):
    change = pose_change(small(), images(15).unflatten(0, (3, 5)))
    axes = draw_pose_change(change, "elevation", None if seen is None else torch.tensor(seen)).axes
    spans = [one.get_x() + one.get_width() for axis in axes for one in axis.patches]
    assert spans == ([1.0] * len(axes) if shaded else [])
