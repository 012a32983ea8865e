import subprocess
import sys

import pytest
from typer.testing import CliRunner

from capsroute.cli.app import COMMANDS, app
from capsroute.cli.names import parse_variant


def test_the_old_name_is_taken_and_warns():
    with pytest.warns(DeprecationWarning, match="--routing dynamic is deprecated since capsroute 0.2"):
        assert parse_variant("dynamic") == "as_trained"


def test_names_are_taken_with_dashes_and_others_refused():
    assert parse_variant("as-trained") == "as_trained"
    with pytest.raises(ValueError, match="--routing: expected one of as_trained, fast, uniform, got 'all'"):
        parse_variant("all")


def test_where_something_goes_is_the_same_word_in_every_command():
    for name in COMMANDS:
        said = CliRunner().invoke(app, [name, "--help"]).output
        assert "--output" not in said, name


def test_who_types_a_command_reads_that_an_option_goes():
    command = [sys.executable, "-m", "capsroute", "export", "no-such-run", "--output", "file.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "capsroute: --output is deprecated since capsroute 0.2 and goes in 0.4; write --out\n"
    )
