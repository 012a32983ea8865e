"""Times this checkout's layers against another checkout's, in turns: one process of each, a step here, a step there.

PYTHONPATH=. python3 benchmarks/two_versions.py ../before small --device cpu              one thread, by its own clock
PYTHONPATH=. python3 benchmarks/two_versions.py ../before paper conv --only max_min       on a GPU, as CUDA graphs

Two runs on a machine that others use differ by more than two versions do. Steps that follow each other do not: of the
ratios of such pairs the median is printed, forward and backward. Processes start anew several times, since how one's
memory happens to lie makes up to a third of a short step on a CPU. The other checkout needs `capsroute.bench.cases`.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from capsroute.bench import cases
from capsroute.bench.measure import capture, forward_backward, together

SUITES = {"paper": "PAPER_CASES", "conv": "CONV_CASES", "small": "SMALL_CASES"}


def steps(suites: list[str], only: str, device: str) -> dict[str, Callable[[], object]]:
    """A step of every case, by its name and dtype."""
    found: dict[str, Callable[[], object]] = {}
    for case in (case for suite in suites for case in getattr(cases, SUITES[suite])):
        for dtype in case.dtypes if only in case.name else ():
            tensors, route = list(case.tensors(getattr(torch, dtype), device).values()), case.ours()
            with torch.no_grad():
                gradient = torch.ones_like(route(*tensors))
            step = forward_backward(route, tensors, gradient)
            step()
            replay = capture(step) if device == "cuda" else step
            replay.step = step  # type: ignore[attr-defined]  # a graph of earlier versions does not keep what it reads
            found[f"{case.name}, {dtype}"] = replay
    return found


def work(suites: list[str], only: str, device: str) -> None:
    """Names of all steps; then, for each name that comes in, how many milliseconds it took."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    found = steps(suites, only, device)
    print("\t".join(found), flush=True)
    for name in sys.stdin:
        print(together([found[name.strip()]], device, budget=0, least=1, warm=0)[0], flush=True)


def start(checkout: Path) -> subprocess.Popen[str]:
    """This file in a process that imports capsroute from there."""
    command = [sys.executable, __file__, *sys.argv[1:], "--work"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=checkout, env=environment, stdin=pipe, stdout=pipe, text=True)


def ask(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def pairs(checkouts: tuple[Path, Path], count: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """So many pairs of milliseconds of every case that both have, from a process of each."""
    both = [start(checkout) for checkout in checkouts]
    try:
        names = [process.stdout.readline().rstrip("\n").split("\t") for process in both if process.stdout is not None]
        for name in (name for name in names[1] if name in names[0]):
            for turn in range(count):
                first = ask(both[turn % 2], name)  # who comes second finds the cache as the first left it
                second = ask(both[1 - turn % 2], name)
                yield name, (second, first) if turn % 2 else (first, second)
    finally:
        for process in both:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("suites", nargs="+", choices=list(SUITES))
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    parser.add_argument("--rounds", type=int, default=5, help="of new processes")
    parser.add_argument("--pairs", type=int, default=15, help="of steps, in each round")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.suites, given.only, given.device)
        return
    if not any(given.only in case.name for suite in given.suites for case in getattr(cases, SUITES[suite])):
        parser.error(f"--only: no case of {', '.join(given.suites)} has {given.only!r} in its name")
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(given.rounds):
        for name, pair in pairs((given.before.resolve(), Path(__file__).resolve().parents[1]), given.pairs):
            times[name].append(pair)
    print("| | before, ms | now, ms | times as fast |\n|---|---|---|---|")
    for name, found in times.items():
        before, now = (statistics.median(column) for column in zip(*found))
        ratio = statistics.median(before / now for before, now in found)
        print(f"| {name} | {before:.3g} | {now:.3g} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
