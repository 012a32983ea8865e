"""The same recipe with several seeds: mean and spread instead of one lucky number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from capsroute.training.fit import fit
from capsroute.training.recipe import Recipe
from capsroute.training.report import mean_and_spread
from capsroute.training.run_folder import RunFolder
from capsroute.training.world import join_world

__all__ = ["fit_seeds", "summarise"]


def fit_seeds(recipe: Recipe, seeds: int, folder: str | os.PathLike[str], resume: bool = False) -> dict[str, Any]:
    """Run a recipe with `seeds` seeds, counted from its own, into `folder/seed-N`; what `summarise` makes of them.

    With `resume` runs that are finished are left alone, and the one that was interrupted goes on.
    """
    first, results = recipe.training.seed, []
    with join_world(recipe.training.device) as world:
        for seed in range(first, first + seeds):
            run = RunFolder(Path(folder) / f"seed-{seed}")
            # Only the first process can be relied on to see the folder.
            done = run.read("result.json") if world.first and resume and run.finished else None
            done = world.from_first(done)
            if done is None:
                done = fit(None, None, recipe.replace(**{"training.seed": seed}), run.path, resume=resume).result
            results.append(done)
        summary = summarise(results)
        if world.first:
            RunFolder(folder).write("summary.json", summary)
    return summary


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread of the test accuracies of several runs, by test set and routing.

    >>> from capsroute.training.seeds import summarise
    >>> runs = [{"seed": seed, "tests": {"digits": {"dynamic": {"accuracy": 0.9 + seed / 10}}}} for seed in (0, 1)]
    >>> summary = summarise(runs)["tests"]["digits"]["dynamic"]
    >>> round(summary["mean"], 3), round(summary["spread"], 3), summary["n"]
    (0.95, 0.071, 2)
    """
    tests: dict[str, dict[str, Any]] = {}
    for name, tested in results[0]["tests"].items():
        tests[name] = {}
        for routing in tested:
            values = [result["tests"][name][routing]["accuracy"] for result in results]
            mean, spread = mean_and_spread(values)
            tests[name][routing] = {"mean": mean, "spread": spread, "n": len(values), "values": values}
    return {"seeds": [result["seed"] for result in results], "tests": tests}
