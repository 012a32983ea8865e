"""When fast softmax inference fails: what fast inference costs, and how peaked the coefficients are that it replaces.

    python benchmarks/softmax_fast_inference.py RECIPE [--vary SETTING VALUE...]... [--set SETTING=VALUE]...
        [--seeds N] [--images N] [--held-out] [--json FILE]

Trains a network for every combination of the varied settings and every seed, and tests it
- as trained (dynamic), with accumulated coefficients (fast) and with equal ones (uniform);
- with what the accumulated ones are made of: only how loud each parent is (loudness: every child gets the mean of its
  column), and all but that (balanced: columns scaled to one mean).
`lead` is how many times as long the right class's sum of votes is as the longest other one, before the squash: the
median over images, as trained and with equal coefficients. With `--held-out` the test images are validation images, cut
from the training set and not used otherwise: conditions are searched there, and reported once on test images.

Master coefficients of softmax networks are a softmax of mean coefficients (Zhao 2019, section 7). Those lie in [0, 1]
and sum to one, so for p parents the master's lie between 1 / (e + p - 1) and e / (e + p - 1), 0.085 and 0.232 for ten:
near uniform whatever routing does. A network whose routing ends near uniform loses nothing by that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import capsroute as cr
from capsroute.training.recipe import parse_override

LAYER = "class_capsules"
QUIET = ["evaluation.pictures=false", "evaluation.speed_seconds=0.0", "logging.tensorboard=false"]


def measure(recipe: cr.training.Recipe, images: int | None, held_out: bool) -> dict[str, float]:
    """Train one network; accuracies in per cent, and the entropy of the coefficients it routes by."""
    splits = cr.training.load_splits(recipe)
    train = splits.train if images is None else splits.train.subset(torch.arange(images))
    if held_out:
        splits = cr.training.Splits(train, test={"validation": splits.validation})
    else:
        splits = cr.training.Splits(train, splits.validation, splits.test)
    with tempfile.TemporaryDirectory() as folder:
        run = cr.training.fit(None, splits, recipe, folder, reporter=cr.training.SilentReporter())
        master = cr.inference.MasterCoefficients.load(Path(folder, "master.safetensors"))[LAYER]  # [i, j]
    layer = run.model.routed_layers()[LAYER]  # type: ignore[operator]
    device = layer.W.device
    tested = cr.data.Batches(next(iter(splits.test.values())), 500, shuffle=False, device=device)
    loudness = master.mean(0)  # [j]
    parts = {"loudness": loudness.expand_as(master), "balanced": master / loudness * loudness.mean()}
    return {
        "children": layer.num_children,
        **{name: 100 * found["accuracy"] for name, found in run.result["test"].items()},
        **{name: 100 * accuracy(run.model, matrix.to(device), tested) for name, matrix in parts.items()},
        "entropy": entropy(run.model, tested),
        "lead": lead(run.model, tested),
        "lead, uniform": lead(cr.inference.with_coefficients(run.model, "uniform"), tested),
    }


def accuracy(model: torch.nn.Module, coefficients: torch.Tensor, batches: cr.data.Batches) -> float:
    """Share of the images that a network with these coefficients [i,j] classifies correctly."""
    return cr.training.evaluate(cr.inference.with_coefficients(model, {LAYER: coefficients}), batches)["accuracy"]


def entropy(model: torch.nn.Module, batches: cr.data.Batches) -> float:
    """Mean entropy of a child's shares over parents in the last iteration; 1 is uniform."""
    found = []
    for observed in cr.inference.collect(model, batches):
        c = observed.coefficients[LAYER].double()  # [b, i, j]
        c = c / c.sum(2, keepdim=True)
        found.append(-(c * c.clamp_min(1e-300).log()).sum(2).mean(1) / math.log(c.shape[2]))
    return float(torch.cat(found).mean())


@torch.no_grad()
def lead(model: torch.nn.Module, batches: cr.data.Batches) -> float:
    """Median over images of |s| of the right class over the largest |s| of the others."""
    found = []
    for images, labels in batches:
        lengths = model(images).scores.double()  # [b, j]
        sums = (lengths / (1 - lengths)).sqrt()  # the squash undone
        right = sums.gather(1, labels[:, None])
        found.append(right / sums.scatter(1, labels[:, None], 0.0).amax(1, keepdim=True))
    return float(torch.cat(found).median())


def combinations(options: argparse.Namespace) -> Iterator[tuple[str, cr.training.Recipe]]:
    """(what is varied, recipe) of every network."""
    settings = [[f"{setting}={value}" for value in values] for setting, *values in options.vary]
    settings.append([f"training.seed={seed}" for seed in range(options.seeds)])
    for varied in itertools.product(*settings):
        names = [f"{parse_override(text)[0][-1]}={parse_override(text)[1]}" for text in varied]
        yield ", ".join(names), cr.training.load_recipe(options.recipe, [*QUIET, *options.set, *varied])


def main() -> None:
    """Print a line as soon as it is measured, and write all as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--vary", nargs="+", action="append", default=[], metavar=("SETTING", "VALUE"))
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--images", type=int, help="train on the first so many images")
    parser.add_argument("--held-out", action="store_true", help="test on validation images")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name, recipe in combinations(options):
        began = time.perf_counter()
        found[name] = measure(recipe, options.images, options.held_out)
        shown = "  ".join(f"{key} {value:.4g}" for key, value in found[name].items())
        print(f"{name}:  {shown}  ({time.perf_counter() - began:.0f} s)", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
