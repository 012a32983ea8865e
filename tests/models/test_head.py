"""Routing on top of any backbone."""

import pytest
import torch
from torch import nn

import capsroute as cr
from tests.layers.filled import ROUTINGS

TOKENS = torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(0))


def head_of(**options):
    torch.manual_seed(0)
    head = cr.models.RoutingHead(8, 3, **{"capsules": 2, "pose": (2, 2), **options})
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "beta" in name:
                parameter.normal_()
    return head


@pytest.mark.parametrize("parts", [None, 5])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_but_one_runs_on_maps_and_on_tokens(routing, parts):
    if routing == "fast":
        with pytest.raises(ValueError, match="the number of children must be fixed"):
            head_of(routing=routing, parts=parts)
        return
    head = head_of(routing=routing, parts=parts)
    as_map = TOKENS.mT.unflatten(2, (4, 5))
    from_map, from_tokens = head(as_map, return_coefficients=True), head(TOKENS)
    torch.testing.assert_close(from_map.scores, from_tokens.scores)
    assert from_map.scores.shape == (2, 3)
    assert from_map.coefficients["capsules.layers.0"].shape == (2, 40, 5 if parts else 3)
    from_map.scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name not in ("pooling", "fast")])
def test_padding_changes_nothing(routing):
    head = head_of(routing=routing)
    mask = torch.tensor([[1] * 13 + [0] * 7] * 2)
    torch.testing.assert_close(head(TOKENS, mask).scores, head(TOKENS[:, :13]).scores, rtol=1e-4, atol=1e-5)


def test_it_goes_on_a_backbone_of_ones_own():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), head_of())
    for size in (9, 16):
        assert model(torch.rand(2, 3, size, size)).scores.shape == (2, 3)


def test_features_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"features: expected \[b,8,h,w\] or \[b,n,8\], got \[2, 7, 4, 4\]"):
        head_of()(torch.zeros(2, 7, 4, 4))
