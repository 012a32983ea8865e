"""Poses as arguments, and maps of capsules as lists."""

import pytest
import torch

from capsroute.layers import flatten_positions, parse_pose
from tests.layers.filled import indices


def test_a_map_becomes_a_list_without_mixing_pose_and_position():
    poses, scores = indices(2, 3, 4, 5, 6, 7), indices(2, 3, 6, 7)
    flat = flatten_positions(poses, scores)
    assert flat.poses.shape == (2, 3 * 6 * 7, 4, 5)
    for n, y, x in [(0, 0, 0), (2, 5, 6), (1, 3, 2)]:
        child = (n * 6 + y) * 7 + x
        assert torch.equal(flat.poses[:, child], poses[:, n, :, :, y, x])
        assert torch.equal(flat.scores[:, child], scores[:, n, y, x])


def test_a_list_passes_through():
    poses, scores = indices(2, 3, 4, 5), indices(2, 3)
    flat = flatten_positions(poses, scores)
    assert flat.poses is poses
    assert flat.scores is scores


@pytest.mark.parametrize("pose", [0, -1, (0, 4), (4, 0)])
def test_a_pose_without_numbers_is_an_error(pose):
    with pytest.raises(ValueError, match="in_pose: expected positive sizes"):
        parse_pose("in_pose", pose)


def test_a_list_from_json_is_a_pose():
    assert parse_pose("pose", [4, 4]) == (4, 4)
