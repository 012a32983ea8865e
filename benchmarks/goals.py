"""Writes <folder>/README.md, every goal of the kernels beside what the CSV files in the folder hold, and plots.

What else a reader must know of the files stands in <folder>/notes.md, which becomes a part of it.

PYTHONPATH=. python3 benchmarks/goals.py results/bench
"""

import csv
import os
import sys
from pathlib import Path

from capsroute.bench.goals import growth, page, slower
from capsroute.bench.report import draw, read_csv

TEXT = """# Benchmarks

Written by `python benchmarks/goals.py results/bench` from the CSV files beside it; `capsroute bench` and
`benchmarks/run.py` write those. Ours and the textbook form ran in one process on the same tensors. Times are medians;
"in graphs" is the replay of a CUDA graph; memory is the peak beyond the inputs; every row of a CSV names the hardware
and the versions. `paper` holds the layers of the papers, `models` whole networks, `large` what papers call out of
reach, `conv` windows over maps, `folded` fast routing, `sweeps` how time and memory grow, `small` sizes for a CPU. On a
CPU implementations run in turns; where it says "CPU time", others used the machine and the thread's own clock was read.

{machines}

## Goals

{goals}

## Where others are faster

Layers of a few small operations spend their time on the host when they are called one by one; a CUDA graph or
torch.compile removes that. Forward and backward, in milliseconds:

{slower}

## Notes

{notes}

## Growth

One size doubled at a time, as often as a line says: at most until memory is full or a step takes 50 ms (GPU) or 1 s
(CPU). The exponent is fitted on the larger half of the sizes. What is missing was not run.

{growth}
"""


def machines(folder: Path) -> str:
    """Which file was measured on what."""
    lines = []
    for path in sorted(folder.glob("*-c*.csv")):
        with path.open(newline="") as file:
            row = next(csv.DictReader(file))
        about = ", ".join(f"{name} {row[name]}" for name in ("torch", "triton", "python"))
        lines.append(f"- `{path.name}`: {row['hardware']}, {about}")
    return "\n".join(lines)


def listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "Nothing was measured."


def main() -> None:
    folder = Path(sys.argv[1])
    aside = folder / "README.part"
    parts = {"machines": machines(folder), "slower": listed(slower(folder)), "growth": listed(growth(folder))}
    notes = folder / "notes.md"
    parts["notes"] = notes.read_text().strip() if notes.exists() else "None."
    aside.write_text(TEXT.format(goals=page(folder), **parts))
    os.replace(aside, folder / "README.md")
    for path in [*folder.glob("paper-*.csv"), *folder.glob("small-*.csv")]:
        draw(read_csv(path), path.with_suffix(".png"))


if __name__ == "__main__":
    main()
