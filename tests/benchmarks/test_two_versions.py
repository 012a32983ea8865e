"""Two checkouts, timed in turns by a process of each."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "benchmarks" / "two_versions.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(CHECKOUT), "small", "--device", "cpu", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, timeout=120)


def test_a_checkout_is_compared_with_itself_case_by_case():
    done = run("--only", "max_min 1152x8 -> 10x16, batch 1", "--rounds", "1", "--pairs", "2")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| max_min 1152x8 -> 10x16, batch {b}, float32" for b in (1, 16)]
    assert all(float(number.strip("| ")) > 0 for row in rows for number in row[1:])


def test_a_case_that_is_not_there_is_named():
    done = run("--only", "no such layer")
    assert done.returncode == 2
    assert "--only: no case of small has 'no such layer' in its name" in done.stderr
