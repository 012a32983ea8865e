"""Accuracy by iterations against models made with that number; memory against what is known to be alive."""

import pytest
import torch

from capsroute.analysis import by_iterations, schedules
from capsroute.analysis.iterations import peak_bytes
from tests.analysis.small import Stacked, images, small

CPU = torch.device("cpu")


def test_accuracy_is_that_of_a_model_with_that_many_iterations():
    x = images(30)
    model = small(std=2.0)
    labels = small({"name": "dynamic", "iterations": 4}, std=2.0)(x).scores.argmax(1)
    result = by_iterations(model, x, labels, (1, 4), repeats=1)
    once = small({"name": "dynamic", "iterations": 1}, std=2.0)(x).scores.argmax(1)
    assert float(result.accuracy[0, 1]) == 1
    assert float(result.accuracy[0, 0]) == pytest.approx(float((once == labels).double().mean()))
    assert float(result.accuracy[0, 0]) < 1
    assert model.class_capsules.routing.iterations == 3
    assert (result.milliseconds > 0).all()


def test_accuracy_is_of_all_images_and_memory_of_one_batch():
    model, x = small(), images(30)
    labels = model(x).scores.argmax(1)
    labels[20:] = (labels[20:] + 1) % 4
    whole, parts = (by_iterations(model, x, labels, (3,), repeats=1, batch=batch) for batch in (30, 10))
    assert (whole.batch, parts.batch) == (30, 10)
    assert float(whole.accuracy) == float(parts.accuracy) == pytest.approx(2 / 3)
    assert float(parts.mebibytes) == pytest.approx(float(whole.mebibytes) / 3)


def test_schedules_are_shown_beside_each_other_and_differ():
    model, x = Stacked("concurrent"), images(3, 7)
    both = schedules(model)
    assert list(both) == ["concurrent", "sequential"]
    torch.testing.assert_close(both["concurrent"](x).poses, model(x).poses)
    torch.testing.assert_close(both["sequential"](x).poses, Stacked("sequential")(x).poses)
    assert not torch.allclose(both["sequential"](x).poses, model(x).poses)
    assert list(schedules(small())) == ["capsnet_small"]


@pytest.mark.parametrize(("held", "expected"), [("one at a time", 2), ("all", 10), ("views", 1)])
def test_memory_counts_what_is_alive_at_once(held, expected):
    def work():
        x = torch.ones(1000)
        if held == "views":
            return [x.view(10, 100).t() for _ in range(5)]
        kept = []
        for _ in range(9):
            if held == "all":
                kept.append(x)
            x = x + 1
        return kept

    assert peak_bytes(work, CPU) == expected * 4000


def test_memory_does_not_count_what_was_there_before():
    before = torch.ones(100_000)
    assert peak_bytes(lambda: before[:10] + 1, CPU) == 40
