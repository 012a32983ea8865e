"""Routers with betas: their shapes, and one beta for two."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import EMRouter, HeinsenRouter
from tests.layers.filled import filled, numbers


@pytest.mark.parametrize("children", [6, None])
def test_betas_are_one_a_child_and_parent_or_one_a_parent(children):
    heinsen, em = HeinsenRouter(), EMRouter()
    for router in (heinsen, em):
        router.build(children, 3)
    assert heinsen.beta_use.shape == heinsen.beta_ignore.shape == (children or 1, 3)
    assert em.beta_use.shape == em.beta_activate.shape == (3,)


def test_a_single_beta_stands_for_both():
    single, double = HeinsenRouter(single_beta=True), HeinsenRouter()
    for router in (single, double):
        router.build(6, 3)
    filled(single)
    double.double().load_state_dict(single.state_dict())
    votes, scores = cr.LinearVotes(numbers(2, 6, 2, 4), numbers(6, 3, 4, 5)), numbers(2, 6)
    assert len(list(single.parameters())) == 1
    torch.testing.assert_close(single(votes, scores).scores, double(votes, scores).scores)


@pytest.mark.parametrize("assign", [False, True])
def test_a_single_beta_learns_as_one_where_it_was_made_without_memory(assign):
    """torch gives each name a parameter of its own there."""
    options = (6, 3, 4, 4, {"name": "heinsen", "single_beta": True})
    layer = filled(cr.layers.CapsuleLinear(*options))
    with torch.device("meta"):
        again = cr.layers.CapsuleLinear(*options).double()
    if not assign:
        again.to_empty(device="cpu")
    # As a file has them: a tensor for each name, where a copy of the dictionary would keep one for both.
    read = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    again.load_state_dict(read, assign=assign)
    for one in (layer, again):
        optimiser = torch.optim.SGD(one.parameters(), 0.1)
        for _ in range(2):
            optimiser.zero_grad()
            one(numbers(2, 6, 1, 4), numbers(2, 6)).scores.square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(again.routing.beta_use, layer.routing.beta_use)
    torch.testing.assert_close(again(numbers(2, 6, 1, 4)).scores, layer(numbers(2, 6, 1, 4)).scores)


def test_batch_norms_without_statistics_norm_the_batch():
    """As `torch.func.replace_all_batch_norm_modules_` leaves them, for gradients sample by sample."""
    layer = filled(cr.layers.CapsuleLinear(6, 3, 4, 4, routing="vb")).train()
    expected = layer(numbers(2, 6, 1, 4))
    torch.func.replace_all_batch_norm_modules_(layer)
    for training in (True, False):
        again = layer.train(training)(numbers(2, 6, 1, 4))
        assert torch.equal(again.poses, expected.poses)
        assert torch.equal(again.scores, expected.scores)


@pytest.mark.parametrize(("children", "changes"), [(None, True), (6, False)])
def test_only_shared_betas_are_relative(children, changes):
    plain, relative = HeinsenRouter(), HeinsenRouter(relative=True)
    for router in (plain, relative):
        router.build(children, 3)
        filled(router)
    votes, scores = cr.LinearVotes(numbers(2, 6, 2, 4), numbers(6, 3, 4, 5)), numbers(2, 6)
    same = torch.equal(plain(votes, scores).scores, relative(votes, scores).scores)
    assert same != changes


def test_layers_floor_the_variance_higher_than_the_function():
    router = EMRouter()
    router.build(6, 3)
    same = cr.DenseVotes(numbers(1, 1, 3, 1, 4).expand(2, 6, -1, -1, -1))
    assert router.double()(same).variances.min().item() == pytest.approx(1e-4)
