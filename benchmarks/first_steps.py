"""The first step: seconds from a fresh process, with nothing compiled yet, to the end of its first backward pass.

PYTHONPATH=. python3 benchmarks/first_steps.py results/bench/first-steps-cuda.csv                      every model
PYTHONPATH=. python3 benchmarks/first_steps.py first.csv --models capsnet --ways "warm_up" "as it comes"
PYTHONPATH=. python3 benchmarks/first_steps.py first.csv --seconds 300                      goes on where it stopped

One model after another, each in a process of its own with an empty cache, so that all cores are its own. With `warm_up`
all kernels are compiled at once, as `fit` does; as it comes, one layer after another. Models that take no kernels show
what importing and a step take anyway.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = ("warm_up", "as it comes")


def measure(name: str, way: str, batch: int, began: float, out: Path) -> None:
    """A row more: seconds since `began`, when this process was started, and what they were spent on."""
    from capsroute.models import warming

    imported = time.time() - began
    if way != "warm_up":
        warming.warm_up = lambda *args, **options: 0
    done = warming.warm(name, batch)
    total = time.time() - began
    from capsroute.bench.measure import append_row

    row = {"model": name, "way": way, "batch": batch, "kernels": done.kernels, "import_s": imported}
    row |= {"warm_up_s": done.compiling, "step_s": done.first_step, "total_s": total}
    append_row(row | {"cores": os.cpu_count()}, out, "cuda")


def measured(path: Path) -> set[tuple[str, str]]:
    """Model and way of the rows that a file has."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {(row["model"], row["way"]) for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", help="all that are registered, unless given")
    parser.add_argument("--ways", nargs="+", default=["warm_up"], choices=WAYS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no model begins after that")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.began:
        measure(given.models[0], given.ways[0], given.batch, given.began, given.out)
        return
    if not given.models:
        from capsroute.models import list_models

        given.models = list_models()
    until = time.monotonic() + given.seconds
    done = measured(given.out)
    wanted = [(name, way) for name in given.models for way in given.ways if (name, way) not in done]
    for name, way in wanted:
        if time.monotonic() > until:
            print(f"stopped after {given.seconds:.0f} s, before {name}", flush=True)
            return
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, __file__, str(given.out), "--models", name, "--ways", way]
            command += ["--batch", str(given.batch), "--began", str(time.time())]
            found = subprocess.run(command, env={**os.environ, "TRITON_CACHE_DIR": cache}, check=False)
        print(f"{name}, {way}: {'done' if found.returncode == 0 else f'failed ({found.returncode})'}", flush=True)


if __name__ == "__main__":
    main()
