"""Runs a test file once more in a process in which Triton interprets its kernels, on a CPU."""

import os
import subprocess
import sys
from pathlib import Path


def passes_under_the_interpreter(file: str) -> None:
    command = [sys.executable, "-m", "pytest", file, "-p", "no:xdist", "-p", "no:randomly"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
