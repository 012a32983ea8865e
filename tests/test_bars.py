"""Progress bars: on a terminal, for everything that is silent for long; nowhere else."""

import io

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import capsroute as cr
from capsroute import bars
from capsroute.cli.app import app
from tests.cli.runs import make_run


@pytest.fixture
def terminal(monkeypatch):
    """What a user at a terminal sees on standard error."""
    seen = io.StringIO()
    monkeypatch.setattr(bars, "_console", lambda: Console(file=seen, force_terminal=True, width=120))
    return seen


def test_a_bar_advances_and_goes(terminal):
    with bars.bar("counting", total=4) as advance:
        advance(1)
    assert "counting" in terminal.getvalue()
    assert "25%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # its line is wiped


def test_nothing_is_drawn_into_a_log_file(capfd):
    assert list(bars.watched([1, 2], "counting")) == [1, 2]
    assert capfd.readouterr() == ("", "")


def test_batches_can_be_watched_twice_and_keep_their_length(terminal):
    watched = bars.watched([1, 2, 3], "counting")
    assert len(watched) == 3
    assert list(watched) == list(watched) == [1, 2, 3]
    assert "100%" in terminal.getvalue()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["evaluate", "--device", "cpu", "--routing", "as_trained"], "testing digits, as trained"),
        (["accumulate", "--device", "cpu"], "accumulating"),
        (["export", "--format", "safetensors"], "exporting"),
    ],
)
@pytest.mark.filterwarnings("ignore:the network classifies")
def test_commands_that_are_silent_for_long_show_one(command, text, terminal, tmp_path):
    run = make_run(tmp_path / "run")
    done = CliRunner().invoke(app, [command[0], str(run), *command[1:]])
    assert done.exit_code == 0, done.output
    assert text in terminal.getvalue()


@pytest.mark.parametrize("live", [True, False])
def test_testing_after_training_shows_one_unless_the_reporter_is_silent(live, terminal, tmp_path, monkeypatch):
    monkeypatch.setattr(cr.training.SilentReporter, "live", live)
    make_run(tmp_path / "run")
    assert ("testing digits" in terminal.getvalue()) is live


def test_predict_shows_one_where_there_is_more_than_a_batch(terminal):
    model = cr.create_model("capsnet_small", image_size=8).eval()
    cr.predict(model, torch.rand(3, 1, 8, 8))
    assert terminal.getvalue() == ""
    cr.predict(model, torch.rand(3, 1, 8, 8), batch_size=2)
    assert "images" in terminal.getvalue()
