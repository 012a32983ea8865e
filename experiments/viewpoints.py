"""Unseen viewpoints: one backbone, every head, accuracy on novel views read where that on familiar ones is equal.

    python experiments/viewpoints.py --out results/when_routing_helps/viewpoints.csv
    python experiments/viewpoints.py --draw results/when_routing_helps/viewpoints.csv

Three tasks: ToyNORB low -> high elevations, ToyNORB one half of the azimuths -> the other, MNIST -> turned, scaled and
sheared MNIST. Test toys and digits are not those of training, in familiar views either. Every head has as many
parameters. Search is the same for all: three rates and two settings, one seed, a third of the steps, on familiar views
of validation data; then five seeds. Along training both accuracies are written down, as Hinton et al. 2018 did.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import capsroute as cr
from capsroute.data.augment import linear_maps, warp
from capsroute.data.catalog.digit_rules import to_bytes
from capsroute.data.seeding import generator_at
from experiments.heads import HEADS, Refined, count
from experiments.training import Stack, read, run_all

FEATURES, BUDGET, CLASSES = 32, 16_000, {"elevation": 5, "azimuth": 5, "affine": 10}
TASKS, METHODS = tuple(CLASSES), tuple(HEADS)
RATES, SETTINGS, SEEDS, SEARCH_SEED = (2e-3, 6e-3, 2e-2), (0, 1), (1, 2, 3, 4, 5), 100
LOOKS = 15
LOW = 3  # elevations 30, 35 and 40 degrees are familiar, as in Hinton et al. 2018
FRONT = (0, 2, 4, 6, 8, 28, 30, 32, 34)  # familiar azimuths, in tens of degrees: the half circle about the front
CANVAS, SHIFT = 40, 4.0
# Novel bins: of degrees, factors and shears; the others of a digit stay as they are.
AFFINE = {
    "rotation": ((5, 15), (15, 25), (25, 35), (35, 50)),
    "scale": ((0.5, 0.65), (0.65, 0.8), (1.15, 1.3), (1.3, 1.45)),
    "shear": ((0.1, 0.25), (0.25, 0.4), (0.4, 0.6)),
}


class Network(nn.Module):
    """Images [b,c,h,w] -> logits [b,j]: three convolutions, each place a child that knows where it is, a head."""

    def __init__(self, method: str, setting: int, channels: int, classes: int, budget: int = BUDGET):
        super().__init__()
        self.one = nn.Conv2d(channels, FEATURES, 5, 2, 2)
        self.two = nn.Conv2d(FEATURES, FEATURES, 3, 2, 1)
        self.three = nn.Conv2d(FEATURES, FEATURES, 3, 1, 0)
        self.place = nn.Linear(2, FEATURES)
        self.head = Refined(method, FEATURES, classes, setting, budget)
        self.read = nn.Parameter(torch.randn(classes, FEATURES) / math.sqrt(FEATURES))
        self.weigh, self.bias = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(classes))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.three(F.relu(self.two(F.relu(self.one(images - 0.5)))))  # [b, d, h, w]
        steps = [torch.linspace(-1, 1, side, device=maps.device) for side in maps.shape[2:]]
        places = torch.stack(torch.meshgrid(*steps, indexing="ij"), 2).flatten(0, 1)  # [h*w, 2]
        children = F.relu(maps).flatten(2).mT + self.place(places)
        poses, evidence = self.head(children, torch.ones_like(children[..., 0]))
        return torch.einsum("bjd,jd->bj", poses, self.read) + evidence @ self.weigh + self.bias


class Task(NamedTuple):
    """Bytes [n,c,h,w] and labels [n] to train on and to search by, and those of each test bin; one is "familiar"."""

    train: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    tests: dict[str, tuple[Tensor, Tensor]]


def make_task(name: str, size: argparse.Namespace) -> Task:
    return _digits(size) if name == "affine" else _toys(name, size)


def _toys(name: str, size: argparse.Namespace) -> Task:
    def load(split: str, **views: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        toys = cr.data.load("toynorb", split, size=size.pixels, device=size.device, **views)
        key = toys.metadata[name].cpu()
        if name == "elevation":
            away = torch.where(key < LOW, 0, 5 * key + 30)  # degrees
        else:
            gaps = (key[:, None] - torch.tensor(FRONT)).abs()
            away = 10 * torch.minimum(gaps, 36 - gaps).amin(1)
        return toys.images.cpu(), toys.labels.cpu(), away

    familiar = {"elevations": tuple(range(LOW))} if name == "elevation" else {"azimuths": FRONT}
    train, held = (load(split, **familiar)[:2] for split in ("train", "validation"))
    images, labels, away = load("test", lightings=(1, 4))
    bins = {"familiar" if a == 0 else f"{a}": (images[away == a], labels[away == a]) for a in away.unique().tolist()}
    return Task(train, held, bins)


def _digits(size: argparse.Namespace) -> Task:
    def load(split: str, most: int, *change: float | str) -> tuple[Tensor, Tensor]:
        digits = cr.data.load("mnist", split)
        generator = generator_at(0, "viewpoints", split, *change)
        few = torch.randperm(len(digits.images), generator=generator)[:most]
        n, one, zero = len(few), torch.ones(len(few)), torch.zeros(len(few))
        turn, shear, scale = zero, zero, one
        if change:
            kind, low, high = change
            amount = low + (high - low) * torch.rand(n, generator=generator)
            either = torch.randint(2, (n,), generator=generator) * 2 - 1
            turn = torch.deg2rad(amount) * either if kind == "rotation" else turn
            shear = amount * either if kind == "shear" else shear
            scale = amount if kind == "scale" else scale
        maps = linear_maps(turn, shear, scale, scale)
        shifts = SHIFT * (2 * torch.rand(n, 2, generator=generator) - 1)
        images = digits.images[few].float() / 255
        moved = [warp(*parts, (CANVAS, CANVAS)) for parts in zip(*(t.split(8192) for t in (images, maps, shifts)))]
        return to_bytes(torch.cat(moved)), digits.labels[few]

    bins = {"familiar": load("test", size.test)}
    for kind, ranges in AFFINE.items():
        for low, high in ranges:
            bins[f"{kind} {low}-{high}"] = load("test", size.test, kind, float(low), float(high))
    return Task(load("train", size.train), load("validation", size.test), bins)


def accuracies(stack: Stack, images: Tensor, labels: Tensor) -> Tensor:
    """Of each network: [m]."""
    # 5 networks x 1024 images x 10 parents: fewer than the 65,535 matrices that a batched product takes at once.
    return (stack.outputs(images, piece=1024).argmax(2) == labels).double().mean(1)


def work(job: tuple[str, str], size: argparse.Namespace, folder: Path) -> list[dict]:
    """Search and seeds of one head in one task, whose data are in a folder: its rows."""
    name, method = job
    device = torch.device(size.device)

    def ready(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images.to(device).float() / 255, labels.to(device)

    task = Task(*torch.load(folder / f"{name}.pt", weights_only=True))
    train, held = ready(*task.train), ready(*task.held)
    tests = {bin: ready(*test) for bin, test in task.tests.items()}
    shape = (train[0].shape[1], CLASSES[name])
    rows, trials = [], []

    def stack_of(setting: int, seeds: tuple[int, ...], rates: tuple[float, ...], steps: int) -> Stack:
        make = partial(Network, method, setting, *shape)
        return Stack(make, seeds, rates, train, 1, F.cross_entropy, steps, size.batch)

    def row(phase, setting, seed, rate, step, familiar, novel, bins, seconds) -> dict:
        return {
            "task": name, "method": method, "phase": phase, "setting": setting, "seed": seed, "rate": rate,
            "step": step, "familiar": f"{familiar:.4f}", "novel": f"{novel:.4f}", "bins": bins,
            "parameters": parameters, "seconds": round(seconds, 2),
        }  # fmt: skip

    parameters = count(Network(method, 0, *shape))
    for setting in SETTINGS:
        begin = time.monotonic()
        stack = stack_of(setting, (SEARCH_SEED,) * len(RATES), RATES, max(1, size.steps // 3))
        stack.train(stack.steps)
        for rate, found in zip(RATES, accuracies(stack, *held).tolist()):
            trials.append((found, setting, rate))
            seconds = (time.monotonic() - begin) / len(RATES)
            rows.append(row("search", setting, SEARCH_SEED, rate, stack.steps, found, math.nan, "", seconds))
    _, setting, rate = max(trials, key=lambda trial: (trial[0], -trial[2]))
    parameters = count(Network(method, setting, *shape))
    stack = stack_of(setting, SEEDS, (rate,) * len(SEEDS), size.steps)
    begin = time.monotonic()
    for look in range(1, LOOKS + 1):
        stack.train(size.steps * look // LOOKS - stack.done)
        found = {bin: accuracies(stack, *test).tolist() for bin, test in tests.items()}
        seconds = (time.monotonic() - begin) / len(SEEDS)
        for m, seed in enumerate(SEEDS):
            bins = {bin: values[m] for bin, values in found.items() if bin != "familiar"}
            novel = sum(bins.values()) / len(bins)
            text = "; ".join(f"{bin}: {value:.4f}" for bin, value in bins.items())
            rows.append(row("test", setting, seed, rate, stack.done, found["familiar"][m], novel, text, seconds))
    return rows


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/when_routing_helps/viewpoints.csv"))
    parser.add_argument("--draw", type=Path, help="draw the figure of this CSV beside it, and train nothing")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sizes = {"steps": 1800, "batch": 64, "train": 54000, "test": 2000, "pixels": 32, "at-once": 0}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then; the next call goes on")
    return parser


def main(given: argparse.Namespace) -> None:
    if given.draw:
        from experiments.figures import draw_viewpoints

        draw_viewpoints(given.draw)
        return
    if given.steps < LOOKS:
        raise SystemExit(f"--steps: expected at least {LOOKS}, one for each look at the test views, got {given.steps}")
    done = {(row["task"], row["method"]) for row in read(given.out) if row["phase"] == "test"}
    jobs = [(task, method) for task in given.tasks for method in given.methods if (task, method) not in done]
    with tempfile.TemporaryDirectory() as folder:
        for name in {task: None for task, _ in jobs}:
            torch.save(tuple(make_task(name, given)), Path(folder) / f"{name}.pt")
        run_all(partial(work, size=given, folder=Path(folder)), jobs, given.out, given.at_once, given.seconds)


if __name__ == "__main__":
    main(arguments().parse_args())
