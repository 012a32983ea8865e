"""Self-routing on a residual network: its class layer is the function's own scores."""

import torch

import capsroute as cr
from capsroute.models.hahn import ClassShares
from tests.models.inputs import inputs, settled, small


def filled(children=6, classes=3, features=4):
    layer = ClassShares(children, classes, features).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return layer


def test_class_shares_are_the_activations_of_self_routing():
    layer, poses = filled(), torch.randn(2, 6, 4, dtype=torch.float64)
    activations = torch.rand(2, 6, dtype=torch.float64)
    logits = torch.einsum("bik,ijk->bij", poses, layer.w) + layer.b
    votes = cr.DenseVotes(torch.zeros(2, 6, 3, 1, 1, dtype=torch.float64))
    expected = cr.self_routing(votes, activations, logits)
    shares, r = layer(poses, activations)
    torch.testing.assert_close(shares, expected.scores, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(r, expected.coefficients, rtol=1e-12, atol=1e-12)


def test_no_active_child_makes_all_classes_alike_and_gives_no_nan():
    layer = filled()
    activations = torch.zeros(2, 6, dtype=torch.float64, requires_grad=True)
    shares, _ = layer(torch.randn(2, 6, 4, dtype=torch.float64), activations)
    assert (shares == 1 / 3).all() or torch.allclose(shares, torch.full_like(shares, 1 / 3))
    assert torch.autograd.grad(shares[:, 0].sum(), activations)[0].isfinite().all()


def test_scores_are_log_activations():
    for name in ("self_routing_resnet20", "self_routing_resnet20_two"):
        model = settled(small(name))
        scores = model(inputs(model)).scores
        torch.testing.assert_close(scores.exp().sum(1), torch.ones(3))


def test_the_body_is_that_of_the_pooled_resnet():
    body = sum(p.numel() for p in cr.create_model("self_routing_resnet20").features.parameters())
    assert body == 269_072
    assert cr.models.summarise("zhao_huang_resnet20").parameters == body + 650
