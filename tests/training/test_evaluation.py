"""Accuracy of single and double labels, and the variants of a model that are measured beside it."""

import pytest
import torch

from capsroute.data import Batches, load
from capsroute.inference import accumulate, with_coefficients
from capsroute.layers import CapsuleLinear, FastRouter
from capsroute.models import ModelOutput, create_model, small_options
from capsroute.training.evaluation import correct_predictions, evaluate, replaceable_layers, uniform_variant

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


@pytest.mark.parametrize("labels", [[[0], [1], [1]], [[1, 0, 0], [0, 1, 0], [0, 1, 0]]])
def test_columns_and_ones_among_zeros_are_no_labels(labels):
    """They would be read as the classes 0 and 1."""
    with pytest.raises(ValueError, match=r"labels: expected whole numbers .*; ones among zeros are given as floats"):
        evaluate(Fixed(), [(SCORES, torch.tensor(labels))])


def test_two_of_two_classes_are_no_decision():
    with pytest.raises(ValueError, match=r"labels: expected \[b\] for two classes, got \[3, 2\]: the two highest"):
        correct_predictions(SCORES[:, :2], torch.tensor([[1, 0], [0, 1], [0, 1]]))


def test_one_class_is_decided_by_a_threshold():
    found = correct_predictions(torch.tensor([[2.0], [-2.0]]), torch.tensor([[0, -1], [0, -1]]), two_labels="threshold")
    assert found.tolist() == [[True], [False]]


@pytest.mark.parametrize(
    ("scores", "labels", "complaint"),
    [
        (SCORES[:, :1], torch.tensor([[1.0], [0.0], [1.0]]), r"scores: expected those of two classes .*, got \[3, 1\]"),
        (SCORES[:, :1], torch.tensor([0, 0, 0]), r"scores: expected those of two classes or more, got \[3, 1\]"),
        (SCORES, torch.tensor([1]), "labels: expected 3, one for each image, got 1"),
        (SCORES, torch.tensor(1), r"labels: expected whole numbers \[n\] or \[n, 2\], got torch.int64 \[\]"),
        (SCORES, torch.ones(3, 2), r"labels: expected targets \[3, 3\], as the scores are, got \[3, 2\]"),
    ],
)
def test_scores_in_which_nothing_is_decided_are_refused(scores, labels, complaint):
    """The highest of one score is right whatever it is, and one label would be that of all images."""
    with pytest.raises(ValueError, match=complaint):
        evaluate(Fixed(), [(scores, labels)])


def test_loss_is_the_mean_over_images():
    def loss(output, images, labels):
        return output.scores.mean()

    metrics = evaluate(Fixed(), [(SCORES, torch.tensor([0, 1, 1])), (SCORES[:1], torch.tensor([0]))], loss=loss)
    assert metrics["loss"] == pytest.approx((3 * SCORES.mean() + SCORES[0].mean()).item() / 4)


@pytest.mark.parametrize("labels", [[0, 3, 1], [0, -1, 1], [[0, 3], [1, -1], [1, 0]], [[0, 1], [-2, 1], [1, 0]]])
def test_labels_of_classes_that_the_model_lacks_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels: (some are of classes that the model|expected -1 to 2 for 3)"):
        evaluate(Fixed(), [(SCORES, torch.tensor(labels))])


def test_a_set_of_images_is_taken_whole():
    digits, model = load("digits", "validation"), create_model("capsnet_small", image_size=8)
    again = evaluate(model, Batches(digits, 50, shuffle=False))
    found = evaluate(model, digits)
    assert (found["images"], found["accuracy"]) == (again["images"], pytest.approx(again["accuracy"]))


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
        master = accumulate(model, [(images, labels)], layers=replaceable_layers(model))
    fast = with_coefficients(model, master)
    assert torch.equal(fast.class_capsules.routing.coefficients, master["class_capsules"].float())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("heinsen_smallnorb", {}),
        ("tsai_em_simple", {}),
        ("tsai_simple_cifar10", {}),
        ("zhao_huang_resnet20", {}),
        ("zhao_huang_capsnet_affnist", {}),
        ("heinsen_smallnorb", {"routing": "dynamic"}),
        ("heinsen_smallnorb", {"routing": "max_min"}),
    ],
)
def test_uniform_coefficients_are_equal_in_every_layer(name, options):
    torch.manual_seed(0)
    model = create_model(name, **small_options(name) | options).eval()
    images = torch.rand(2, *model.input_shape)
    uniform = uniform_variant(model)
    routed, equal = (each(images, return_coefficients=True).coefficients for each in (model, uniform))
    assert equal.keys() == routed.keys()
    for layer, coefficients in equal.items():
        # In convolutional EM a child at the edge has fewer parents: equal for every sample, not for every child.
        assert torch.equal(coefficients[:1].expand_as(coefficients), coefficients), layer
        assert coefficients.unique().numel() == 1 or name == "tsai_em_simple", layer
    assert any(not torch.allclose(equal[layer], routed[layer]) for layer in equal)


def test_pooling_with_uniform_coefficients_is_average_pooling():
    options = small_options("zhao_huang_resnet20")
    model = create_model("zhao_huang_resnet20", **options).eval()
    average = create_model("zhao_huang_resnet20", **options | {"pooling": "average"}).eval()
    average.load_state_dict(model.state_dict())
    images = torch.rand(2, *model.input_shape)
    torch.testing.assert_close(uniform_variant(model)(images).scores, average(images).scores)


def test_em_with_uniform_coefficients_keeps_its_last_temperature():
    torch.manual_seed(0)
    layer = CapsuleLinear(6, 3, 4, 4, routing="em")
    uniform = uniform_variant(torch.nn.Sequential(layer, torch.nn.Flatten()))[0]
    poses, scores = torch.randn(2, 6, 1, 4), torch.rand(2, 6)
    routed = uniform(poses, scores, return_coefficients=True)
    assert torch.equal(routed.coefficients.unique(), torch.tensor([1 / 3]))
    alone = CapsuleLinear(6, 3, 4, 4, routing={"name": "em", "iterations": 1})
    alone.load_state_dict(layer.state_dict())
    once = alone(poses, scores)
    torch.testing.assert_close(routed.poses, once.poses)
    assert not torch.allclose(routed.scores, once.scores, atol=1e-4)


def test_model_without_routing_has_no_uniform_variant():
    assert uniform_variant(create_model("tsai_cnn", **small_options("tsai_cnn"))) is None
