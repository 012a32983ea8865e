"""Primary capsules: channels become poses, nothing else moves."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleDropout, PrimaryCapsules
from capsroute.routing import lengths
from tests.layers.filled import filled, indices, numbers


def identity(primary: PrimaryCapsules) -> PrimaryCapsules:
    """Make the 1x1 convolution pass every channel on as it is."""
    primary.double()
    with torch.no_grad():
        primary.poses.weight.copy_(torch.eye(primary.poses.out_channels)[:, :, None, None])
        primary.poses.bias.zero_()
    return primary


def test_channels_become_capsule_row_and_column_in_this_order():
    features = indices(2, 2 * 3 * 4, 5, 6)
    poses = identity(PrimaryCapsules(24, 2, (3, 4), activation=None))(features).poses
    assert poses.shape == (2, 2, 3, 4, 5, 6)
    for n, a, k in [(0, 0, 0), (1, 2, 3), (0, 2, 1), (1, 0, 2)]:
        assert torch.equal(poses[:, n, a, k], features[:, (n * 3 + a) * 4 + k])


def test_squash_takes_the_length_of_one_capsule_at_one_position():
    features = numbers(2, 12, 3, 4)
    poses = identity(PrimaryCapsules(12, 3, 4, activation="squash"))(features).poses
    raw = features[1, 4:8, 2, 3]
    torch.testing.assert_close(poses[1, 1, 0, :, 2, 3], raw * raw.norm() / (1 + raw.norm() ** 2))
    assert lengths(poses.permute(0, 1, 4, 5, 2, 3)).max() < 1


@pytest.mark.parametrize("activation", ["layer_norm", "affine_layer_norm"])
def test_layer_norm_is_over_one_capsule_at_one_position(activation):
    features = numbers(2, 12, 3, 5)
    poses = identity(PrimaryCapsules(12, 3, (2, 2), activation=activation))(features).poses
    raw = features[1, 4:8, 2, 3]
    whitened = (raw - raw.mean()) / (raw.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(poses[1, 1, :, :, 2, 3].flatten(), whitened, rtol=1e-10, atol=1e-10)


def test_layer_norm_reads_poses_as_a_convolution_with_channels_last_leaves_them():
    """In any other order they are copied before each norm, and their gradient behind it."""
    primary = PrimaryCapsules(6, 3, (2, 2), activation="affine_layer_norm").to(memory_format=torch.channels_last)
    seen = []
    primary.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0].is_contiguous()))
    poses, _ = primary(torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last))
    assert seen == [True]
    assert poses.shape == (2, 3, 2, 2, 4, 5)


@pytest.mark.parametrize("kind", ["logit", "probability"])
def test_scores_are_one_a_capsule_and_of_the_kind_asked_for(kind):
    primary = filled(PrimaryCapsules(6, 3, (2, 2), kernel_size=3, stride=2, activation=None, scores=kind))
    capsules = primary(numbers(2, 6, 7, 9))
    assert capsules.scores.shape == (2, 3, 3, 4)
    logits = primary.scores(numbers(2, 6, 7, 9))
    assert torch.equal(capsules.scores, logits.sigmoid() if kind == "probability" else logits)


def test_a_bias_can_be_left_out():
    assert PrimaryCapsules(6, 3, 4, bias=False).poses.bias is None


@pytest.mark.parametrize(("options", "message"), [({"activation": "relu"}, "activation"), ({"scores": "x"}, "scores")])
def test_unknown_options_are_named(options, message):
    with pytest.raises(ValueError, match=f"{message}: expected"):
        PrimaryCapsules(6, 3, 4, **options)


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


@pytest.mark.parametrize("shape", [(2, 6, 4), (3, 2, 6, 1, 4), (6, 2, 4, 5, 5)])
def test_dropout_of_other_axes_than_those_of_capsules_is_refused(shape):
    with pytest.raises(ValueError, match=r"poses: expected \[b,i,a,k\] or a map \[b,n,a,k,h,w\], got shape"):
        CapsuleDropout(0.5)(torch.ones(shape))


@pytest.mark.parametrize("name", ["in_channels", "capsules", "kernel_size", "stride", "padding"])
@pytest.mark.parametrize("bad", ["3", 2.5, -1, None])
def test_sizes_of_primary_capsules_that_are_none_are_refused_by_name(name, bad):
    options = {"in_channels": 8, "capsules": 2, "pose": 4, "kernel_size": 3} | {name: bad}
    with pytest.raises(ValueError, match=f"{name}: expected a whole number >= [01], got {bad!r}"):
        PrimaryCapsules(**options)


def test_a_window_of_primary_capsules_may_have_two_sides():
    primary = PrimaryCapsules(8, 2, 4, kernel_size=(3, 1), stride=(2, 1), padding=(0, 1))
    assert primary(torch.rand(1, 8, 7, 5)).poses.shape == (1, 2, 1, 4, 3, 7)


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        (torch.zeros(2, 4, 8, 8).double(), "features: expected torch.float32 on cpu, as .*, got torch.float64"),
        (torch.zeros(2, 4, 8, 8, dtype=torch.uint8), "features: expected torch.float32 on cpu, as .*, got torch.uint8"),
        (torch.zeros(2, 5, 8, 8), r"features: expected \[...,4,h,w\], got \[2, 5, 8, 8\]"),
        (torch.zeros(8, 8), r"features: expected \[...,4,h,w\], got \[8, 8\]"),
        (torch.zeros(2, 4, 6, 8), "features: expected a map of at least 7 x 3 positions, got 6 x 8"),
        (torch.zeros(2, 4, 8, 2), "features: expected a map of at least 7 x 3 positions, got 8 x 2"),
    ],
)
def test_features_that_do_not_fit_are_named(features, complaint):
    with pytest.raises(ValueError, match=complaint):
        PrimaryCapsules(4, 2, 8, kernel_size=(9, 3), padding=(1, 0))(features)


def test_a_map_as_large_as_the_kernel_is_large_enough():
    primary = PrimaryCapsules(4, 2, 8, kernel_size=(9, 3), padding=(1, 0))
    assert primary(torch.zeros(2, 4, 7, 3)).poses.shape == (2, 2, 1, 8, 1, 1)


def test_a_convolution_in_place_of_ours_says_itself_what_it_needs():
    primary = PrimaryCapsules(4, 2, 8, kernel_size=9)
    primary.poses = torch.nn.Conv2d(4, 16, 9, padding="same")
    assert primary(torch.zeros(2, 4, 6, 6)).poses.shape == (2, 2, 1, 8, 6, 6)
