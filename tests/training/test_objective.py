"""Losses of recipes: the right one, with the right weight, on every kind of label."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import capsroute as cr
from capsroute.models import ModelOutput, create_model
from capsroute.training.objective import Objective
from capsroute.training.sections import LossSection

IMAGES, LABELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 1, 4, 1])


def model(**options):
    torch.manual_seed(0)
    return create_model("capsnet_small", image_size=8, **options)


def logits(**options):
    return model(routing="inverted_attention", decoder=None, **options)


def test_auto_is_the_loss_of_the_paper():
    assert Objective(LossSection(), model()).name == "margin"
    assert Objective(LossSection(), logits()).name == "cross_entropy"


def test_margin_and_reconstruction_add_up():
    network = model()
    output = network(IMAGES, LABELS)
    loss = Objective(LossSection(reconstruction=0.0005), network)(output, IMAGES, LABELS)
    errors = (output.reconstruction - IMAGES).square().sum((1, 2, 3)).mean()
    torch.testing.assert_close(loss, cr.losses.margin(output.scores, LABELS) + 0.0005 * errors)


def test_released_scaling_makes_reconstruction_count_twenty_times_as_much():
    network = model()
    output = network(IMAGES, LABELS)
    scores = output.scores
    paper = Objective(LossSection(), network).on_scores(scores, LABELS)
    released = Objective(LossSection(scaling="released"), network).on_scores(scores, LABELS)
    torch.testing.assert_close(paper / released, torch.tensor(20.0))


def test_spread_margin_grows_from_start_to_end():
    network = model()
    scores = torch.tensor([[0.5] * 10])
    objective = Objective(LossSection(name="spread"), network)
    for progress, margin in ((0.0, 0.2), (0.25, 0.55), (0.5, 0.9), (1.0, 0.9)):
        objective.advance(progress)
        loss = objective.on_scores(scores, torch.tensor([2]))
        torch.testing.assert_close(loss, torch.tensor(9 * margin**2))


def test_recorded_spread_loss_sees_the_margin_rise():
    """A recording keeps every number that Python computes, as a CUDA graph does."""
    scores, labels = torch.tensor([[0.5] * 10]), torch.tensor([2])
    objective = Objective(LossSection(name="spread"), model())
    recorded = make_fx(lambda values: objective.on_scores(values, labels))(scores)
    for progress in (0.1, 0.3, 0.9):
        objective.advance(progress)
        torch.testing.assert_close(recorded(scores), objective.on_scores(scores, labels), rtol=0, atol=0)


def test_label_smoothing_and_soft_targets_reach_cross_entropy():
    scores = torch.randn(4, 10, generator=torch.Generator().manual_seed(1))
    objective = Objective(LossSection(name="cross_entropy", label_smoothing=0.1), logits())
    torch.testing.assert_close(
        objective.on_scores(scores, LABELS), F.cross_entropy(scores, LABELS, label_smoothing=0.1)
    )
    soft = 0.3 * F.one_hot(LABELS, 10) + 0.7 * F.one_hot(LABELS.flip(0), 10)
    plain = Objective(LossSection(name="cross_entropy"), logits())
    torch.testing.assert_close(plain.on_scores(scores, soft), -(soft * scores.log_softmax(1)).sum(1).mean())


def test_two_labels_are_both_wanted():
    pairs = torch.tensor([[3, 1], [2, -1]])
    scores = torch.full((2, 10), 0.0)
    scores[0, [3, 1]] = scores[1, 2] = 1.0
    assert Objective(LossSection(), model()).on_scores(scores, pairs) == 0
    with pytest.raises(ValueError, match="two labels need margin or binary_cross_entropy, not spread"):
        Objective(LossSection(name="spread"), model()).on_scores(scores, pairs)
    with pytest.raises(ValueError, match="labels: expected whole numbers"):
        Objective(LossSection(name="spread"), model()).on_scores(scores, pairs[:, :1])


def test_binary_cross_entropy_is_over_every_class():
    scores = torch.randn(2, 10, generator=torch.Generator().manual_seed(1))
    targets = cr.data.multi_hot(torch.tensor([[3, 1], [2, -1]]), 10)
    loss = Objective(LossSection(name="binary_cross_entropy"), logits()).on_scores(
        scores, torch.tensor([[3, 1], [2, -1]])
    )
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(scores, targets))


def test_each_digit_of_a_pair_is_reconstructed_from_its_own_capsule():
    network = model()
    pairs, parts = torch.tensor([[3, 1], [2, -1]]), torch.rand(2, 2, 8, 8)
    output = network(IMAGES[:2])
    objective = Objective(LossSection(reconstruction=1.0), network)
    loss = objective(output, IMAGES[:2], pairs, parts) - objective.on_scores(output.scores, pairs)
    first = network.decoder(output.poses, pairs[:, 0]) - parts[:, :1]
    second = network.decoder(output.poses, torch.tensor([1, 0])) - parts[:, 1:]
    expected = (first.square().sum() + second[0].square().sum()) / 2  # the second picture has no second digit
    torch.testing.assert_close(loss, expected)


def test_decoder_sees_true_labels_only_where_it_is_trained():
    network = model()
    assert Objective(LossSection(), network).decoder_labels(LABELS) is None
    objective = Objective(LossSection(reconstruction=0.1), network)
    assert torch.equal(objective.decoder_labels(LABELS), LABELS)
    assert objective.decoder_labels(torch.tensor([[3, 1]])).tolist() == [[0, 1, 0, 1, 0, 0, 0, 0, 0, 0]]


def test_loss_that_does_not_fit_the_scores_is_refused():
    with pytest.raises(ValueError, match=r"loss\.name: the model's scores are of kind 'logit'"):
        Objective(LossSection(name="margin"), logits())
    with pytest.raises(ValueError, match=r"kind 'logit', as it does not say `model.score_kind = .*, got 'margin'"):
        Objective(LossSection(name="margin"), torch.nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"loss\.name: the model's scores are of kind 'length'"):
        Objective(LossSection(name="cross_entropy"), model())
    with pytest.raises(ValueError, match=r"loss\.reconstruction: the model has no decoder"):
        Objective(LossSection(reconstruction=0.1), model(decoder=None))


def test_loss_is_float32_under_low_precision():
    scores = torch.rand(4, 10).bfloat16()
    assert Objective(LossSection(), model())(ModelOutput(scores), IMAGES, LABELS).dtype == torch.float32
