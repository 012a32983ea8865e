"""Whole capsules are left out while training, and absent where the routing knows absence."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleDropout


@pytest.mark.parametrize("shape", [(64, 50, 2, 3), (8, 10, 2, 3, 5, 5)])
def test_whole_capsules_go_and_the_sum_stays(shape):
    torch.manual_seed(0)
    poses, scores = CapsuleDropout(0.25)(torch.ones(shape))
    assert scores is None
    kept = poses[:, :, 0, 0] != 0
    assert torch.equal(poses, kept[:, :, None, None].expand_as(poses) / 0.75)
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(("kind", "never", "always"), [("logit", -torch.inf, torch.inf), ("probability", 0.0, 1.0)])
def test_who_is_left_out_is_absent_where_the_routing_knows_absence(kind, never, always):
    torch.manual_seed(0)
    poses, scores = CapsuleDropout(0.5, kind)(torch.ones(2, 6, 1, 4))
    gone = poses[:, :, 0, 0] == 0
    assert gone.any()
    assert (scores[gone] == never).all()
    assert (scores[~gone] == always).all()
    assert (poses[~gone] == 1).all()
    own = torch.full((2, 6), 0.3)
    given = CapsuleDropout(0.5, kind)(torch.ones(2, 6, 1, 4), own).scores
    assert set(given.unique().tolist()) == {never, own[0, 0].item()}


def test_nothing_goes_in_evaluation():
    poses = torch.randn(2, 6, 1, 4)
    assert CapsuleDropout(0.5).eval()(poses).poses is poses
    with pytest.raises(ValueError, match="p: expected a number in"):
        CapsuleDropout(1.0)


def test_a_model_drops_primary_capsules_while_it_trains():
    torch.manual_seed(0)
    options = {"image_size": 16, "num_classes": 3, "convolutions": [(4, 3, 2)], "primary_capsules": 4}
    model = cr.models.ConvCapsNet(**options, dropout=0.5)
    images = torch.rand(2, 3, 16, 16)
    assert not torch.equal(model.train()(images).scores, model(images).scores)
    assert torch.equal(model.eval()(images).scores, model(images).scores)


def test_a_model_with_a_pose_for_each_layer():
    options = {"image_size": 16, "num_classes": 3, "convolutions": [(4, 3, 2)], "primary_capsules": 4, "hidden": [5]}
    model = cr.models.ConvCapsNet(**options, poses=[(4, 6), 10], class_pose=7)
    poses = [tuple(layer.W.shape[2:]) for layer in model.routed_layers().values()]
    assert poses == [(4, 6), (24, 10), (10, 7)]
    assert model(torch.rand(2, 3, 16, 16)).poses.shape == (2, 3, 1, 7)
    again = cr.models.ConvCapsNet(**model.config)
    again.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="poses: expected one for each of 1 convolutional and 1 fully"):
        cr.models.ConvCapsNet(**options, poses=[4])
