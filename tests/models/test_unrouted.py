"""Networks without routing: equal coefficients, transforms shared over positions, element-wise transforms."""

import torch

import capsroute as cr
from capsroute.models.unrouted import ElementwiseCapsules


def test_affcapsnet_has_one_transform_for_each_kind_and_equal_coefficients():
    model = cr.create_model("affcapsnet", image_size=28, decoder=None)
    assert model.class_capsules.W.shape == (32, 10, 8, 16)
    coefficients = model(torch.rand(2, 1, 28, 28), return_coefficients=True).coefficients["class_capsules"]
    assert coefficients.shape == (2, 32 * 36, 10)
    assert (coefficients == coefficients.new_tensor(0.1)).all()


def test_element_wise_capsules_are_linear_votes_with_diagonal_transforms():
    layer = ElementwiseCapsules(5, 3, 4).double()
    poses = torch.randn(2, 5, 4, dtype=torch.float64)
    votes = cr.LinearVotes(poses.unsqueeze(2), torch.diag_embed(layer.W.detach()))
    expected = votes.aggregate(torch.ones(2, 5, 3, dtype=torch.float64)).squeeze(2)
    torch.testing.assert_close(layer(poses), expected)


def test_hvc_adds_up_its_branches_with_learned_weights():
    model = cr.create_model("hvc", image_size=12, num_classes=3, channels=(4, 6), branches=(1, 2)).eval()
    images = torch.rand(2, 1, 12, 12)
    both = model(images).scores
    parts = []
    for branch in range(2):
        with torch.no_grad():
            model.classifier.weights.copy_(torch.eye(2)[branch])
        parts.append(model(images).scores)
    torch.testing.assert_close(parts[0] + parts[1], both)
    assert parts[0].abs().sum() > 0
