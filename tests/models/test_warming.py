"""Warming a model up: its kernels are collected in one go through a step that leaves no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import capsroute as cr
from capsroute.form import ahead, dispatch
from capsroute.form.launch import Kernel
from capsroute.models.warming import warm, warm_up
from capsroute.training.checkpoint import random_state


@pytest.fixture
def rounds(monkeypatch):
    """What would be compiled together, and then again. Kernels apply on a CPU; nothing is compiled or launched."""
    found: list[list] = []
    monkeypatch.setattr(ahead, "INTERPRETED", False)
    monkeypatch.setattr(ahead, "compile_together", lambda missing: found.append(missing) or len(missing))
    monkeypatch.setattr(Kernel, "_compile", lambda self, launch, args, options: (None, options))
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(dispatch, "_known", {})
    monkeypatch.setattr("capsroute.routing.routed.check_no_nan", lambda *_: None)
    return found


@pytest.fixture
def nothing_is_zero_by_luck():
    """What is allocated is NaN until somebody fills it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Network(nn.Module):
    """Two layers that route, with a buffer and random numbers between them."""

    def __init__(self):
        super().__init__()
        self.normalise, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.first = cr.layers.CapsuleLinear(6, 5, 4, 4)
        self.second = cr.layers.CapsuleLinear(5, 3, (2, 2), (2, 2), routing="heinsen")

    def forward(self, x):
        poses = self.first(self.dropout(self.normalise(x))[:, :, None]).poses
        return self.second(poses.reshape(-1, 5, 2, 2), torch.zeros(len(x), 5)).poses


def loss(model, x):
    value = model(x).square().sum()
    if not value.isfinite():
        raise ValueError("expected numbers")
    return value


def names(missing):
    return {each.jit.fn.__name__ for each in missing}


@pytest.mark.usefixtures("nothing_is_zero_by_luck")
def test_one_round_has_all_that_the_first_step_would_compile(rounds):
    torch.manual_seed(0)
    model, x = Network(), torch.randn(2, 6, 4)
    assert warm_up(model, loss, (x,)) > 8
    [together] = rounds
    rounds.clear()
    model(x).sum().backward()
    assert len(rounds) > 2  # layer by layer, where nobody warmed up
    assert names(together) >= set().union(*map(names, rounds))


def test_a_step_that_is_gone_through_leaves_no_trace(rounds):
    def with_chance(model, x):
        return loss(model, x) * (1 + random.random() + np.random.rand())

    torch.manual_seed(0)
    model, x = Network(), torch.randn(2, 6, 4)
    model.first.W.grad = torch.ones_like(model.first.W)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = random_state(torch.device("cpu"))
    warm_up(model, with_chance, (x,))
    still = random_state(torch.device("cpu"))
    assert torch.equal(drawn.pop("torch"), still.pop("torch"))
    assert drawn == still
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(model.first.W.grad, torch.ones_like(model.first.W))
    assert model.second.W.grad is None


def test_a_step_that_fails_is_left_where_it_failed(rounds):
    def no_loss(model, x):
        model(x)
        raise ZeroDivisionError

    model = Network()
    before = model.normalise.running_mean.clone()
    assert warm_up(model, no_loss, (torch.randn(2, 6, 4),)) > 0
    assert torch.equal(model.normalise.running_mean, before)


def test_nothing_to_do_on_a_cpu():
    def never(*_):
        raise AssertionError

    assert warm_up(Network(), never, ()) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
def test_without_a_gpu_it_says_so():
    with pytest.raises(ValueError, match="there is no CUDA device"):
        warm("capsnet")


@pytest.mark.gpu
def test_the_first_step_compiles_nothing_more():
    done = warm("capsnet", 32)
    assert done.kernels > 5
    assert done.first_step < 3
