import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from experiments.training import Stack, append, read, run_all, schedule


def make_stack(seeds, rates):
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    data = [inputs, inputs.sum(1, keepdim=True)]
    return Stack(lambda: nn.Linear(3, 1), seeds, rates, data, 1, F.mse_loss, steps=20, batch=8)


def test_a_network_in_a_stack_is_the_network_alone():
    many, alone = make_stack((1, 2, 3), (0.1, 0.01, 0.1)), make_stack((2,), (0.01,))
    assert torch.allclose(many.train(20)[1], alone.train(20)[0], atol=1e-6)
    assert torch.allclose(many.parameters["weight"][1], alone.parameters["weight"][0], atol=1e-6)
    assert torch.allclose(many.outputs(many.data[0], piece=7)[1], alone.outputs(many.data[0])[0], atol=1e-6)


def test_steps_are_those_of_adam_with_clipping():
    stack = make_stack((1,), (0.1,))
    torch.manual_seed(1)
    network = nn.Linear(3, 1)
    optimiser = torch.optim.Adam(network.parameters(), betas=(0.9, 0.99))
    for step in range(20):
        rows = stack.rows[step, 0]
        optimiser.param_groups[0]["lr"] = 0.1 * schedule(step / 20)
        optimiser.zero_grad()
        F.mse_loss(network(stack.data[0][rows]), stack.data[1][rows]).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
    stack.train(20)
    assert torch.allclose(stack.parameters["weight"][0], network.weight, atol=1e-4)


def test_one_network_that_breaks_leaves_the_others_alone():
    stack, alone = make_stack((1, 2), (1e30, 0.01)), make_stack((2,), (0.01,))
    stack.train(20)
    alone.train(20)
    assert torch.allclose(stack.parameters["weight"][1], alone.parameters["weight"][0], atol=1e-6)


def square(job):
    if job == 3:
        raise RuntimeError("three")
    return [{"job": job, "value": job**2}]


@pytest.mark.parametrize("at_once", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_of_jobs_that_end_are_written_and_failures_are_told(tmp_path, capsys, monkeypatch, at_once):
    monkeypatch.setenv("CAPSROUTE_REVISION", "abc")
    path = tmp_path / "deep" / "rows.csv"
    append(path, square(1))
    run_all(square, [2, 3], path, at_once, seconds=60)
    assert read(path) == [{"job": str(n), "value": str(n * n), "revision": "abc"} for n in (1, 2)]
    assert "failed 3" in capsys.readouterr().out


def dies_with_graphs(job):
    if os.environ.get("EXPERIMENTS_GRAPHS") != "0":
        os._exit(7)
    return [{"job": job}]


@pytest.mark.slow
def test_a_process_that_dies_is_tried_again_without_graphs(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("EXPERIMENTS_GRAPHS", raising=False)
    run_all(dies_with_graphs, [1], tmp_path / "rows.csv", 1, seconds=60)
    assert [row["job"] for row in read(tmp_path / "rows.csv")] == ["1"]
    assert "exit code 7" in capsys.readouterr().out
