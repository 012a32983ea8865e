"""Launches over stored votes are kept in sequence, for calls that make the same ones."""

import itertools
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from capsroute.form import ahead
from capsroute.form.gaussian import loop, passes, stored
from capsroute.form.launch import Kernel, Ready
from capsroute.form.sizes import sizes_of


@pytest.fixture
def log(monkeypatch) -> Iterator[list[tuple]]:
    """Kernels that are launched: name and flags. None runs."""
    made: list[tuple] = []

    def call(self, launch, kind, *args, **flags) -> Ready:
        ready = Ready(lambda *_: made.append((self.name, *flags.items())), launch.grid, (), ())
        ready.run(None, args)
        return ready

    monkeypatch.setattr(ahead, "INTERPRETED", True)
    monkeypatch.setattr(Kernel, "__call__", call)
    yield made
    stored._sequences.cache_clear()


def calls(b: int = 2, i: int = 3, j: int = 2, a: int = 1, k: int = 5, o: int = 3) -> list:
    """Of one size, each of which makes other launches."""
    u, W, bias = torch.zeros(b, i, a, k), torch.zeros(i, j, k, o), torch.zeros(i, j, a, o)
    gate, use, one, scale = torch.zeros(b, i), torch.zeros(i, j), torch.zeros(1, j), torch.ones(b, 1)
    poses, weights = torch.zeros(b, j, a, o), torch.zeros(b, i, j)
    found: list = []
    for tensors, heinsen in (
        ((gate, use, use, None), True),
        ((gate, use, use, scale), True),
        ((gate, one, one, None), False),
    ):
        for given in (None, bias):
            inputs = (u, W, given, *tensors)
            numbers = ([1.0, 1.0, 1.0], 1e-5, heinsen)
            kept = loop.loop_forward(*inputs, *numbers)[3:]
            found.append(lambda inputs=inputs, numbers=numbers: loop.loop_forward(*inputs, *numbers))
            for grads in ((poses, None, None, None), (poses, poses, torch.zeros(b, j), kept[0])):
                found.append(
                    lambda grads=grads, inputs=inputs, kept=kept, numbers=numbers: loop.loop_backward(
                        grads, inputs, kept, *numbers
                    )
                )
    for beta in (None, use):
        kept = passes.moments_forward(u, W, None, weights, beta, 0.1)[4:]
        found.append(lambda beta=beta: passes.moments_forward(u, W, None, weights, beta, 0.1))
        for grads in ((poses, None, None, None), (None, poses, torch.zeros(b, j), None)):
            found.append(
                lambda grads=grads, beta=beta, kept=kept: passes.moments_backward(
                    grads, (u, W, None, weights, beta), kept, 0.1
                )
            )
    found.append(lambda: passes.density_forward(u, W, None, poses, poses))
    found.append(lambda: passes.density_backward((weights,), (u, W, None, poses, poses), ()))
    return found


def test_launches_are_kept_for_betas_of_each_dtype(log):
    """A kernel that was compiled for others would read them wrong."""
    u, W, gate = torch.zeros(2, 3, 1, 5), torch.zeros(3, 2, 5, 3), torch.zeros(2, 3)
    kept, numbers = stored._sequences(sizes_of(u, W)), ([1.0, 1.0], 1e-5, True)
    for n, dtypes in enumerate(itertools.product((torch.float32, torch.bfloat16), repeat=2)):
        inputs = (u, W, None, gate, *(torch.zeros(3, 2, dtype=dtype) for dtype in dtypes), None)
        poses, *_, shares, statistics, brief = loop.loop_forward(*inputs, *numbers)
        loop.loop_backward((poses, None, None, None), inputs, (shares, statistics, brief), *numbers)
        assert len(kept) == 2 * (n + 1)


def test_a_call_that_is_made_again_makes_the_launches_of_its_own_kind(log):
    made: list[list[tuple]] = []
    asked = calls()
    for _ in range(2):
        for call in asked:
            log.clear()
            call()
            made.append(list(log))
    assert all(made)
    assert made[: len(asked)] == made[len(asked) :]
    assert len({str(launches) for launches in made}) == len(asked)
