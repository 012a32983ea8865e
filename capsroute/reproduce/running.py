"""What a table still needs, and running it: seeds that have no evidence yet, resumed where they were interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from capsroute.reproduce.evidence import Evidence, keep
from capsroute.reproduce.rows import Row

__all__ = ["estimate", "missing_seeds", "run_missing"]


def missing_seeds(row: Row, evidence: dict[str, list[Evidence]]) -> list[int]:
    """Seeds 0, 1, ... of a row that no kept run has.

    >>> from capsroute.reproduce import Row, missing_seeds
    >>> missing_seeds(Row("zhao", "MNIST", "zhao-mnist", seeds=3), {})
    [0, 1, 2]
    """
    done = {run.seed for run in evidence.get(row.recipe, [])}
    return [seed for seed in range(row.seeds) if seed not in done]


def estimate(row: Row, evidence: dict[str, list[Evidence]]) -> str:
    """How long a run of this row took, and where; said before anything starts.

    >>> from capsroute.reproduce import Row, estimate
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
    from capsroute.training import fit, load_recipe

    for recipe_name in dict.fromkeys(row.recipe for row in rows):
        seeds = sorted({seed for row in rows if row.recipe == recipe_name for seed in missing_seeds(row, evidence)})
        for seed in seeds:
            say(f"{recipe_name}, seed {seed}")
            folder = Path(runs) / f"{recipe_name}-seed-{seed}"
            recipe = load_recipe(recipe_name, [*overrides, f"training.seed={seed}"])
            if not (folder / "result.json").is_file():
                fit(None, None, recipe, folder, resume=folder.exists())
            keep(folder, results)
