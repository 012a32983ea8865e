"""Efficient-CapsNet: few capsules, exponential squash, the map of each paper's images."""

import pytest
import torch

import capsroute as cr


@pytest.mark.parametrize(
    ("name", "kernel", "children"), [("mnist", (9, 9), 16), ("smallnorb", (8, 8), 16), ("multimnist", (5, 5), 16)]
)
def test_the_depthwise_convolution_sees_what_the_paper_says(name, kernel, children):
    model = cr.create_model(f"efficient_capsnet_{name}")
    assert model.primary.kernel_size == kernel
    assert model.primary.groups == 128
    assert model.class_capsules.num_children == children


def test_primary_and_class_capsules_are_exponentially_squashed():
    torch.manual_seed(0)
    model = cr.create_model("efficient_capsnet_mnist").eval()
    seen = []
    model.class_capsules.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    features = model.forward_features(torch.rand(2, 1, 28, 28))
    output = model.forward_head(features, return_coefficients=True)
    poses = model.primary(features).unflatten(1, (16, 8)).flatten(2)
    torch.testing.assert_close(seen[0].flatten(2), cr.exponential_squash(poses))
    votes = cr.LinearVotes(seen[0].flatten(2).unsqueeze(2), model.class_capsules.W)
    expected = cr.self_attention_routing(votes, model.class_capsules.routing.prior)
    torch.testing.assert_close(output.poses, expected.poses)
    torch.testing.assert_close(output.scores, expected.poses.flatten(2).norm(dim=2))
    assert (model.score_kind, model.default_loss) == ("length", "margin")


def test_what_it_is_not_is_refused_by_name():
    with pytest.raises(ValueError, match=r"norm: expected one of .*, got 'layer'"):
        cr.models.EfficientCapsNet(norm="layer")
    with pytest.raises(ValueError, match="primary_pose: expected a divisor of 128 channels, got 7"):
        cr.models.EfficientCapsNet(primary_pose=7)
