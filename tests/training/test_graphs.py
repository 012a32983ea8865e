"""When a step cannot be replayed, the run says why before it begins. Replaying itself needs a GPU: test_gpu.py."""

from types import SimpleNamespace

import pytest
import torch

from capsroute.training.graphs import graphs_refused
from tests.training.tiny import tiny


@pytest.mark.parametrize(
    ("device", "size", "changes", "reason"),
    [
        ("cuda", 1, {}, None),
        ("cpu", 1, {}, "they need a GPU, this run is on cpu"),
        ("cuda", 2, {}, "one process only, this run has 2"),
        ("cuda", 1, {"training.accumulate": 2}, "batches must be whole, this run cuts them into 2 parts"),
        ("cuda", 1, {"loss.name": "spread"}, None),
    ],
)
def test_reason_is_given(device, size, changes, reason):
    world = SimpleNamespace(device=torch.device(device), size=size)
    refused = graphs_refused(tiny(**changes), world)
    assert refused is None if reason is None else refused.startswith(reason)
