"""Times this checkout's layers against another checkout's, in turns: one process of each, a step here, a step there.

PYTHONPATH=. python3 benchmarks/two_versions.py ../before small --device cpu              one thread, by its own clock
PYTHONPATH=. python3 benchmarks/two_versions.py ../before paper grid --only 'em |max_min'  on a GPU, as CUDA graphs

Two runs on a machine that others use differ by more than two versions do. Steps that follow each other do not: of the
ratios of such pairs the median is printed, forward and backward, and by how much the lengths of what they computed
differ. Processes start anew several times, since how one's memory happens to lie makes up to a third of a short step on
a CPU. The other checkout needs `capsroute.bench.cases`, and `capsroute.bench.grid` for that suite.
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
from capsroute.bench.cases import Case
from capsroute.bench.measure import capture, forward_backward, together

SUITES = {"paper": "PAPER_CASES", "conv": "CONV_CASES", "small": "SMALL_CASES", "sizes": "SIZE_CASES", "grid": ""}


def layers(suites: list[str], only: str) -> dict[str, tuple[Case, str]]:
    """Layers and dtypes by name, of which one of the texts between bars is a part."""
    found = [(case, dtype) for suite in suites for case in getattr(cases, SUITES[suite], ()) for dtype in case.dtypes]
    if "grid" in suites:
        from capsroute.bench.grid import points

        found += [(point.case, point.dtype) for point in points()]
    named = {f"{case.name}, {dtype}": (case, dtype) for case, dtype in found}
    return {name: layer for name, layer in named.items() if any(text in name for text in only.split("|"))}


def step_of(case: Case, dtype: str, device: str) -> tuple[Callable[[], object], str]:
    """A step of a layer, and the lengths of its poses and gradients."""
    tensors, route = list(case.tensors(getattr(torch, dtype), device).values()), case.ours()
    with torch.no_grad():
        gradient = torch.ones_like(route(*tensors))
    step = forward_backward(route, tensors, gradient)
    lengths = " ".join(str(float(t.double().norm())) for t in step() if t is not None)
    replay = capture(step) if device == "cuda" else step
    replay.step = step  # type: ignore[attr-defined]  # a graph of earlier versions does not keep what it reads
    return replay, lengths


def work(suites: list[str], only: str, device: str) -> None:
    """Names of all steps; then, for each name that comes in, how many milliseconds it took, and those lengths."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    found = layers(suites, only)
    print("\t".join(found), flush=True)
    made, step, lengths = None, None, ""
    for name in map(str.strip, sys.stdin):
        if name != made:
            step = None  # its memory is free before the next one's is taken
            made, (step, lengths) = name, step_of(*found[name], device)
        print(together([step], device, budget=0, least=1, warm=0)[0], lengths, flush=True)


def start(checkout: Path) -> subprocess.Popen[str]:
    """This file in a process that imports capsroute from there."""
    command = [sys.executable, __file__, *sys.argv[1:], "--work"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=checkout, env=environment, stdin=pipe, stdout=pipe, text=True)


def ask(process: subprocess.Popen[str], name: str) -> list[float]:
    """Milliseconds, and lengths."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return [float(number) for number in process.stdout.readline().split()]


def pairs(checkouts: tuple[Path, Path], count: int) -> Iterator[tuple[str, tuple[list[float], list[float]]]]:
    """So many pairs of answers about every case that both have, from a process of each."""
    both = [start(checkout) for checkout in checkouts]
    try:
        names = [process.stdout.readline().rstrip("\n").split("\t") for process in both if process.stdout is not None]
        for name in (name for name in names[1] if name in names[0]):
            for process in both:
                ask(process, name)  # it is made, and has run once
            for turn in range(count):
                first = ask(both[turn % 2], name)  # who comes second finds the cache as the first left it
                second = ask(both[1 - turn % 2], name)
                yield name, (second, first) if turn % 2 else (first, second)
    finally:
        for process in both:
            process.kill()


def difference(before: list[float], now: list[float]) -> float:
    """The largest of the lengths' relative differences."""
    return max(abs(one - other) / max(abs(one), 1e-30) for one, other in zip(before[1:], now[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("suites", nargs="+", choices=list(SUITES))
    parser.add_argument("--only", default="", help="only cases with one of these texts in their name: 'em |max_min'")
    parser.add_argument("--rounds", type=int, default=5, help="of new processes")
    parser.add_argument("--pairs", type=int, default=15, help="of steps, in each round")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.suites, given.only, given.device)
        return
    if not layers(given.suites, given.only):
        parser.error(f"--only: no case of {', '.join(given.suites)} has {given.only!r} in its name")
    answers: dict[str, list[tuple[list[float], list[float]]]] = defaultdict(list)
    for _ in range(given.rounds):
        for name, pair in pairs((given.before.resolve(), Path(__file__).resolve().parents[1]), given.pairs):
            answers[name].append(pair)
    print("| | before, ms | now, ms | times as fast | lengths differ by |\n|---|---|---|---|---|")
    for name, found in answers.items():
        before, now = (statistics.median(answer[0] for answer in column) for column in zip(*found))
        ratio = statistics.median(before[0] / now[0] for before, now in found)
        worst = max(difference(before, now) for before, now in found)
        print(f"| {name} | {before:.3g} | {now:.3g} | {ratio:.2f} | {worst:.1g} |")


if __name__ == "__main__":
    main()
