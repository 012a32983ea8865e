"""Runs the suites of `capsroute bench` and more, with limits of time and processes that compile first.

Needs none of the command line's dependencies, as on a bare GPU machine.

PYTHONPATH=. python3 benchmarks/run.py results/bench paper large models folded sweeps --jobs 16     all of it
PYTHONPATH=. python3 benchmarks/run.py results/bench paper=60 models=40 --jobs 16                   seconds a suite
PYTHONPATH=. python3 benchmarks/run.py results/bench paper --only dynamic                           one algorithm
PYTHONPATH=. python3 benchmarks/run.py results/bench small --device cpu                             two CPU threads
PYTHONPATH=. python3 benchmarks/run.py results/bench small --device cpu --threads 1                 CPU time
"""

import argparse
import math
import time
from pathlib import Path

import torch

from benchmarks.suites import SUITES, Options, run_suites


def suite(text: str) -> tuple[str, float]:
    """A suite's name and, after an equals sign, how many seconds it may take."""
    name, _, limit = text.partition("=")
    if name not in SUITES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(SUITES)}, got {name!r}")
    return name, float(limit or math.inf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("suites", nargs="+", type=suite, metavar="SUITE[=SECONDS]")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--threads", type=int, default=2, help="on a CPU; one is timed by its own clock")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--only", default="", help="only what has one of these texts in its name: 'em|capsnet'")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--jobs", type=int, default=0, help="compile in this many processes first")
    parser.add_argument("--prepare-limit", type=float, default=600, help="for at most this many seconds")
    parser.add_argument("--after", type=Path, help="compile first, measure once this file exists: when the GPU is free")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(given.threads)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:.0f} s] {line}", flush=True)

    dtypes = ["float32"] if given.device == "cpu" else given.dtypes.split(",")
    options = Options(
        given.device, dtypes, given.out, not given.no_compile, given.only, given.jobs, given.prepare_limit, given.after,
        say,
    )  # fmt: skip
    run_suites(dict(given.suites), options)


if __name__ == "__main__":
    main()
