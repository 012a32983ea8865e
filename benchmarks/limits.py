"""How close the layers of the papers, and sizes beside them, are to what the chip allows, from a CSV of the suite.

PYTHONPATH=. python3 benchmarks/limits.py results/bench/paper-cuda.csv

Bytes: every operand read once forward and once back, every gradient written once. Operations: the products that the
algorithm must make, coefficients and votes never stored. The larger of the two times is the limit.
"""

from __future__ import annotations

import sys

from capsroute.bench.cases import PAPER_CASES, SIZE_CASES, Case
from capsroute.bench.measure import Row, read_rows

COPY = 4.3e12  # bytes a second, a large copy, measured on an H200
MATRIX = {"bfloat16": 790e12, "float32": 395e12}  # operations a second: bf16 measured, TF32 taken as half of it
REGISTERS = 67e12  # float32 operations a second outside of the matrix unit, the data sheet's
# Contractions of a step: forward, back through coefficients and sums, gradients of children and of transforms.
CONTRACTIONS = {"dynamic": 5 + 4 + 5 + 5, "max_min": 5 + 4 + 5 + 5, "inverted_attention": 3 + 2 + 3 + 3, "fast": 3}
GAUSSIAN = 4, 63  # votes made forward and back with both gradients; operations on every number of a vote


def numbers(case: Case) -> tuple[int, int]:
    """Of children, and of parameters."""
    children = case.batch * case.children * case.rows * case.k
    return children, 0 if case.algorithm == "pooling" else (
        (1 if case.shared else case.children) * case.parents * case.k * case.o
    )


def limit(case: Case, dtype: str) -> tuple[float, float, float, float]:
    """Bytes, operations, and the seconds that each of them takes."""
    moved = 3 * sum(numbers(case)) * (2 if dtype == "bfloat16" else 4)
    votes = case.batch * case.children * case.parents * case.rows * case.o
    if case.algorithm == "pooling":
        made = 20 * votes
        return moved, made, moved / COPY, made / REGISTERS
    product = 2 * votes * case.k
    if case.algorithm in CONTRACTIONS:
        made = CONTRACTIONS[case.algorithm] * product
        return moved, made, moved / COPY, made / MATRIX[dtype]
    made = GAUSSIAN[0] * product + GAUSSIAN[1] * votes
    return moved, made, moved / COPY, made / REGISTERS


def main(path: str) -> None:
    cases = {case.name: case for case in (*PAPER_CASES, *SIZE_CASES)}
    print("| layer, forward and backward | dtype | MB | GFLOP | memory | arithmetic | ours | times the limit |")
    print("|---|---|---|---|---|---|---|---|")
    for row in read_rows(path, Row):
        if row.implementation != "capsroute" or row.case not in cases:
            continue
        moved, made, memory, arithmetic = limit(cases[row.case], row.dtype)
        ours = row.graph_step_ms * 1e3
        dtype = (
            "bf16" if row.dtype == "bfloat16" else "TF32" if cases[row.case].algorithm in CONTRACTIONS else "float32"
        )
        times = ours / (1e6 * max(memory, arithmetic))
        cells = (f"{moved / 1e6:.0f}", f"{made / 1e9:.1f}", f"{memory * 1e6:.0f} us", f"{arithmetic * 1e6:.0f} us")
        print(f"| {row.case} | {dtype} | {' | '.join(cells)} | {ours:.0f} us | {times:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1])
