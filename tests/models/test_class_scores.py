"""Class capsules to class scores."""

import pytest
import torch

from capsroute.layers import make_router
from capsroute.models.class_scores import ClassScores
from capsroute.routing import Routed
from capsroute.training.objective import FITTING

POSES = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0))
OWN = torch.rand(2, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("routing", "kind", "loss", "several"),
    [
        ("dynamic", "length", "margin", "margin"),
        ("max_min", "length", "margin", "margin"),
        ("fast", "length", "margin", "margin"),
        ({"name": "pooling", "activation": "squash"}, "length", "margin", "margin"),
        ("pooling", "logit", "cross_entropy", "binary_cross_entropy"),
        ("inverted_attention", "logit", "cross_entropy", "binary_cross_entropy"),
        ({"name": "inverted_attention", "activations": True}, "logit", "cross_entropy", "binary_cross_entropy"),
        ("heinsen", "logit", "cross_entropy", "binary_cross_entropy"),
        ("em", "probability", "spread", "margin"),
        ("vb", "probability", "spread", "margin"),
        ({"name": "vb", "logits": True}, "logit", "cross_entropy", "binary_cross_entropy"),
    ],
)
def test_every_routing_has_scores_and_a_loss_that_fit(routing, kind, loss, several):
    scores = ClassScores(make_router(routing), 8)
    assert (scores.kind, scores.loss) == (kind, loss)
    assert ClassScores(make_router(routing), 8, multi_label=True).loss == several
    assert {loss, several} <= set(FITTING[kind])


def test_squashed_capsules_are_scored_by_their_length():
    scores = ClassScores(make_router("dynamic"), 8)(Routed(POSES, None))
    torch.testing.assert_close(scores, POSES.flatten(2).norm(dim=2))


@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_algorithms_with_scores_give_them(routing):
    assert ClassScores(make_router(routing), 8)(Routed(POSES, None, OWN)) is OWN


def test_one_classifier_serves_all_classes():
    scores = ClassScores(make_router("inverted_attention"), 8)
    assert scores.classifier.weight.shape == (1, 8)
    expected = POSES.flatten(2) @ scores.classifier.weight[0] + scores.classifier.bias
    torch.testing.assert_close(scores(Routed(POSES, None)), expected)


def test_an_activation_weighs_the_pose_that_is_classified():
    scores = ClassScores(make_router({"name": "inverted_attention", "activations": True}), 8)
    expected = (POSES.flatten(2) @ scores.classifier.weight[0]) * OWN + scores.classifier.bias
    torch.testing.assert_close(scores(Routed(POSES, None, OWN)), expected)
