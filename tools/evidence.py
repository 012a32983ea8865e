"""Evidence of a run: the small text files of a run folder, kept under `results/runs/RECIPE/seed-N/`, and all looks at
test data there ever were, in `results/looks.csv`.

    python -m tools.evidence FOLDER    keeps every run of a folder, such as what `tools/train_queue.py` left
"""

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import os
import shutil
from pathlib import Path

from capsroute.training import RunFolder

# Small text only: a table must be re-makeable from what is committed, and weights do not belong into a repository.
KEPT = ("result.json", "environment.json", "recipe.toml", "metrics.csv")


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What one finished run measured, once, on test data."""

    recipe: str
    seed: int
    accuracy: dict[str, dict[str, float]]  # test set ("": the first) -> as_trained, fast, uniform -> per cent
    parameters: int
    seconds: float  # of training
    hardware: str
    folder: Path


def keep(run: str | Path, results: str | Path) -> Path:
    """Copy a finished run's small files to where tables find them. Whole or not at all."""
    run = Path(run)
    missing = [name for name in KEPT if not (run / name).is_file()]
    if missing:
        raise ValueError(f"run: {run} is not a finished run: {', '.join(missing)} missing")
    evidence = _read(run)
    target = Path(results) / "runs" / evidence.recipe / f"seed-{evidence.seed}"
    aside = target.with_name(target.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name in KEPT:
        shutil.copyfile(run / name, aside / name)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(aside, target)
    looks = run / "looks.csv"
    if looks.is_file():
        _add_looks(looks, Path(results) / "looks.csv")
    return target


def _add_looks(source: Path, ledger: Path) -> None:
    """Add the lines of a run's looks that the ledger does not have yet; none is ever taken away."""
    head, *lines = source.read_text(encoding="utf-8").splitlines()
    known = ledger.read_text(encoding="utf-8").splitlines() if ledger.is_file() else [head]
    ledger.write_text("\n".join([*known, *(line for line in lines if line not in known)]) + "\n", encoding="utf-8")


def count_looks(results: str | Path) -> dict[str, int]:
    """How often a seed of each recipe was tested at most: recipe -> looks."""
    ledger = Path(results) / "looks.csv"
    counted: collections.Counter = collections.Counter()
    if ledger.is_file():
        with ledger.open(newline="", encoding="utf-8") as file:
            counted.update({(row["recipe"], row["seed"], row["when"]) for row in csv.DictReader(file)})
    seeds = collections.Counter((recipe, seed) for recipe, seed, _ in counted)
    most: dict[str, int] = {}
    for (recipe, _), looks in seeds.items():
        most[recipe] = max(looks, most.get(recipe, 0))
    return most


def collect(results: str | Path) -> dict[str, list[Evidence]]:
    """All evidence under a results folder, by recipe, seeds in order."""
    found: dict[str, list[Evidence]] = {}
    for path in sorted(Path(results).glob("runs/*/seed-*/result.json")):
        evidence = dataclasses.replace(_read(path.parent), recipe=path.parts[-3])
        found.setdefault(evidence.recipe, []).append(evidence)
    for runs in found.values():
        runs.sort(key=lambda evidence: evidence.seed)
    return found


def _read(folder: Path) -> Evidence:
    result, environment = (RunFolder(folder).read(name) for name in ("result.json", "environment.json"))
    try:
        return Evidence(
            recipe=result["recipe"],
            seed=int(result["seed"]),
            accuracy={name: _per_cent(test) for name, test in {"": result["test"], **result["tests"]}.items()},
            parameters=int(result["parameters"]),
            seconds=float(result["train_seconds"]),
            hardware=environment["hardware"],
            folder=folder,
        )
    except KeyError as error:
        raise ValueError(f"{folder}: result.json or environment.json lacks the key {error}") from None


def _per_cent(test: dict[str, dict[str, float]]) -> dict[str, float]:
    return {routing: 100 * metrics["accuracy"] for routing, metrics in test.items()}


def main() -> None:
    """Keep every finished run of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder a run")
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results")
    given = parser.parse_args()
    found = sorted(path.parent for path in given.folder.glob("*/result.json"))
    if not found:
        parser.error(f"{given.folder}: no finished run in it")
    for run in found:
        print(keep(run, given.results))


if __name__ == "__main__":
    main()
