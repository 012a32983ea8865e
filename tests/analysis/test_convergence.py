"""Agreement, entropy and movement of each iteration against loops over dense votes."""

import math

import pytest
import torch

from capsroute.analysis import routing_convergence, trace_routing
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
