"""Heinsen routing with children and parents, each fixed or free."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import HeinsenRouting
from tests.layers.filled import filled, numbers


@pytest.mark.parametrize("children", [None, 7])
def test_it_is_the_routing_function_on_its_parameters(children):
    layer = filled(HeinsenRouting(children, 3, (2, 4), (2, 5), iterations=2, eps=1e-4))
    poses, scores = numbers(2, 7, 2, 4), numbers(2, 7)
    votes = cr.LinearVotes(poses, layer.W, layer.bias)
    expected = cr.heinsen_routing(votes, scores, layer.routing.beta_use, layer.routing.beta_ignore, 2, 1e-4)
    routed = layer(poses, scores, return_coefficients=True)
    for given, wanted in zip(routed, expected):
        torch.testing.assert_close(given, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("children", [None, 7])
@pytest.mark.parametrize("parents", [1, 2, 6])
def test_a_free_number_of_parents_is_spread_by_a_learned_factor(parents, children):
    layer = filled(HeinsenRouting(children, None, (2, 4), (2, 5)))
    poses = numbers(2, 7, 2, 4)
    votes = layer.votes(poses, parents).dense()
    for i in range(7):
        own = 0 if children is None else i
        shared = poses[:, i] @ layer.W[own, 0] + layer.bias[own, 0]
        for j in range(parents):
            along = -1 + 2 * j / (parents - 1) if parents > 1 else -1
            torch.testing.assert_close(votes[:, i, j], shared + along * layer.spread[0], rtol=1e-10, atol=1e-11)
    routed = layer(poses, numbers(2, 7), parents=parents)
    assert routed.poses.shape == (2, parents, 2, 5)
    assert routed.scores.shape == (2, parents)


def test_fresh_the_spread_is_zero_and_learns():
    torch.manual_seed(0)
    layer = HeinsenRouting(None, None, (2, 4), (2, 5))
    assert not layer.spread.any()
    poses = layer(torch.randn(2, 7, 2, 4), parents=3).poses
    assert torch.equal(poses[:, 0], poses[:, 2])
    (poses * torch.randn(3, 1, 1)).sum().backward()
    assert layer.spread.grad.abs().min() > 0


def test_weights_of_the_first_version_keep_their_constant_spread():
    layer = HeinsenRouting(None, None, 4, 4)
    old = {name: value for name, value in layer.state_dict().items() if name != "spread"}
    layer.load_state_dict(old)
    assert torch.equal(layer.spread, torch.ones(1, 1, 4))


def test_free_parents_ask_for_their_number():
    with pytest.raises(ValueError, match="parents: this layer has a free number of parents"):
        HeinsenRouting(None, None, 4, 4)(torch.zeros(1, 5, 1, 4))


def test_fixed_parents_take_no_other_number():
    layer = HeinsenRouting(None, 3, 4, 4)
    assert layer(torch.zeros(1, 5, 1, 4), parents=3).poses.shape[1] == 3
    with pytest.raises(ValueError, match="parents: this layer has 3 parents in every call, got 4"):
        layer(torch.zeros(1, 5, 1, 4), parents=4)


def test_soft_k_means_is_that_of_the_function():
    layer = filled(HeinsenRouting(None, 3, 4, 4, soft_k_means=True))
    poses, scores = numbers(2, 7, 1, 4), numbers(2, 7)
    betas = layer.routing.beta_use, layer.routing.beta_ignore
    expected = cr.heinsen_routing(layer.votes(poses), scores, *betas, soft_k_means=True)
    assert torch.equal(layer(poses, scores).scores, expected.scores)
    assert not torch.allclose(expected.scores, cr.heinsen_routing(layer.votes(poses), scores, *betas).scores)


def test_a_single_beta_is_one_parameter():
    layer = HeinsenRouting(None, 3, 4, 4, single_beta=True)
    assert layer.routing.beta_use is layer.routing.beta_ignore
    assert sum(p.numel() for p in layer.routing.parameters()) == 3


def test_fresh_it_is_that_of_the_paper():
    torch.manual_seed(0)
    layer = HeinsenRouting(50, 40, 8, 8)
    assert layer.W.std().item() == pytest.approx(1 / 8, rel=0.01)
    assert layer.bias.abs().max() == layer.routing.beta_use.abs().max() == layer.routing.beta_ignore.abs().max() == 0


@pytest.mark.parametrize("name", ["children", "parents"])
@pytest.mark.parametrize("bad", [0, -1, 2.0])
def test_numbers_of_capsules_that_are_none_are_refused_by_name(name, bad):
    counts = {"children": 5, "parents": 3} | {name: bad}
    with pytest.raises(ValueError, match=f"{name}: expected a whole number >= 1, got {bad!r}"):
        HeinsenRouting(**counts, in_pose=4, out_pose=4)
