"""`capsroute explore`: what it refuses in one line, and what it says before it serves."""

import pytest

import capsroute as cr
from capsroute.cli import explore as command
from capsroute.explorer import server
from tests.cli.runs import call


@pytest.fixture
def weights(tmp_path):
    cr.save_model(cr.create_model("capsnet_small", image_size=8), tmp_path / "weights")
    return str(tmp_path / "weights")


def asked(*arguments):
    return call("explore", *arguments)


def test_a_folder_of_something_else_is_not_written_into(weights, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    answer = asked(weights, "--static", str(tmp_path / "mine"))
    assert answer.exit_code != 0
    assert "expected a new folder" in answer.output
    assert "Traceback" not in answer.output


def test_several_runs_are_served_under_their_names(weights, monkeypatch, tmp_path):
    cr.save_model(cr.create_model("capsnet_small", image_size=8), tmp_path / "other")
    served = {}
    monkeypatch.setattr(server, "serve", lambda networks, opened, host: (served.update(networks), opened.close()))
    answer = asked(weights, str(tmp_path / "other"), "--port", "0", "--no-browser", "--host", "0.0.0.0")
    assert answer.exit_code == 0, answer.output
    assert list(served) == ["weights", "other"]
    assert "open to everyone who reaches this machine" in answer.output
    assert "http://127.0.0.1:" in answer.output


def test_an_address_of_every_kind_is_written_as_browsers_take_it():
    assert command._address("127.0.0.1", 80) == command._address("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert command._address("::", 80) == "http://[::1]:80/"
    assert command._address("fe80::1", 80) == "http://[fe80::1]:80/"
