"""Variational Bayes capsules: coordinates, competition over positions, batch norms and logits."""

import pytest
import torch

import capsroute as cr
from tests.layers.filled import filled, numbers


def test_coordinates_are_a_tenth_on_the_last_number_of_two_rows():
    model = cr.create_model("vb_capsnet").double()
    votes = model.class_capsules.votes(torch.zeros(1, 16 * 6, 4, 4, dtype=torch.float64), (2, 3)).dense()
    for child, (y, x) in enumerate([(y, x) for y in range(2) for x in range(3)]):
        expected = torch.zeros(4, 4, dtype=torch.float64)
        expected[0, 3], expected[1, 3] = (y + 1) / 20, (x + 1) / 30
        torch.testing.assert_close(votes[0, child, 0], expected)


def test_parents_at_all_positions_that_see_a_child_compete_for_it():
    layer = filled(cr.layers.CapsuleConv2d(2, 3, (2, 2), (2, 2), kernel_size=3, routing="vb"))
    c = layer(numbers(1, 2, 2, 2, 5, 5), torch.rand(1, 2, 5, 5).double(), return_coefficients=True).coefficients
    total = torch.zeros(2, 5, 5, dtype=torch.float64)
    for y in range(3):
        for x in range(3):
            total[:, y : y + 3, x : x + 3] += c[0, y, x].sum(1).view(2, 3, 3)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-10, atol=0)


@pytest.mark.parametrize("logits", [False, True])
def test_scores_are_probabilities_or_logits(logits):
    layer = filled(cr.layers.CapsuleLinear(6, 3, (2, 2), (2, 2), routing={"name": "vb", "logits": logits}))
    scores = layer(numbers(40, 6, 2, 2), torch.rand(40, 6).double()).scores
    normed = scores if logits else scores.logit()
    torch.testing.assert_close(normed.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    assert ((scores >= 0) & (scores <= 1)).all() != logits


def test_a_batch_of_one_trains():
    layer = filled(cr.layers.CapsuleLinear(6, 3, (2, 2), (2, 2), routing="vb")).train()
    routed = layer(numbers(1, 6, 2, 2))
    assert routed.poses.isfinite().all()
    assert routed.scores.isfinite().all()
