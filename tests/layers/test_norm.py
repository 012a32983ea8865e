"""LayerNorm over the whole pose."""

import torch

from capsroute.layers import PoseLayerNorm
from capsroute.routing import pose_layer_norm
from tests.layers.filled import filled, numbers


def test_fresh_it_is_the_plain_layer_norm():
    poses = numbers(2, 3, 4, 5)
    assert torch.equal(PoseLayerNorm(4, 5).double()(poses), pose_layer_norm(poses))


def test_scale_and_shift_belong_to_numbers_of_the_pose():
    norm, poses = filled(PoseLayerNorm(2, 3)), numbers(4, 5, 2, 3)
    pose = poses[1, 2]
    whitened = (pose - pose.mean()) / (pose.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(norm(poses)[1, 2], whitened * norm.weight + norm.bias, rtol=1e-12, atol=1e-12)
