"""Routing as global pooling."""

import itertools

import pytest
import torch
from torch import nn

from capsroute.layers import RoutingPool2d, replace_pooling
from tests.layers.filled import indices, numbers
from tests.routing import oracles


@pytest.mark.parametrize("iterations", [1, 3])
def test_groups_of_channels_are_pooled_over_positions(iterations):
    features = numbers(2, 6, 3, 4)
    pool = RoutingPool2d(capsule_size=3, sharpness=2.0, iterations=iterations)
    pooled, coupling = pool(features, return_coefficients=True)
    assert pooled.shape == (2, 6, 1, 1)
    assert coupling.shape == (2, 2, 3, 4)
    for b, group in itertools.product(range(2), range(2)):
        capsules = [features[b, 3 * group : 3 * group + 3, y, x] for y in range(3) for x in range(4)]
        V = torch.stack(capsules)[None, :, None, None].numpy()
        expected = oracles.pooling(V, iterations=iterations, sharpness=2.0)
        torch.testing.assert_close(
            pooled[b, 3 * group : 3 * group + 3, 0, 0].numpy(), expected.poses.ravel(), rtol=1e-9, atol=1e-10
        )
        torch.testing.assert_close(
            coupling[b, group].flatten().numpy(), expected.coefficients.ravel(), rtol=1e-9, atol=1e-10
        )


def test_patches_of_a_channel_are_pooled_over_patches():
    features = numbers(2, 3, 4, 6)
    pooled, coupling = RoutingPool2d(2, sharpness=3.0, grouping="spatial")(features, return_coefficients=True)
    assert coupling.shape == (2, 3, 2, 3)
    patches = [features[1, 2, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].flatten() for y in range(2) for x in range(3)]
    expected = oracles.pooling(torch.stack(patches)[None, :, None, None].numpy(), sharpness=3.0)
    assert pooled[1, 2, 0, 0].item() == pytest.approx(expected.poses.mean(), rel=1e-9)
    torch.testing.assert_close(coupling[1, 2].flatten().numpy(), expected.coefficients.ravel(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("grouping", ["channels", "spatial"])
def test_without_sharpness_it_is_average_pooling(grouping):
    features = indices(2, 4, 4, 6)
    pooled = RoutingPool2d(2, sharpness=0.0, grouping=grouping)(features)
    torch.testing.assert_close(pooled, nn.AdaptiveAvgPool2d(1)(features), rtol=1e-12, atol=0)


@pytest.mark.parametrize("grouping", ["channels", "spatial"])
def test_an_empty_batch_has_a_gradient(grouping):
    features = numbers(0, 4, 4, 6).requires_grad_()
    RoutingPool2d(2, grouping=grouping)(features).sum().backward()
    assert features.grad.shape == features.shape


def test_asking_for_the_coupling_changes_nothing_else():
    pool, features = RoutingPool2d(4), numbers(2, 8, 5, 5)
    assert torch.equal(pool(features), pool(features, return_coefficients=True)[0])


def test_the_sharpest_pooling_picks_the_position_that_agrees_with_the_others():
    features = torch.zeros(1, 2, 1, 3, dtype=torch.float64)
    features[0, :, 0] = torch.tensor([[1.0, 2.0, 0.0], [0.1, 0.2, 5.0]])
    pooled = RoutingPool2d(2, sharpness=1000.0)(features).flatten()
    # The mean points mostly along the third, which is by far the longest.
    torch.testing.assert_close(pooled, features[0, :, 0, 2])


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"capsule_size": 3}, (1, 4, 2, 2), "channels divisible by capsule_size=3, got 4"),
        ({"capsule_size": 2, "grouping": "spatial"}, (1, 4, 3, 2), "divisible by 2, got 3 x 2"),
        ({"capsule_size": 2}, (2, 2), r"features: expected \[...,c,h,w\]"),
    ],
)
def test_features_that_do_not_fit_are_named(options, shape, message):
    with pytest.raises(ValueError, match=message):
        RoutingPool2d(**options)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "name"),
    [({"grouping": "x"}, "grouping"), *[({"capsule_size": bad}, "capsule_size") for bad in (0, 2.5, "16", True)]],
)
def test_unknown_options_are_named(options, name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        RoutingPool2d(**options)


def cnn() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d((1, 1)))
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(4), inner, nn.Flatten(), nn.Linear(8, 2))


def test_replace_pooling_turns_global_average_pooling_and_nothing_else():
    images = torch.rand(2, 3, 12, 12)
    plain, routed = cnn(), replace_pooling(cnn(), capsule_size=4, sharpness=0.0)
    assert isinstance(routed[2][1], RoutingPool2d)
    assert isinstance(routed[1], nn.AdaptiveAvgPool2d)
    torch.testing.assert_close(routed(images), plain(images))
    sharp = replace_pooling(cnn(), capsule_size=4, sharpness=9.0)
    assert not torch.allclose(sharp(images), plain(images))


def test_replace_pooling_finds_one_pooling_under_two_names():
    branches = nn.ModuleDict({"first": nn.AdaptiveAvgPool2d([1, 1])})
    branches["second"] = branches["first"]
    replace_pooling(branches.eval())
    assert all(isinstance(pool, RoutingPool2d) and not pool.training for pool in branches.values())


def test_replace_pooling_says_when_there_is_none():
    with pytest.raises(ValueError, match=r"expected at least one nn.AdaptiveAvgPool2d\(1\), found none"):
        replace_pooling(nn.Sequential(nn.Conv2d(3, 8, 3)))
