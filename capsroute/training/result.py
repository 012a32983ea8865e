"""Once training is over: test data are looked at, once; the result is written down."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from capsroute.training.data import Source
from capsroute.training.distributed import World
from capsroute.training.evaluation import call_model, evaluate
from capsroute.training.precision import Precision
from capsroute.training.recipe import Recipe
from capsroute.training.run import Run

__all__ = ["measure_run", "measure_speed"]


def measure_run(run: Run, world: World, training: dict[str, Any]) -> dict[str, Any]:
    """Test the model of a run on every test set, in all its variants; `training` is added.

    Master coefficients are made and kept where the recipe asks for them.
    """
    if run.recipe.evaluation.fast:
        master = run.accumulate(world=world)
        if master is not None and world.first:
            master.save(run.folder.master)
    tested = run.variants()
    tests: dict[str, dict[str, dict[str, float]]] = {}
    for name, images in run.splits.test.items():
        batches = run.batches(images, world)
        tests[name] = {variant: _test(model, batches, run.recipe, world) for variant, model in tested.items()}
    return {
        "recipe": run.recipe.name,
        "seed": run.recipe.training.seed,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        **training,
        "test": next(iter(tests.values()), {}),
        "tests": tests,
        "refusals": {name: why for name, why in run.refusals.items() if name != "fast" or run.recipe.evaluation.fast},
    }


def _test(model: nn.Module, batches: Source, recipe: Recipe, world: World) -> dict[str, float]:
    precision = Precision(recipe.training.precision, world.device)
    metrics = evaluate(model, batches, recipe.evaluation.two_labels, precision, world=world)
    metrics["images_per_second"] = (
        measure_speed(model, batches, precision, recipe.evaluation.speed_seconds) * world.size
    )
    del metrics["seconds"]
    return metrics


@torch.no_grad()
def measure_speed(model: nn.Module, batches: Source, precision: Precision, seconds: float = 0.3) -> float:
    """Images a second of a model that has run before, on the first batch over and over again."""
    inputs, labels, *_ = next(iter(batches))
    done, elapsed = 0, 0.0
    _wait(precision.device)
    start = time.perf_counter()
    while not done or elapsed < seconds:
        with precision.autocast():
            call_model(model, inputs)
        _wait(precision.device)
        done, elapsed = done + len(labels), time.perf_counter() - start
    return done / elapsed


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
