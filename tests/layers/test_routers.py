"""Routers: made from plain data and back, with the options of their papers."""

import json

import pytest
import torch

import capsroute as cr
from capsroute.layers import (
    DynamicRouter,
    FastRouter,
    InvertedAttentionRouter,
    PoolingRouter,
    Router,
    list_routings,
    make_router,
)
from tests.layers.filled import ROUTINGS, filled, numbers

OPTIONS = [
    {"name": "dynamic", "iterations": 5, "stop_gradient": True},
    {"name": "max_min", "iterations": 2, "lower": 0.1, "upper": 0.9, "stop_gradient": False},
    {"name": "fast", "learned": True, "activation": None},
    {"name": "pooling", "iterations": 2, "sharpness": 5.0, "activation": "squash"},
    {"name": "inverted_attention", "iterations": 3, "scale": True, "norm": "affine", "activations": True},
    {"name": "em", "iterations": 2, "variance_floor": 1e-3},
    {"name": "heinsen", "iterations": 2, "eps": 1e-3, "single_beta": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["name"])
def test_a_router_survives_json(options):
    router = make_router(options)
    assert router.config() == options
    again = make_router(json.loads(json.dumps(router.config())))
    assert type(again) is type(router)
    assert again.config() == router.config()


def test_every_routing_is_tested_here():
    assert [options["name"] for options in OPTIONS] == list_routings()


def test_a_router_that_is_given_is_copied():
    router = DynamicRouter(iterations=7)
    copy = make_router(router)
    assert copy is not router
    assert copy.iterations == 7


def test_two_layers_of_one_router_share_nothing():
    router = make_router("heinsen")
    layers = [cr.layers.CapsuleLinear(6, 3, 4, 4, routing=router) for _ in range(2)]
    assert layers[0].routing.beta_use is not layers[1].routing.beta_use


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ("nearest", "routing: expected one of dynamic, max_min, .*, got 'nearest'"),
        ({"iterations": 3}, "routing: expected one of .*, got None"),
        ({"name": "dynamic", "sharpness": 1}, "'dynamic' has options iterations, stop_gradient, got sharpness"),
    ],
)
def test_what_is_wrong_with_a_routing_is_said(routing, message):
    with pytest.raises(ValueError, match=message):
        make_router(routing)


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name not in ("inverted_attention", "fast")])
def test_algorithms_with_state_of_their_own_say_why_they_cannot_be_stepped(routing):
    layer = cr.layers.CapsuleLinear(6, 3, 4, 4, routing=routing)
    assert not layer.routing.can_step()
    with pytest.raises(ValueError, match=f"routing: '{routing}' keeps state over its own iterations"):
        layer.step(torch.zeros(1, 6, 1, 4), None, None)


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


class TestInvertedAttention:
    votes = staticmethod(lambda: cr.LinearVotes(numbers(2, 6, 2, 4), numbers(6, 3, 4, 5)))

    @staticmethod
    def router(**options) -> Router:
        router = InvertedAttentionRouter(**options)
        router.build(6, 3, (2, 5))
        return filled(router)

    def test_alone_it_steps_as_often_as_it_says(self):
        votes = self.votes()
        poses = None
        for iterations in (1, 2, 3):
            poses = cr.inverted_attention_routing(votes, poses).poses
            torch.testing.assert_close(self.router(iterations=iterations)(votes).poses, poses)

    def test_the_scale_is_that_of_the_released_code(self):
        votes = self.votes()
        first = cr.inverted_attention_routing(votes).poses
        expected = cr.inverted_attention_routing(votes, first, scale=(2 * 5) ** -0.5).poses
        torch.testing.assert_close(self.router(scale=True)(votes).poses, expected)

    def test_an_affine_norm_scales_and_shifts_the_plain_one(self):
        router = self.router(norm="affine", iterations=1)
        plain = cr.inverted_attention_routing(self.votes()).poses
        expected = plain * router.layer_norm.weight + router.layer_norm.bias
        torch.testing.assert_close(router(self.votes()).poses, expected)

    def test_no_norm_leaves_the_weighted_sum(self):
        votes = self.votes()
        expected = votes.dense().mean(1) * 6 / 3
        torch.testing.assert_close(self.router(norm="none", iterations=1)(votes).poses, expected)

    def test_a_function_can_be_the_norm(self):
        doubled = self.router(norm=lambda poses: 2 * poses, iterations=1)(self.votes()).poses
        torch.testing.assert_close(doubled, 2 * self.router(norm="none", iterations=1)(self.votes()).poses)

    def test_a_child_without_activation_has_no_say(self):
        router, votes = self.router(activations=True), self.votes()
        on = torch.tensor([[1.0, 1, 1, 1, 0, 0]] * 2, dtype=torch.float64)
        four = cr.LinearVotes(votes.u[:, :4], votes.W[:4])
        given, alone = router(votes, on), router(four)
        torch.testing.assert_close(given.poses, alone.poses)
        torch.testing.assert_close(given.scores, alone.scores)

    def test_full_activations_change_no_pose(self):
        votes = self.votes()
        torch.testing.assert_close(self.router(activations=True)(votes).poses, self.router()(votes).poses)

    def test_a_parent_is_the_more_active_the_better_its_votes_agree(self):
        router = self.router(activations=True)
        with torch.no_grad():
            router.beta_use.zero_()
            router.beta_activate.zero_()
        V = numbers(1, 6, 3, 2, 5)
        V[:, :, 0] = V[:, :1, 0] + 0.01 * V[:, :, 0]
        scores = router(cr.DenseVotes(V)).scores[0]
        assert scores[0] > scores[1:].max()
        assert router.score_kind == "probability"

    def test_its_activation_is_that_of_em(self):
        router, V = self.router(activations=True, iterations=1), numbers(2, 6, 3, 2, 5)
        uniform = cr.em_routing(
            cr.DenseVotes(V),
            torch.ones(2, 6, dtype=torch.float64),
            router.beta_use,
            router.beta_activate,
            iterations=1,
            variance_floor=1e-4,
        )
        torch.testing.assert_close(router(cr.DenseVotes(V)).scores, uniform.scores)

    def test_an_unknown_norm_is_named(self):
        with pytest.raises(ValueError, match="norm: expected None, 'affine', 'none'"):
            InvertedAttentionRouter(norm="batch")
        with pytest.raises(ValueError, match="pose: norm='affine'"):
            InvertedAttentionRouter(norm="affine").build(6, 3)
