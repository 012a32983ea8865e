"""What is said while training: a live bar on a terminal, a line an epoch elsewhere."""

import io
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from capsroute.training import fit
from capsroute.training.progress import Reporter, SilentReporter, make_reporter
from tests.training.tiny import tiny, train


def report(folder, terminal, **changes):
    stream = io.StringIO()
    train(folder, reporter=Reporter(Console(file=stream, force_terminal=terminal, width=120)), **changes)
    return stream.getvalue()


def test_log_file_gets_one_line_an_epoch(tmp_path):
    text = report(tmp_path, terminal=False)
    assert [line.split("  ")[0] for line in text.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert "\x1b" not in text
    assert "\r" not in text


def test_terminal_gets_a_bar_with_what_one_wants_to_know(tmp_path):
    text = report(tmp_path, terminal=True, **{"training.epochs": 12})
    for fact in ("loss", "accuracy", "images/s", "━"):
        assert fact in text


def test_tensorboard_is_written_where_it_is_installed(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reporter = Reporter(Console(file=io.StringIO()), tensorboard=tmp_path / "events")
    train(tmp_path / "run", reporter=reporter)
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    assert len(events.Scalars("validation_accuracy")) == 2


def test_only_the_first_process_talks():
    assert type(make_reporter(False, None)) is SilentReporter
    assert type(make_reporter(True, None)) is Reporter


class Stub:
    """Takes any call, and remembers it."""

    def __init__(self, calls):
        self.calls, self.summary = calls, {}

    def __getattr__(self, name):
        return lambda *arguments, **options: (self.calls.append(name), self)[1]


def test_callbacks_of_the_documentation_run(tmp_path, monkeypatch):
    """TensorBoard for real where it is installed; the others against a stub."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    code = page.split("```python (needs the packages)\n")[1].split("```")[0]
    calls = {name: [] for name in ("wandb", "mlflow")}
    for name, heard in calls.items():
        monkeypatch.setitem(sys.modules, name, Stub(heard))
    if find_spec("tensorboard") is None:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Stub([]))
    names = {}
    exec(code, names)
    callbacks = [names[name]() for name in ("TensorBoard", "WeightsAndBiases", "MLflow")]
    fit(None, None, tiny(), tmp_path, reporter=SilentReporter(), callbacks=callbacks)
    assert calls["wandb"] == ["init", "log", "log", "finish"]
    assert calls["mlflow"] == ["start_run", "log_params", "log_metrics", "log_metrics", "end_run"]
    if find_spec("tensorboard") is not None:
        assert list((tmp_path / "mine").glob("events*"))
