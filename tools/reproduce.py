"""The papers' tables again: train what a table still needs, keep what it measured, and make the pages anew.

python -m tools.reproduce zhao --row zhao-mnist-max-min-fast     trains missing seeds, resumed where they stopped
python -m tools.reproduce all --tables-only                      makes the pages from the committed runs
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from capsroute.training import fit, load_recipe
from tools.evidence import Evidence, collect, keep
from tools.pages import write_tables
from tools.rows import PAPERS, Row, all_rows


def missing_seeds(row: Row, evidence: dict[str, list[Evidence]]) -> list[int]:
    """Seeds 0, 1, ... of a row that no kept run has.

    >>> from tools.reproduce import missing_seeds
    >>> from tools.rows import Row
    >>> missing_seeds(Row("zhao", "MNIST", "zhao-mnist", seeds=3), {})
    [0, 1, 2]
    """
    done = {run.seed for run in evidence.get(row.recipe, [])}
    return [seed for seed in range(row.seeds) if seed not in done]


def estimate(row: Row, evidence: dict[str, list[Evidence]]) -> str:
    """How long a run of this row took, and where; said before anything starts.

    >>> from tools.reproduce import estimate
    >>> from tools.rows import Row
    >>> estimate(Row("zhao", "MNIST", "zhao-mnist"), {})
    'never timed'
    """
    runs = evidence.get(row.recipe, [])
    return "; ".join(f"{run.seconds:.0f} s on {run.hardware}" for run in runs[:1]) or "never timed"


def run_missing(
    rows: Sequence[Row],
    evidence: dict[str, list[Evidence]],
    results: str | Path,
    runs: str | Path = "runs",
    overrides: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Train every missing seed of these rows, each recipe once, and keep what it measured."""
    for recipe_name in dict.fromkeys(row.recipe for row in rows):
        seeds = sorted({seed for row in rows if row.recipe == recipe_name for seed in missing_seeds(row, evidence)})
        for seed in seeds:
            say(f"{recipe_name}, seed {seed}")
            folder = Path(runs) / f"{recipe_name}-seed-{seed}"
            recipe = load_recipe(recipe_name, [*overrides, f"training.seed={seed}"])
            if not (folder / "result.json").is_file():
                fit(None, None, recipe, folder, resume=folder.exists())
            keep(folder, results)


def main() -> None:
    """Train what is missing, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=[*PAPERS, "all"])
    parser.add_argument("--row", action="append", default=[], help="only rows of this recipe; may be repeated")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="override: training.epochs=5")
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="run folders; an interrupted run goes on")
    parser.add_argument("--tables-only", action="store_true", help="train nothing")
    given = parser.parse_args()
    rows = [row for row in all_rows(given.results / "rows.toml") if given.paper in (row.paper, "all")]
    rows = [row for row in rows if not given.row or row.recipe in given.row]
    if not rows:
        parser.error(f"no row of {given.paper!r} has a recipe among {given.row}")
    if not given.tables_only:
        evidence = collect(given.results)
        for row in rows:
            print(f"{row.name}: {len(missing_seeds(row, evidence))} of {row.seeds} seeds; {estimate(row, evidence)}")
        run_missing(rows, evidence, given.results, given.runs, given.overrides)
    print(f"wrote {', '.join(map(str, write_tables(given.results)))}")


if __name__ == "__main__":
    main()
