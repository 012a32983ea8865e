"""Runs suites of `capsroute bench` without the command line's dependencies, as on a bare GPU machine.

PYTHONPATH=. python3 benchmarks/run.py results/bench paper large models        all of it, minutes long
PYTHONPATH=. python3 benchmarks/run.py results/bench paper --only dynamic      one algorithm
PYTHONPATH=. python3 benchmarks/run.py results/bench small --device cpu        on two CPU threads
"""

import argparse
from pathlib import Path

import torch

from capsroute.bench.suites import SUITES, run_suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("suites", nargs="+", choices=SUITES)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--jobs", type=int, default=0, help="compile in this many processes first")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(2)
    dtypes = ["float32"] if given.device == "cpu" else given.dtypes.split(",")
    for suite in given.suites:
        run_suite(suite, given.device, dtypes, given.out, not given.no_compile, given.jobs, given.only)


if __name__ == "__main__":
    main()
