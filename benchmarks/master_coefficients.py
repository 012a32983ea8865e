"""What each way to master coefficients costs in accuracy, on finished runs (000, table 1, and beyond the paper).

    python benchmarks/master_coefficients.py RUN... [--epochs N] [--device cuda] [--json FILE]

Every row is the same trained network with other coefficients, measured on the run's test set:
- as trained (dynamic), and with all coefficients equal (uniform), the control that shows what routing adds;
- accumulated as the paper does, from ground-truth columns alone, as plain means, and from the second iteration;
- accumulated from the images that each filter keeps;
- learned further on training data for N epochs: C alone, C and W, everything but C; and, so that further training is
  not mistaken for better coefficients, the dynamic network after as many further epochs.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

import capsroute as cr
from capsroute.inference.learning import optimise
from capsroute.training.sources import plain_batches, training_batches

ACCUMULATED: dict[str, dict] = {
    "ground-truth columns alone": {"columns": "ground_truth"},
    "plain means": {"normalise": "none"},
    "second iteration": {"iteration": 2},
    "similarity, pearson, 0.8": {"filter": {"name": "similarity", "fraction": 0.8}},
    "similarity, pearson, 0.5": {"filter": {"name": "similarity", "fraction": 0.5}},
    "similarity, dot, 0.5": {"filter": {"name": "similarity", "measure": "dot", "fraction": 0.5}},
    "clustering, k-means": {"filter": "clustering"},
    "clustering, Gaussian mixture": {"filter": {"name": "clustering", "method": "gaussian_mixture"}},
    "correct": {"filter": "correct"},
    "correct by 0.3": {"filter": {"name": "correct", "margin": 0.3}},
}
# What is learned, and how fast next to the run itself: its weights go on gently, the coefficients have just begun.
LEARNED = {
    "C learned": ("coefficients", 1.0),
    "C and W learned": ("coefficients+transforms", 0.3),
    "retrained, C fixed": ("network", 0.3),
}


def compare(run: Path, epochs: int, device: str) -> Iterator[tuple[str, float, float]]:
    """(name, accuracy in per cent, seconds it took to make) of every variant."""
    recipe, model = cr.training.load_run(run)
    model.to(device)
    splits = cr.training.load_splits(recipe, device)
    where = torch.device(device)
    test = plain_batches(next(iter(splits.test.values())), splits, recipe, where)
    plain = plain_batches(splits.train, splits, recipe, where)
    augmented = training_batches(splits, recipe, where)
    rate = recipe.optimiser.learning_rate

    def measured(name: str, make: Callable[[], nn.Module]) -> tuple[str, float, float]:
        began = time.perf_counter()
        variant = make()
        return name, 100 * cr.training.evaluate(variant, test)["accuracy"], time.perf_counter() - began

    def dynamic_further() -> nn.Module:
        further = copy.deepcopy(model).train()
        optimise(further, list(further.parameters()), augmented, epochs, 0.3 * rate)
        return further

    yield measured("dynamic", lambda: model)
    yield measured("uniform", lambda: cr.inference.fold(model, "uniform"))
    master = cr.inference.accumulate(model, plain)
    yield measured("accumulated (paper)", lambda: cr.inference.fold(model, master))
    for name, (learn, speed) in LEARNED.items():
        yield measured(
            name, lambda w=learn, s=speed: cr.inference.finetune(model, master, augmented, w, epochs, s * rate)
        )
    yield measured("dynamic, trained as much further", dynamic_further)
    for name, options in ACCUMULATED.items():
        yield measured(name, lambda o=options: cr.inference.fold(model, cr.inference.accumulate(model, plain, **o)))


def main() -> None:
    """Print a line as soon as it is measured, and write all as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for run in options.runs:
        print(f"{run.name}, {options.epochs} further epochs where something is learned", flush=True)
        found[run.name] = {}
        for name, accuracy, seconds in compare(run, options.epochs, options.device):
            found[run.name][name] = accuracy
            print(f"  {name:34s} {accuracy:6.2f} %   {seconds:6.1f} s", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
