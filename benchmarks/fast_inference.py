"""How fast inference without routing is: the folded capsule layer and the folded network against what they replace.

    python benchmarks/fast_inference.py [--threads N] [--rounds N] [--clock wall|cpu] [--json FILE]

Measured in one process on the CPU, CapsNet of Sabour et al. 2017 (1152 children of 8 numbers, 10 parents of 16):
- the capsule layer alone: dynamic and max-min routing (3 iterations), given coefficients, folded, and nn.Linear;
- the whole network without decoder, dynamic and folded, against the same convolutions with a plain linear head, as
  large as the capsule layer (160 outputs) or with one output a class.

In every round all candidates run once, each round in another order, so that a machine that slows down slows all; what
is reported is the median over rounds of each candidate, and of its ratio to the reference within a round. The cpu clock
(one thread only) leaves out the time in which other programs had the core: for machines that are not idle.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import capsroute as cr

Candidates = dict[str, Callable[[], object]]


class PlainHead(nn.Module):
    """The trunk of a CapsNet and a linear layer on its features: what a CNN would do."""

    def __init__(self, model: cr.models.CapsNet, outputs: int):
        super().__init__()
        self.convolution, self.primary = model.convolution, model.primary_capsules
        self.head = nn.Linear(9216, outputs)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.primary(self.convolution(images).relu()).poses.flatten(1))


def layers(batch: int) -> Candidates:
    """The capsule layer in every form, on the same children."""
    model = cr.create_model("capsnet", decoder=None).eval()
    children = torch.rand(batch, 1152, 1, 8)
    dynamic, max_min = model.class_capsules, cr.create_model("capsnet_max_min", decoder=None).class_capsules
    given = cr.inference.with_coefficients(model, "uniform").class_capsules
    folded = cr.inference.fold(model, "uniform").class_capsules
    linear, flat = nn.Linear(9216, 160), children.flatten(1)
    return {
        "folded": lambda: folded(children),
        "dynamic routing": lambda: dynamic(children),
        "max-min routing": lambda: max_min(children),
        "given coefficients, not folded": lambda: given(children),
        "nn.Linear alone": lambda: linear(flat),
    }


def networks(batch: int) -> Candidates:
    """Whole networks on the same images; the reference is the CNN."""
    model = cr.create_model("capsnet", decoder=None).eval()
    folded, images = cr.inference.fold(model, "uniform"), torch.rand(batch, 1, 28, 28)
    plain, small = PlainHead(model, 160), PlainHead(model, 10)
    return {
        "same trunk, linear head (160)": lambda: plain(images),
        "same trunk, linear head (10)": lambda: small(images),
        "folded": lambda: folded(images),
        "dynamic routing": lambda: model(images),
    }


@torch.no_grad()
def measure(candidates: Candidates, rounds: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Median milliseconds of each candidate, and median ratio to the first of the same round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    order = random.Random(0)
    for warm_up in [True, True] + [False] * rounds:
        for name in order.sample(list(candidates), len(candidates)):
            began = clock()
            candidates[name]()
            if not warm_up:
                times[name].append((clock() - began) * 1e3)
    reference = times[next(iter(candidates))]
    return {
        name: {
            "milliseconds": statistics.median(taken),
            "ratio": statistics.median(own / ref for own, ref in zip(taken, reference)),
        }
        for name, taken in times.items()
    }


def main() -> None:
    """Print the tables, and write them as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu sees one thread: add --threads 1")
    clock = time.perf_counter if options.clock == "wall" else time.thread_time
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    machine = f"torch {torch.__version__}, {platform.machine()}, {options.threads} threads, {options.clock} clock"
    print(f"{machine}, {options.rounds} rounds")
    found: dict[str, object] = {"machine": machine, "rounds": options.rounds}
    for title, make in (("capsule layer", layers), ("network", networks)):
        for batch in options.batches:
            measured = measure(make(batch), options.rounds, clock)
            found[f"{title}, batch {batch}"] = measured
            reference = next(iter(measured))
            print(f"\n{title}, batch {batch}")
            for name, row in measured.items():
                print(f"  {name:32s} {row['milliseconds']:9.3f} ms   {row['ratio']:7.3f} x {reference}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
