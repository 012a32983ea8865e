"""The router of inverted dot-product attention: its options, and capsules with activations."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import InvertedAttentionRouter, Router
from tests.layers.filled import filled, numbers


def six_votes() -> cr.LinearVotes:
    return cr.LinearVotes(numbers(2, 6, 2, 4), numbers(6, 3, 4, 5))


def router_of(**options) -> Router:
    router = InvertedAttentionRouter(**options)
    router.build(6, 3, (2, 5))
    return filled(router)


def test_alone_it_steps_as_often_as_it_says():
    votes = six_votes()
    poses = None
    for iterations in (1, 2, 3):
        poses = cr.inverted_attention_routing(votes, poses).poses
        torch.testing.assert_close(router_of(iterations=iterations)(votes).poses, poses)


def test_a_step_or_a_norm_of_a_subclass_is_taken():
    class Halved(InvertedAttentionRouter):
        def step(self, *args):
            routed = super().step(*args)
            return routed._replace(poses=routed.poses / 2)

    class Shifted(InvertedAttentionRouter):
        def normalise(self, poses):
            return super().normalise(poses) + 1

    plain = InvertedAttentionRouter(iterations=2)(six_votes()).poses
    for router in (Halved(iterations=2), Shifted(iterations=2)):
        assert not torch.allclose(router(six_votes()).poses, plain)


def test_the_scale_is_that_of_the_released_code():
    votes = six_votes()
    first = cr.inverted_attention_routing(votes).poses
    expected = cr.inverted_attention_routing(votes, first, scale=(2 * 5) ** -0.5).poses
    torch.testing.assert_close(router_of(scale=True)(votes).poses, expected)


def test_an_affine_norm_scales_and_shifts_the_plain_one():
    router = router_of(norm="affine", iterations=1)
    plain = cr.inverted_attention_routing(six_votes()).poses
    expected = plain * router.layer_norm.weight + router.layer_norm.bias
    torch.testing.assert_close(router(six_votes()).poses, expected)


def test_no_norm_leaves_the_weighted_sum():
    votes = six_votes()
    expected = votes.dense().mean(1) * 6 / 3
    torch.testing.assert_close(router_of(norm="none", iterations=1)(votes).poses, expected)


def test_a_function_can_be_the_norm():
    doubled = router_of(norm=lambda poses: 2 * poses, iterations=1)(six_votes()).poses
    torch.testing.assert_close(doubled, 2 * router_of(norm="none", iterations=1)(six_votes()).poses)


def test_a_child_without_activation_has_no_say():
    router, votes = router_of(activations=True), six_votes()
    on = torch.tensor([[1.0, 1, 1, 1, 0, 0]] * 2, dtype=torch.float64)
    four = cr.LinearVotes(votes.u[:, :4], votes.W[:4])
    given, alone = router(votes, on), router(four)
    torch.testing.assert_close(given.poses, alone.poses)
    torch.testing.assert_close(given.scores, alone.scores)


def test_full_activations_change_no_pose():
    votes = six_votes()
    torch.testing.assert_close(router_of(activations=True)(votes).poses, router_of()(votes).poses)


def test_a_parent_is_the_more_active_the_better_its_votes_agree():
    router = router_of(activations=True)
    with torch.no_grad():
        router.beta_use.zero_()
        router.beta_activate.zero_()
    V = numbers(1, 6, 3, 2, 5)
    V[:, :, 0] = V[:, :1, 0] + 0.01 * V[:, :, 0]
    scores = router(cr.DenseVotes(V)).scores[0]
    assert scores[0] > scores[1:].max()
    assert router.score_kind == "probability"


def test_its_activation_is_that_of_em():
    router, V = router_of(activations=True, iterations=1), numbers(2, 6, 3, 2, 5)
    uniform = cr.em_routing(
        cr.DenseVotes(V),
        torch.ones(2, 6, dtype=torch.float64),
        router.beta_use,
        router.beta_activate,
        iterations=1,
        variance_floor=1e-4,
    )
    torch.testing.assert_close(router(cr.DenseVotes(V)).scores, uniform.scores)


def test_an_unknown_norm_is_named():
    with pytest.raises(ValueError, match="norm: expected None, 'affine', 'none'"):
        InvertedAttentionRouter(norm="batch")
    with pytest.raises(ValueError, match="pose: norm='affine'"):
        InvertedAttentionRouter(norm="affine").build(6, 3)
