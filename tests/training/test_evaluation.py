"""Accuracy of single and double labels, and the variants of a model that are measured beside it."""

import pytest
import torch

from capsroute.layers import FastRouter
from capsroute.models import ModelOutput, create_model
from capsroute.training.evaluation import correct_predictions, evaluate, fast_variant, uniform_variant

SCORES = torch.tensor([[0.9, 0.2, 0.8], [0.9, 0.6, 0.7], [0.3, 0.9, 0.1]])


class Fixed(torch.nn.Module):
    """Gives back its input as scores."""

    score_kind = "length"

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, scores, labels=None):
        assert not self.training
        return ModelOutput(scores)


def test_single_labels():
    metrics = evaluate(Fixed(), [(SCORES, torch.tensor([0, 1, 1])), (SCORES[:1], torch.tensor([0]))])
    assert metrics["accuracy"] == 3 / 4
    assert metrics["images"] == 4


def test_both_digits_must_be_among_the_two_highest():
    labels = torch.tensor([[2, 0], [0, 1], [1, 0]])
    assert correct_predictions(SCORES, labels).all(1).tolist() == [True, False, True]
    metrics = evaluate(Fixed(), [(SCORES, labels)])
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["digit_accuracy"] == pytest.approx((3 + 1 + 3) / 9)


def test_threshold_needs_exactly_the_digits_that_are_there():
    labels = torch.tensor([[2, 0], [0, 2], [1, -1]])
    assert correct_predictions(SCORES, labels, "length", "threshold").all(1).tolist() == [True, False, True]
    logits = SCORES - 0.5
    assert correct_predictions(logits, labels, "logit", "threshold").all(1).tolist() == [True, False, True]


def test_single_digit_is_wrong_when_two_are_always_chosen():
    assert not correct_predictions(SCORES[2:], torch.tensor([[1, -1]])).all()


def test_loss_is_the_mean_over_images():
    def loss(output, images, labels):
        return output.scores.mean()

    metrics = evaluate(Fixed(), [(SCORES, torch.tensor([0, 1, 1])), (SCORES[:1], torch.tensor([0]))], loss=loss)
    assert metrics["loss"] == pytest.approx((3 * SCORES.mean() + SCORES[0].mean()).item() / 4)


def test_no_batches_are_refused():
    with pytest.raises(ValueError, match="batches: expected at least one"):
        evaluate(Fixed(), [])


def test_model_is_left_as_it_was():
    model = create_model("capsnet_small", image_size=8).train()
    evaluate(model, [(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))])
    assert model.training


@pytest.mark.parametrize("routing", ["dynamic", "max_min"])
def test_variants_replace_the_routing_of_a_copy(routing):
    model = create_model("capsnet_small", image_size=8, routing=routing)
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    uniform = uniform_variant(model)
    assert isinstance(uniform.class_capsules.routing, FastRouter)
    assert model.class_capsules.routing.name == routing
    with pytest.warns(UserWarning, match="no better than chance"):
        fast, master = fast_variant(model, [(images, labels)])
    assert torch.equal(fast.class_capsules.routing.coefficients, master["class_capsules"].float())


@pytest.mark.parametrize("name", ["heinsen_smallnorb", "tsai_cnn", "zhao_huang_resnet20"])
def test_model_without_replaceable_routing_has_no_uniform_variant(name):
    assert uniform_variant(create_model(name)) is None
