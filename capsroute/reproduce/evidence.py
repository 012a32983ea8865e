"""Evidence of a run: the small text files of a run folder, kept under `results/runs/RECIPE/seed-N/`."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from capsroute.training import RunFolder

__all__ = ["KEPT", "Evidence", "collect", "keep"]

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
    return target


def collect(results: str | Path) -> dict[str, list[Evidence]]:
    """All evidence under a results folder, by recipe, seeds in order."""
    found: dict[str, list[Evidence]] = {}
    for path in sorted(Path(results).glob("runs/*/seed-*/result.json")):
        evidence = _read(path.parent)
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
