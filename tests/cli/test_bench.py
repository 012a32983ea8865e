"""`capsroute bench`."""

import csv

import pytest

testing = pytest.importorskip("typer.testing")


def run(*arguments: str):
    from capsroute.cli.app import app

    return testing.CliRunner().invoke(app, ["bench", *arguments])


def test_an_unknown_suite_lists_the_known_ones():
    result = run("fastest")
    assert result.exit_code == 2
    plain = " ".join(result.output.replace("│", " ").split())  # without the frame
    assert "paper, small, large, conv, sizes, grid" in plain


def test_one_case_is_measured_and_written(tmp_path):
    result = run("small", "--device", "cpu", "--no-compile", "--only", "pooling", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    with (tmp_path / "small-cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["implementation"] for row in rows] == ["capsroute", "textbook"]
    assert float(rows[0]["error_poses"]) < 1e-5
