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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32,bfloat16", "float8", ""])
def test_a_dtype_that_is_not_measured_is_refused_and_not_passed_over(dtype, tmp_path):
    result = run("small", "--device", "cpu", "--dtype", dtype, "--only", "pooling", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert not any(tmp_path.iterdir())


def test_one_case_is_measured_and_written(tmp_path):
    result = run("small", "--device", "cpu", "--no-compile", "--only", "pooling", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    with (tmp_path / "small-cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["implementation"] for row in rows] == ["capsroute", "textbook"]
    assert float(rows[0]["error_poses"]) < 1e-5
