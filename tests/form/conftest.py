"""What all tests of kernels get."""

import contextlib
import importlib.util

import pytest
import torch

from tests.form.interpreter import quicker_interpreter
from tests.form.kernels import INTERPRETED


@pytest.fixture(scope="session", autouse=True)
def _quicker_interpreter():
    with quicker_interpreter() if INTERPRETED else contextlib.nullcontext():
        yield


def pytest_collection_modifyitems(config, items):
    """The interpreter's process runs what needs or takes kernels; all else runs without it, in the other process."""
    if not INTERPRETED:
        return
    marks = {"skipif", "kernels"}
    plain = [
        item
        for item in items
        if not marks & {mark.name for mark in item.iter_markers()} and "launched" not in item.fixturenames
    ]
    config.hook.pytest_deselected(items=plain)
    items[:] = [item for item in items if item not in plain]


@pytest.fixture
def launched(monkeypatch) -> list[str]:
    """The names of the kernels that ran; what they are asked to fill is NaN before."""
    pytest.importorskip("triton")
    from capsroute.form.gaussian.stored import _sequences
    from capsroute.form.launch import Kernel, LaunchSequence

    ran: list[str] = []
    _sequences.cache_clear()  # tests change plans
    call, again = Kernel.__call__, LaunchSequence.__call__
    # Compiled as they come: a call that compiles ahead is made twice, the first time without all of its launches.
    monkeypatch.setattr("capsroute.form.launch.collecting", lambda: None)

    def counted(self, *args, **flags):
        ran.append(self.name)
        return call(self, *args, **flags)

    def counted_again(self, kernel, *args, **flags):
        if self._ready is not None:  # otherwise it calls the kernel
            ran.append(kernel.name)
        return again(self, kernel, *args, **flags)

    monkeypatch.setattr("capsroute.form.ahead.INTERPRETED", True)  # compiled as they come: a call is made once
    monkeypatch.setattr(Kernel, "__call__", counted)
    monkeypatch.setattr(LaunchSequence, "__call__", counted_again)
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty is then full of NaN
    yield ran
    torch.use_deterministic_algorithms(False)
    _sequences.cache_clear()


@pytest.fixture
def ahead(monkeypatch):
    """The module, as it is where kernels are compiled."""
    from capsroute.form import ahead

    monkeypatch.setattr(ahead, "INTERPRETED", False)
    return ahead


@pytest.fixture
def in_passes(monkeypatch) -> None:
    """The loop pass by pass, which small layers do not take."""
    pytest.importorskip("triton")
    monkeypatch.setattr("capsroute.form.loop.calls.stored_plan", lambda *_: None)


@pytest.fixture
def votes_kept(monkeypatch):
    """Children shared out over programs that walk over their stored votes, several tiles each, as of few samples."""
    from capsroute.form.launches.stored_votes import kept_plan

    monkeypatch.setattr("capsroute.form.loop.calls.resident_plan", lambda *sizes: None)
    monkeypatch.setattr("capsroute.form.cost.keeps_votes", lambda sizes: True)
    monkeypatch.setattr("capsroute.form.launches.stored_votes.KEPT_TILE", 256)
    monkeypatch.setattr("capsroute.form.cost.CORES", 2)
    kept_plan.cache_clear()
    yield
    kept_plan.cache_clear()


@pytest.fixture
def children_shared_out(monkeypatch):
    """Children of a sample over many programs, as in layers of shared transforms, many children and few samples."""
    from capsroute.form.launches.shared_transforms import shared_plan

    monkeypatch.setattr("capsroute.form.loop.shared.splits_samples", lambda *sizes: True)
    monkeypatch.setattr("capsroute.form.cost.CORES", 4)  # two shares of 37 children
    shared_plan.cache_clear()
    yield
    shared_plan.cache_clear()


@pytest.fixture
def parents_shared_out(monkeypatch):
    """Two parents a program, or one of a single sample, as in layers of few samples."""
    from capsroute.form.launches.stored_votes import resident_plan

    monkeypatch.setattr("capsroute.form.cost.splits_votes", lambda *sizes: True)
    monkeypatch.setattr("capsroute.form.launches.stored_votes.SPLIT_TILE", 256)
    monkeypatch.setattr("capsroute.form.cost.CORES", 7)
    resident_plan.cache_clear()
    yield
    resident_plan.cache_clear()


@pytest.fixture
def many_products(monkeypatch) -> None:
    """Steps of attention by the matrix unit, one by one, which small lists do not take."""
    if importlib.util.find_spec("triton") is not None:
        monkeypatch.setattr("capsroute.form.attention.calls.few_launch", lambda sizes: None)
        monkeypatch.setattr("capsroute.form.attention.whole._plan", lambda *sizes: None)
        monkeypatch.setattr("capsroute.form.attention.whole.attends_in_passes", lambda sizes: False)
        monkeypatch.setattr("capsroute.form.dispatch._known", {})
