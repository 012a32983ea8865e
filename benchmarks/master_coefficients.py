"""What each way to master coefficients costs in accuracy, on finished runs (Zhao 2019, table 1, and beyond the paper).

    python benchmarks/master_coefficients.py RUN... [--epochs N] [--views N] [--rows learned|all] [--json FILE]

Every row is the same trained network with other coefficients, measured on the run's test set:
- as trained (dynamic), and with all coefficients equal (uniform), the control that shows what routing adds;
- accumulated as the paper does (RUN/master.safetensors where it is there);
- learned further on training data for N epochs: C alone, C and W; and the
  same procedure for W with uniform coefficients and for W of the dynamic network, so that further training is not
  mistaken for better coefficients. The convolutions run once a view: what is learned lies above them;
- with `--rows all`: from ground-truth columns alone, as plain means, from the second iteration, and from images that
  each filter keeps.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

import capsroute as cr
from capsroute.inference.children import Children, class_scores
from capsroute.inference.learning import optimise
from capsroute.training.data import plain_batches, training_batches

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
WEIGHT_RATE, SHARPNESS = 3e-4, 20.0  # the defaults of `finetune`, for the dynamic network too
Row = tuple[str, Callable[[], nn.Module]]


def learned_rows(model: nn.Module, master: cr.inference.MasterCoefficients, train: Children, epochs: int) -> list[Row]:
    """Coefficients as they are, then learned; the network that goes on routing comes last because it takes longest."""

    def further(coefficients, learn: str) -> Callable[[], nn.Module]:
        return lambda: cr.inference.finetune(model, coefficients, train, learn, epochs)

    def dynamic_further() -> nn.Module:
        dynamic = copy.deepcopy(model)
        layer = dynamic.routed_layers()[train.layer]  # type: ignore[operator]
        optimise(dynamic, [{"params": [layer.W], "lr": WEIGHT_RATE}], train, epochs, SHARPNESS)
        return dynamic

    return [
        ("dynamic", lambda: model),
        ("uniform", lambda: cr.inference.with_coefficients(model, "uniform")),
        ("accumulated (paper)", lambda: cr.inference.with_coefficients(model, master)),
        ("C learned", further(master, "coefficients")),
        ("C and W learned", further(master, "coefficients+transforms")),
        ("C learned from uniform", further("uniform", "coefficients")),
        ("W learned, C uniform", further("uniform", "transforms")),
        ("dynamic, W learned", dynamic_further),
    ]


@torch.no_grad()
def accuracy(model: nn.Module, test: Children) -> float:
    """Per cent of the examples that the class layer puts into their class."""
    right = [class_scores(model, test.layer, poses).argmax(1) == labels for poses, labels in test.epoch(0)]
    return 100 * torch.cat(right).double().mean().item()


def compare(run: Path, options: argparse.Namespace) -> Iterator[tuple[str, float, float]]:
    """(name, accuracy in per cent, seconds it took to make) of every variant."""
    recipe, model = cr.training.load_run(run)
    model.float().to(options.device)
    splits = cr.training.load_splits(recipe, options.device)
    where = torch.device(options.device)
    plain = plain_batches(splits.train, recipe, where)
    test = cr.inference.keep_children(model, plain_batches(next(iter(splits.test.values())), recipe, where))
    saved = run / "master.safetensors"
    master = cr.inference.MasterCoefficients.load(saved) if saved.exists() else cr.inference.accumulate(model, plain)
    with torch.autocast(where.type, torch.bfloat16) if recipe.training.precision == "bf16" else nullcontext():
        train = cr.inference.keep_children(
            model, training_batches(splits, recipe, where), options.views, dtype=torch.float16
        )
    rows = learned_rows(model, master, train, options.epochs)
    if options.rows == "all":
        for name, how in ACCUMULATED.items():
            rows.append((name, lambda how=how: _accumulated(model, plain, how)))
    for name, make in rows:
        began = time.perf_counter()
        variant = make()
        yield name, accuracy(variant, test), time.perf_counter() - began


def _accumulated(model: nn.Module, plain, how: dict) -> nn.Module:
    return cr.inference.with_coefficients(model, cr.inference.accumulate(model, plain, **how))


def main() -> None:
    """Print a line as soon as it is measured, and write all as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--views", type=int, default=3, help="augmented passes over the training data that are kept")
    parser.add_argument("--rows", choices=("learned", "all"), default="all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for run in options.runs:
        print(f"{run.name}, {options.epochs} further epochs where something is learned", flush=True)
        found[run.name] = {}
        for name, percent, seconds in compare(run, options):
            found[run.name][name] = percent
            print(f"  {name:34s} {percent:6.2f} %   {seconds:6.1f} s", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
