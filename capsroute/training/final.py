"""Once training is over: test data are looked at, once; the result is written down."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from capsroute.training.data import Source, Splits, plain_batches
from capsroute.training.distributed import World
from capsroute.training.evaluation import call_model, evaluate, fast_variant, uniform_variant
from capsroute.training.precision import Precision
from capsroute.training.recipe import Recipe
from capsroute.training.run_folder import RunFolder

__all__ = ["MASTER", "final_result", "measure_speed", "variants"]

MASTER = "master.safetensors"  # accumulated coefficients, in a run folder


def final_result(
    model: nn.Module, splits: Splits, recipe: Recipe, folder: RunFolder, world: World, training: dict[str, Any]
) -> dict[str, Any]:
    """Test `model` on every test set, with its own routing and with given coefficients; `training` is added."""
    model = model.to(world.device).eval()
    tested = variants(model, splits, recipe, folder, world)
    tests: dict[str, dict[str, dict[str, float]]] = {}
    for name, images in splits.test.items():
        batches = plain_batches(images, splits, recipe, world.device, rank=world.rank, world_size=world.size)
        tests[name] = {routing: _test(variant, batches, recipe, world) for routing, variant in tested.items()}
    return {
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **training,
        "test": next(iter(tests.values()), {}),
        "tests": tests,
    }


def variants(model: nn.Module, splits: Splits, recipe: Recipe, folder: RunFolder, world: World) -> dict[str, nn.Module]:
    """The model as trained ("dynamic"), with master coefficients if the recipe asks ("fast"), and "uniform" ones."""
    tested = {"dynamic": model}
    if recipe.evaluation.fast:
        shares = {"rank": world.rank, "world_size": world.size}
        made = fast_variant(model, plain_batches(splits.train, splits, recipe, world.device, **shares))
        if made is not None:
            tested["fast"], master = made
            if world.first:
                master.save(folder.path / MASTER)
    uniform = uniform_variant(model)
    if uniform is not None:
        tested["uniform"] = uniform
    return tested


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
