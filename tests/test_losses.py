"""Losses, against loops over samples and classes."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import capsroute as cr

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(6, 4, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 3, 1, 1, 2, 0])
SEVERAL = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1]])


def margin_by_loops(lengths, present, positive=0.9, negative=0.1, down=0.5):
    total = 0.0
    for b, j in itertools.product(range(6), range(4)):
        length = lengths[b, j].item()
        if present(b, j):
            total += max(0.0, positive - length) ** 2
        else:
            total += down * max(0.0, length - negative) ** 2
    return total / 6


def test_margin_is_the_formula_of_the_paper():
    expected = margin_by_loops(SCORES, lambda b, j: LABELS[b] == j)
    assert cr.losses.margin(SCORES, LABELS).item() == pytest.approx(expected, rel=1e-12)


def test_margin_of_several_classes_counts_each():
    expected = margin_by_loops(SCORES, lambda b, j: SEVERAL[b, j] == 1)
    assert cr.losses.margin(SCORES, SEVERAL).item() == pytest.approx(expected, rel=1e-12)


def test_margin_has_the_options_of_the_paper():
    expected = margin_by_loops(SCORES, lambda b, j: LABELS[b] == j, 0.8, 0.2, 1.0)
    given = cr.losses.margin(SCORES, LABELS, positive=0.8, negative=0.2, down=1.0)
    assert given.item() == pytest.approx(expected, rel=1e-12)


def test_margin_is_zero_where_lengths_say_it_clearly_and_takes_lengths_as_they_are():
    clear = torch.tensor([[0.95, 0.05, 0.0], [0.1, 0.9, 0.1]])
    assert cr.losses.margin(clear, torch.tensor([0, 1])).item() == 0
    # A softmax on the lengths first could never get there.
    assert cr.losses.margin(clear.softmax(1), torch.tensor([0, 1])).item() > 0.1


def test_spread_is_the_sum_over_wrong_classes():
    expected = 0.0
    for b, j in itertools.product(range(6), range(4)):
        if j != LABELS[b]:
            expected += max(0.0, 0.7 - (SCORES[b, LABELS[b]] - SCORES[b, j]).item()) ** 2 / 6
    assert cr.losses.spread(SCORES, LABELS, margin=0.7).item() == pytest.approx(expected, rel=1e-12)


def test_spread_takes_a_mask_of_one_class_each():
    mask = torch.nn.functional.one_hot(LABELS, 4)
    assert torch.equal(cr.losses.spread(SCORES, mask), cr.losses.spread(SCORES, LABELS))


def test_spread_takes_its_margin_from_a_tensor():
    margin = torch.tensor(0.2, dtype=torch.float64)
    assert torch.equal(cr.losses.spread(SCORES, LABELS, margin), cr.losses.spread(SCORES, LABELS, 0.2))
    assert torch.equal(cr.losses.spread(SCORES, LABELS, margin.fill_(0.9)), cr.losses.spread(SCORES, LABELS, 0.9))


def test_reconstruction_is_the_sum_over_pixels_and_the_mean_over_samples():
    images, targets = (torch.rand(3, 2, 4, 5, generator=GENERATOR, dtype=torch.float64) for _ in range(2))
    expected = sum(
        0.0005 * (images[where] - targets[where]).item() ** 2
        for where in itertools.product(range(3), range(2), range(4), range(5))
    )
    assert cr.losses.reconstruction(images, targets, weight=0.0005).item() == pytest.approx(expected / 3, rel=1e-12)
    assert cr.losses.reconstruction(images, targets, weight=1.0).item() == pytest.approx(2000 * expected / 3, rel=1e-12)


def test_reconstruction_of_another_dtype_than_its_targets_is_compared_in_the_wider():
    images, targets = torch.full((2, 1, 2, 2), 0.3, dtype=torch.bfloat16, requires_grad=True), torch.rand(2, 1, 2, 2)
    loss = cr.losses.reconstruction(images, targets, weight=1.0)
    torch.testing.assert_close(loss, (images.float() - targets).square().sum() / 2)
    loss.backward()
    assert images.grad.dtype == torch.bfloat16


class Operators(TorchDispatchMode):
    """Counts what is dispatched to a device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_losses_are_few_operators():
    """Each is a launch on a GPU, and a step of a small network takes as long as its launches."""
    scores, images = SCORES.clone().requires_grad_(), torch.rand(2, 1, 4, 4, requires_grad=True)
    with Operators() as margin:
        cr.losses.margin(scores, LABELS).backward()
    with Operators() as reconstruction:
        cr.losses.reconstruction(images, torch.rand(2, 1, 4, 4), weight=0.0005).backward()
    assert margin.count <= 34
    assert reconstruction.count <= 8


@pytest.mark.parametrize(
    "loss",
    [
        lambda s: cr.losses.margin(s, LABELS),
        lambda s: cr.losses.margin(s, SEVERAL),
        lambda s: cr.losses.spread(s, LABELS),
    ],
)
def test_gradients_are_right(loss):
    assert torch.autograd.gradcheck(loss, SCORES.clone().requires_grad_())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cr.losses.margin(SCORES[0], LABELS), r"lengths: expected \[b,j\]"),
        (lambda: cr.losses.margin(SCORES, LABELS[:3]), "labels: expected"),
        (lambda: cr.losses.margin(SCORES, LABELS.float()), "labels: expected class indices of dtype int64"),
        (lambda: cr.losses.spread(SCORES, SEVERAL[:, :3]), "labels: expected"),
        (lambda: cr.losses.spread(SCORES, SEVERAL), "labels: the spread loss compares one class of a sample"),
        (lambda: cr.losses.spread(SCORES, torch.full((6, 4), 0.25)), "labels: the spread loss compares one class"),
        (lambda: cr.losses.spread(SCORES, LABELS, margin=0.0), r"margin: expected a number in \(0, 1\]"),
        (lambda: cr.losses.spread(SCORES, LABELS, torch.ones(6)), r"margin: expected a number or a tensor \[\]"),
        (lambda: cr.losses.reconstruction(torch.zeros(2, 1, 4, 4), torch.zeros(2, 16)), "images: expected"),
        (
            lambda: cr.losses.margin(SCORES.long(), LABELS),
            r"lengths: expected a floating-point tensor .*, got torch.int64",
        ),
        (
            lambda: cr.losses.spread(SCORES.tolist(), LABELS),
            r"scores: expected a floating-point tensor .*, got \[",
        ),
        (
            lambda: cr.losses.reconstruction(torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4, dtype=torch.uint8), 1.0),
            "targets: expected a floating-point tensor, got torch.uint8",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_reconstruction_without_a_weight_is_that_of_before_and_says_so():
    images, targets = torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4)
    with pytest.warns(
        DeprecationWarning,
        match="cr.losses.reconstruction without a weight is deprecated",
    ):
        before = cr.losses.reconstruction(images, targets)
    assert torch.equal(before, cr.losses.reconstruction(images, targets, weight=0.0005))


@pytest.mark.parametrize("loss", [cr.losses.margin, cr.losses.spread])
@pytest.mark.parametrize("label", [-1, 4])
def test_labels_that_are_no_class_are_refused(loss, label):
    with pytest.raises(ValueError, match="labels: expected 0 to 3 for 4 classes"):
        loss(SCORES, torch.tensor([0, 1, 2, 3, 0, label]))


def test_labels_as_a_list_are_refused_in_one_line():
    with pytest.raises(TypeError, match=r"labels: expected a tensor .* got list"):
        cr.losses.margin(torch.rand(3, 3), [0, 1, 2])
