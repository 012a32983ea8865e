"""Why fast softmax inference loses nothing: how peaked dynamic coefficients are, and what fast inference costs.

    python benchmarks/softmax_fast_inference.py [--images 4000] [--epochs 4] [--json FILE]

Master coefficients of softmax networks are a softmax of mean coefficients (000, section 7). Those lie in [0, 1] and sum
to one, so for p parents the master's lie between 1 / (e + p - 1) and e / (e + p - 1), 0.085 and 0.232 for ten: near
uniform whatever routing does. A network whose routing ends near uniform loses nothing by that; this trains small ones
with large transforms and with more iterations, to see how far away it ends.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import torch

import capsroute as cr

NETWORKS: dict[str, dict] = {
    "softmax, std 0.1": {"routing": {"name": "dynamic", "iterations": 3}},
    "softmax, std 0.5": {"routing": {"name": "dynamic", "iterations": 3}, "std": 0.5},
    "softmax, std 0.1, 8 iterations": {"routing": {"name": "dynamic", "iterations": 8}},
}


def measure(arguments: dict, images: int, epochs: int) -> dict[str, float]:
    """Train one network on the first training images of MNIST; its test accuracies in per cent."""
    recipe = cr.training.load_recipe("mnist-cpu", [f"training.epochs={epochs}", "training.threads=1"])
    train, test = cr.data.load("mnist"), cr.data.load("mnist", split="test")
    train = replace(train, images=train.images[:images], labels=train.labels[:images], metadata={})
    model = cr.create_model("capsnet_small", **{**recipe.model.arguments, "image_size": 28, **arguments})
    cr.training.fit(
        model, cr.training.Splits(train, test={"mnist": test}), recipe, reporter=cr.training.SilentReporter()
    )
    model.eval()
    master = cr.inference.accumulate(model, train)
    fast = {"dynamic": model} | {
        name: cr.inference.with_coefficients(model, given) for name, given in (("fast", master), ("uniform", "uniform"))
    }
    found = {
        name: 100 * cr.training.evaluate(m, cr.data.Batches(test, 256, shuffle=False))["accuracy"]
        for name, m in fast.items()
    }
    found["entropy of dynamic coefficients"] = entropy(model, test)
    found["spread of master coefficients"] = float(master["class_capsules"].std())
    return found


def entropy(model: torch.nn.Module, images: cr.data.ImageSet) -> float:
    """Mean entropy of a child's coefficients over parents in the last iteration; 1 is uniform."""
    shares = []
    for observed in cr.inference.collect(model, images):
        c = observed.coefficients["class_capsules"].double()  # [b, i, j]
        shares.append(-(c * c.clamp_min(1e-300).log()).sum(2).mean(1) / math.log(c.shape[2]))
    return float(torch.cat(shares).mean())


def main() -> None:
    """Print a line a network, and write all as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for name, arguments in NETWORKS.items():
        torch.manual_seed(0)
        found[name] = measure(arguments, options.images, options.epochs)
        print(f"{name:34s}", {key: round(value, 3) for key, value in found[name].items()}, flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
