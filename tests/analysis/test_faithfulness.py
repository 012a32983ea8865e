"""Deletion and insertion: a true explanation beats a false one, padding never counts."""

import pytest
import torch

import capsroute as cr

# Class 0 is there as much as tokens point along the first axis.
TOKENS = torch.randn(3, 10, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.zeros(3, dtype=torch.long)


def scores(tokens, mask):
    total = (tokens[:, :, 0] * mask).sum(1)
    return torch.stack([total, torch.zeros_like(total)], 1)


def test_the_true_order_beats_its_reverse():
    true = cr.analysis.deletion_insertion(scores, TOKENS, TOKENS[:, :, 0], CLASSES)
    false = cr.analysis.deletion_insertion(scores, TOKENS, -TOKENS[:, :, 0], CLASSES)
    assert true.areas()[0] < false.areas()[0]
    assert true.areas()[1] > false.areas()[1]


def test_curves_begin_and_end_with_all_and_nothing():
    found = cr.analysis.deletion_insertion(scores, TOKENS, torch.rand(3, 10), CLASSES, steps=5)
    whole = scores(TOKENS, torch.ones(3, 10)).softmax(1)[:, 0]
    torch.testing.assert_close(found.deletion[:, 0], whole)
    torch.testing.assert_close(found.insertion[:, -1], whole)
    torch.testing.assert_close(found.deletion[:, -1], torch.full((3,), 0.5))
    torch.testing.assert_close(found.insertion[:, 0], torch.full((3,), 0.5))


def test_padding_is_neither_taken_out_nor_put_in():
    mask = torch.arange(10).expand(3, -1) < 6
    importance = torch.rand(3, 10)
    padded = cr.analysis.deletion_insertion(scores, TOKENS, importance + 9 * ~mask, CLASSES, mask)
    short = cr.analysis.deletion_insertion(scores, TOKENS[:, :6], importance[:, :6], CLASSES)
    torch.testing.assert_close(padded.deletion, short.deletion)
    torch.testing.assert_close(padded.insertion, short.insertion)


def test_a_token_that_counts_least_still_goes_before_padding():
    mask = torch.arange(10).expand(3, -1) >= 6
    importance = torch.full((3, 10), -torch.inf)  # the logarithm of no attention at all
    found = cr.analysis.deletion_insertion(scores, TOKENS, importance, CLASSES, mask, steps=4)
    whole = scores(TOKENS, mask).softmax(1)[:, 0]
    torch.testing.assert_close(found.insertion[:, -1], whole)
    torch.testing.assert_close(found.deletion[:, -1], torch.full((3,), 0.5))


def test_importance_may_be_whole_numbers():
    importance = torch.randint(100, (3, 10), generator=torch.Generator().manual_seed(0))
    found = cr.analysis.deletion_insertion(scores, TOKENS, importance, CLASSES, steps=4)
    same = cr.analysis.deletion_insertion(scores, TOKENS, importance.float(), CLASSES, steps=4)
    torch.testing.assert_close(found.deletion, same.deletion)


def test_gradient_times_input_of_a_linear_score_is_its_terms():
    found = cr.analysis.gradient_times_input(lambda x: scores(x, torch.ones(3, 10)), TOKENS, CLASSES)
    torch.testing.assert_close(found, TOKENS[:, :, 0])


def test_credits_of_vector_routing_can_be_judged():
    torch.manual_seed(0)
    head = cr.models.RoutingHead(4, 2, routing="vector", parts=3)
    importance = head.credits(TOKENS)[:, :, 0]
    found = cr.analysis.deletion_insertion(lambda x, m: head(x, m).scores, TOKENS, importance, CLASSES, steps=4)
    assert found.deletion.shape == (3, 5)
    assert found.deletion.isfinite().all()


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match=r"importance: expected \[b,n\] = \[3, 10\], got \[3, 9\]"):
        cr.analysis.deletion_insertion(scores, TOKENS, torch.rand(3, 9), CLASSES)
    with pytest.raises(ValueError, match="steps: expected a whole number >= 1, got 0"):
        cr.analysis.deletion_insertion(scores, TOKENS, torch.rand(3, 10), CLASSES, steps=0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"mask": torch.tensor([[0.0, 0.0, -1e9]] * 2)},
            r"mask: expected probabilities in \[0, 1\], got -1000000000.0",
        ),
        ({"mask": torch.full((2, 3), 0.5)}, "mask: expected zeros and ones, for a token is there or taken out"),
        ({"mask": torch.ones(3)}, r"mask: expected \[b,n\] = \[2, 3\], got \[3\]"),
        ({"importance": torch.full((2, 3), torch.nan)}, "importance: expected no NaN"),
        ({"classes": torch.tensor([1])}, r"classes: expected one for each of 2 samples, got \[1\]"),
        ({"steps": 1.5}, "steps: expected a whole number >= 1, got 1.5"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(changes, complaint):
    given = {"tokens": torch.rand(2, 3, 4), "importance": torch.rand(2, 3), "classes": torch.tensor([0, 1]), **changes}
    with pytest.raises(ValueError, match=complaint):
        cr.analysis.deletion_insertion(lambda tokens, mask: (tokens * mask[..., None]).sum(1), **given)


def test_every_sample_has_a_class_to_explain():
    with pytest.raises(ValueError, match=r"classes: expected one for each of 2 samples, got \[1\]"):
        cr.analysis.gradient_times_input(lambda tokens: tokens.sum(1), torch.rand(2, 3, 4), torch.tensor([1]))
