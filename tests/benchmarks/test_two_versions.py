"""Two checkouts, timed in turns by a process of each."""

import subprocess
import sys
from pathlib import Path

from benchmarks.two_versions import difference

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "benchmarks" / "two_versions.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(CHECKOUT), "small", *args, "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, timeout=120)


def test_a_checkout_is_compared_with_itself_case_by_case():
    wanted = ("max_min 1152x8 -> 10x16, batch 1", "pooling 512x16 -> 1x16, batch 1, float32")
    done = run("grid", "--only", "|".join(wanted), "--rounds", "1", "--pairs", "2")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"{wanted[0]}, float32", f"{wanted[0]}6, float32", wanted[1]]
    assert all(float(number) > 0 for row in rows for number in row[1:4])
    assert all(float(row[4]) < 1e-5 for row in rows)


def test_results_that_differ_are_told_by_the_worst_of_them():
    assert difference([1.0, 2.0, 4.0], [9.0, 2.0, 3.0]) == 0.25


def test_a_case_that_is_not_there_is_named():
    done = run("--only", "no such layer")
    assert done.returncode == 2
    assert "--only: no case of small has 'no such layer' in its name" in done.stderr
