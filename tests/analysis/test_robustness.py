"""Changed images against exact turns and shifts, and accuracies against counting."""

import pytest
import torch

from capsroute.analysis import robustness
from capsroute.analysis.robustness import transformed
from tests.analysis.small import images, small


def test_a_quarter_turn_is_counter_clockwise():
    x = images(2)
    torch.testing.assert_close(transformed(x, 90, (0, 0), 1), x.rot90(1, (2, 3)), atol=1e-6, rtol=0)


def test_a_shift_by_whole_pixels_moves_right_and_down_and_leaves_black():
    x = images(2)
    moved = transformed(x, 0, (2, 1), 1)
    torch.testing.assert_close(moved[:, :, 1:, 2:], x[:, :, :-1, :-2], atol=1e-6, rtol=0)
    assert (moved[:, :, 0] == 0).all()
    assert (moved[:, :, :, :2] == 0).all()


def test_half_the_size_fills_the_middle():
    moved = transformed(torch.ones(1, 1, 8, 8), 0, (0, 0), 0.5)
    assert (moved[0, 0, 2:6, 2:6] == 1).all()
    assert float(moved.sum()) == 16


def test_accuracies_are_counted_on_the_changed_images():
    x, models = images(20), {"one": small(seed=0), "two": small(seed=5)}
    labels = models["one"](x).scores.argmax(1)
    result = robustness(models, x, labels, degrees=(0, 90), pixels=(0, 2), factors=(1.0, 0.5))
    assert result.models == ("one", "two")
    assert result.rotation[0, 0] == result.shift[0, 0] == result.scale[0, 0] == 1

    def right(model, changed):
        return sum(int(a == b) for a, b in zip(model(changed).scores.argmax(1), labels)) / 20

    for row, model in enumerate(models.values()):
        assert float(result.rotation[row, 1]) == pytest.approx(right(model, x.rot90(1, (2, 3))))
        assert float(result.scale[row, 1]) == pytest.approx(right(model, transformed(x, 0, (0, 0), 0.5)))
        moves = [(2, 0), (-2, 0), (0, 2), (0, -2)]
        mean = sum(right(model, transformed(x, 0, move, 1)) for move in moves) / 4
        assert float(result.shift[row, 1]) == pytest.approx(mean)


def test_two_labels_an_image_are_refused():
    with pytest.raises(ValueError, match="labels: expected one class index an image"):
        robustness(small(), images(2), torch.zeros(2, 2, dtype=torch.int64))
