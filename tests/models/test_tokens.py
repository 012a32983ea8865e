"""Padding is left out exactly."""

import pytest
import torch

from capsroute.layers import CapsuleLinear, Router, make_router
from capsroute.models.tokens import masked
from tests.layers.filled import ROUTINGS, filled, numbers, scores_for

MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]])


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name != "fast"])
def test_a_masked_child_is_no_child(routing, given):
    layer = filled(CapsuleLinear(None, 3, (2, 4), (2, 5), routing=routing))
    poses = numbers(2, 6, 2, 4)
    poses[:, 4:] = torch.nan
    scores = scores_for(layer, 2, 6) if given else None
    capsules = masked(layer.routing, poses, scores, MASK)
    routed = layer(capsules.poses, capsules.scores)
    alone = layer(poses[:, :4], None if scores is None else scores[:, :4])
    torch.testing.assert_close(routed.poses, alone.poses, rtol=1e-9, atol=1e-10)
    if alone.scores is not None:
        torch.testing.assert_close(routed.scores, alone.scores, rtol=1e-9, atol=1e-10)


def test_a_routing_over_children_that_takes_no_scores_says_that_it_cannot():
    class Own(Router):
        name, competes_over = "own", "children"

    with pytest.raises(ValueError, match=r"mask: routing 'own' .* cannot leave one out"):
        masked(Own(), numbers(2, 6, 1, 4), None, MASK)


def test_no_mask_changes_nothing():
    poses, scores = numbers(2, 6, 1, 4), numbers(2, 6)
    capsules = masked(make_router("heinsen"), poses, scores, None)
    assert capsules.poses is poses
    assert capsules.scores is scores


def test_a_mask_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"mask: expected \[b,i\] = \[2, 5\], got \[2, 6\]"):
        masked(make_router("heinsen"), numbers(2, 5, 1, 4), None, MASK)


@pytest.mark.parametrize("mask", [[[2.0, 1.0]], [[-0.1, 1.0]], [[float("nan"), 1.0]], [[2, 1]]])
def test_a_mask_outside_of_0_to_1_is_refused(mask):
    with pytest.raises(ValueError, match=r"mask: expected numbers in \[0, 1\]"):
        masked(make_router("heinsen"), numbers(1, 2, 1, 4), None, torch.tensor(mask))


def test_a_soft_mask_is_the_logit_of_itself_under_heinsen_routing():
    mask = torch.tensor([[1.0, 0.75, 0.01, 0.0]], dtype=torch.float64)
    scores = masked(make_router("heinsen"), numbers(1, 4, 1, 4), None, mask).scores
    torch.testing.assert_close(scores.sigmoid(), mask, rtol=1e-12, atol=0)
    given = numbers(1, 4)
    lessened = masked(make_router("heinsen"), numbers(1, 4, 1, 4), given, mask).scores
    torch.testing.assert_close(lessened.sigmoid(), mask * given.sigmoid(), rtol=1e-12, atol=0)
    assert lessened[0, 0] == given[0, 0]


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name != "fast"])
def test_a_child_that_counts_a_little_is_between_one_that_does_and_one_that_does_not(routing):
    layer = filled(CapsuleLinear(None, 3, (2, 4), (2, 5), routing=routing))
    poses = numbers(2, 6, 2, 4).requires_grad_()

    def routed(last):
        mask = torch.tensor([[1.0] * 5 + [last]] * 2, dtype=torch.float64)
        capsules = masked(layer.routing, poses, None, mask)
        return layer(capsules.poses, capsules.scores).poses

    none, little, whole = routed(0.0), routed(1e-9), routed(1.0)
    torch.testing.assert_close(little, none, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(whole, none, rtol=1e-3)
    routed(0.5).sum().backward()
    assert poses.grad.isfinite().all()
