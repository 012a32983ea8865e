"""Routers by dot products: fast routing's coefficients and endings, pooling's squash."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import FastRouter, PoolingRouter
from tests.layers.filled import filled, numbers


@pytest.mark.parametrize("activation", ["squash", "layer_norm", None])
def test_fast_routing_ends_as_the_routing_that_it_replaces(activation):
    votes = cr.LinearVotes(numbers(2, 6, 2, 4), numbers(6, 3, 4, 5))
    router = FastRouter(activation=activation)
    router.build(6, 3)
    filled(router)
    total = torch.einsum("ij,bijao->bjao", router.coefficients, votes.dense())
    expected = {
        "squash": cr.squash(total, (2, 3)),
        "layer_norm": cr.routing.pose_layer_norm(total),
        None: total,
    }[activation]
    torch.testing.assert_close(router(votes).poses, expected, rtol=1e-10, atol=1e-11)


def test_learned_coefficients_are_parameters_and_start_uniform():
    learned, kept = FastRouter(learned=True), FastRouter()
    for router in (learned, kept):
        router.build(6, 4)
        assert torch.equal(router.coefficients, torch.full((6, 4), 0.25))
    assert [name for name, _ in learned.named_parameters()] == ["coefficients"]
    assert list(kept.parameters()) == []
    assert "coefficients" in kept.state_dict()


def test_fast_routing_needs_a_fixed_number_of_children():
    with pytest.raises(ValueError, match="the number of children must be fixed"):
        FastRouter().build(None, 3)


def test_squashed_pooling_is_pooling_and_then_squash():
    votes = cr.LinearVotes(numbers(2, 6, 2, 4), numbers(6, 3, 4, 5))
    plain, squashed = PoolingRouter(sharpness=3.0), PoolingRouter(sharpness=3.0, activation="squash")
    assert torch.equal(squashed(votes).poses, cr.squash(plain(votes).poses, (2, 3)))
    assert (plain.squashes, squashed.squashes) == (False, True)


@pytest.mark.parametrize("router", [FastRouter, PoolingRouter])
def test_an_unknown_activation_is_named(router):
    with pytest.raises(ValueError, match="activation: expected"):
        router(activation="relu")
