"""Agreement, entropy and movement of each iteration against loops over dense votes. Accuracy by iterations against
models made with that number; memory against what is known to be alive."""

import math

import pytest
import torch

from capsroute.analysis import by_iterations, routing_convergence, schedules, trace_routing
from capsroute.analysis.convergence import peak_bytes
from tests.analysis.small import Stacked, images, small


@pytest.mark.parametrize("routing", ["dynamic", "max_min", "pooling", "em"])
@torch.no_grad()
def test_numbers_of_each_iteration(routing):
    model, x = small({"name": routing, "iterations": 3}), images(2)
    result = routing_convergence(model, x)
    steps = trace_routing(model, x).layers["class_capsules"].steps
    for b in range(2):
        before = None
        for t, step in enumerate(steps):
            votes, c = step.votes.dense()[b].flatten(2), step.routed.coefficients[b]
            poses = step.routed.poses[b].flatten(1)
            weights = c * step.scores[b][:, None] if routing == "em" else c
            weights = weights * votes.norm(dim=2)  # long votes count for more
            for j in range(4):
                cosines = [float(votes[i, j] @ poses[j] / (votes[i, j].norm() * poses[j].norm())) for i in range(32)]
                mean = sum(w * value for w, value in zip(weights[:, j].tolist(), cosines)) / float(weights[:, j].sum())
                assert float(result.agreement[b, t, j]) == pytest.approx(mean)
                assert float(result.lengths[b, t, j]) == pytest.approx(float(poses[j].norm()))
            rows = c.T if routing == "pooling" else c
            entropies = []
            for row in rows.tolist():
                shares = [value / sum(row) for value in row]
                entropies.append(-sum(p * math.log(p) for p in shares if p > 0) / math.log(len(row)))
            assert float(result.entropy[b, t]) == pytest.approx(sum(entropies) / len(entropies))
            if before is not None:
                moved = sum(float((poses[j] - before[j]).norm()) ** 2 for j in range(4)) ** 0.5
                length = sum(float(poses[j].norm()) ** 2 for j in range(4)) ** 0.5
                assert float(result.movement[b, t]) == pytest.approx(moved / length)
            before = poses
    assert result.movement[:, 0].isnan().all()


def test_uniform_coefficients_have_entropy_one_and_decided_ones_less():
    result = routing_convergence(small(std=3.0), images(3), iterations=10)
    torch.testing.assert_close(result.entropy[:, 0], torch.ones(3, dtype=torch.float64))
    assert (result.entropy[:, -1] < 0.9).all()
    assert (result.movement[:, -1] < result.movement[:, 1]).all()


def test_positions_of_a_convolutional_layer_are_averaged():
    model, x = Stacked(), images(2, 7)
    result = routing_convergence(model, x, "stack.layers.0")
    poses = trace_routing(model, x).layers["stack.layers.0"].steps[0].routed.poses  # [2 * 4, j, a, o]
    expected = poses.flatten(2).norm(dim=2).view(2, 4, 3).mean(1)
    torch.testing.assert_close(result.lengths[:, 0], expected)


def test_an_unknown_layer_is_named():
    with pytest.raises(ValueError, match="layer: expected one of class_capsules, got 'digits'"):
        routing_convergence(small(), images(1), "digits")


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
