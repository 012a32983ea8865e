"""How fast recipes train, measured on a few batches of noise, and how long a run that nobody has made would take.

    python -m tools.throughput results/throughput.csv --seconds 90

measures the recipes of rows without a run, each network and batch size once, in the recipe's own precision, steps
replayed as CUDA graphs where there is a GPU. Lines are added as they are measured; what the file has is left alone.

    python -m tools.throughput results/throughput.csv --operations

counts the operations of those networks and of those that were timed, which needs no GPU, into operations.csv beside it:
a network that nobody has timed takes between the slowest and the fastest of others in the same precision.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from capsroute.data import dataset_info
from capsroute.models import create_model
from capsroute.training import Recipe, graphed_step, load_recipe
from capsroute.training.data import model_arguments
from capsroute.training.environment import describe_environment
from capsroute.training.evaluation import call_model
from capsroute.training.objective import Objective
from capsroute.training.optimisers import make_optimiser
from capsroute.training.precision import float32_products
from capsroute.training.smoke import smoke_splits
from tools.evidence import collect
from tools.rows import all_rows

FIELDS = ("recipe", "network", "batch_size", "precision", "images_per_second", "hardware", "revision")
OPERATIONS = "operations.csv"
Speeds = dict[str, dict[str, str]]  # what was timed, as `_network` writes it -> its line


@dataclass(frozen=True)
class Expected:
    """How long one run of a recipe would take."""

    seconds: float
    images_per_second: float
    hardware: str
    like: str = ""  # the recipe whose run went so fast, where this network itself was not timed
    gigaflop: float = 0.0  # of an image, forward, where only others were timed: seconds are then at their slowest, and
    at_best: float = 0.0  # seconds at their fastest


def read_speeds(path: str | Path) -> Speeds:
    """The lines of a file of measured speeds, none where there is no file, and speeds of the runs beside it.

    A run has its model's name as its key: the same model with other settings is the next best thing to a measurement.
    Its speed is that of its fastest epoch, for runs shared a GPU; of several runs the slowest counts.
    """
    path = Path(path)
    speeds: Speeds = {}
    for name, runs in collect(path.parent).items():
        for run in runs:
            model = str(load_recipe(run.folder / "recipe.toml").model.name)
            with (run.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
                fastest = max((float(row.get("images_per_second") or 0) for row in csv.DictReader(file)), default=0.0)
            if 0 < fastest < float(speeds.get(model, {}).get("images_per_second", "inf")):
                facts = {"images_per_second": str(fastest), "hardware": run.hardware, "like": name}
                speeds[model] = facts
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            speeds |= {row["network"]: row for row in csv.DictReader(file)}
    counted = path.with_name(OPERATIONS)
    if counted.is_file():
        with counted.open(newline="", encoding="utf-8") as file:
            operations = {row["network"]: float(row["gigaflop"]) for row in csv.DictReader(file)}
        timed = {network: line for network, line in speeds.items() if network in operations}
        for network in operations.keys() - speeds.keys():
            rates = [
                (operations[other] * float(line["images_per_second"]), line["hardware"])
                for other, line in timed.items()
                if _is_exact(other) == _is_exact(network)
            ]
            if rates:
                (slowest, hardware), (fastest, _) = min(rates), max(rates)
                facts = {"gigaflop": operations[network], "slowest": slowest, "fastest": fastest, "hardware": hardware}
                speeds[network] = {key: str(value) for key, value in facts.items()}
    return speeds


def _is_exact(network: str) -> bool:
    """Whether its products are of whole float32 numbers."""
    return json.loads(network)[-1] == "fp32"


def expected(name: str, speeds: Speeds) -> Expected | None:
    """How long a run of this recipe takes at the speed that its network was measured at, or else that of a run of the
    same model with other settings, or else by its operations; None where there is none of these.

    >>> from tools.throughput import expected
    >>> expected("sabour-mnist", {}) is None
    True
    """
    recipe = load_recipe(name)
    if recipe.text is not None or recipe.data.name is None:
        return None
    lines = speeds.get(_network(recipe)), speeds.get(str(recipe.model.name))
    line = next((found for found in lines if found and "gigaflop" not in found), lines[0])
    if line is None:
        return None
    sizes = dataset_info(recipe.data.name).sizes
    images = recipe.training.epochs * (sizes["train"] + (0 if recipe.data.validation else sizes.get("validation", 0)))
    if "gigaflop" in line:
        slow, fast = (float(line[which]) / float(line["gigaflop"]) for which in ("slowest", "fastest"))
        return Expected(images / slow, slow, line["hardware"], "", float(line["gigaflop"]), images / fast)
    speed = float(line["images_per_second"])
    return Expected(images / speed, speed, line["hardware"], line.get("like", ""))


def _network(recipe: Recipe) -> str:
    """What the speed depends on: the network, the size of what it sees, the batch, the precision."""
    info = dataset_info(str(recipe.data.name))
    seen = recipe.data.test_crop or info.shape
    return json.dumps(
        [recipe.model.name, recipe.model.arguments, seen, recipe.training.batch_size, recipe.training.precision]
    )


def measure(recipe: Recipe, device: torch.device, steps: int = 20) -> float:
    """Images a second of whole training steps: forward and backward pass and optimiser, data left out."""
    settings = recipe.training
    splits = smoke_splits(recipe)
    torch.manual_seed(0)
    arguments = model_arguments(splits, recipe)
    model = create_model(str(recipe.model.name), **arguments).to(device).train()
    size = arguments["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.rand(settings.batch_size, arguments["in_channels"], height, width, device=device)
    labels = torch.randint(arguments["num_classes"], (settings.batch_size,), device=device)
    kind = recipe.loss
    if splits.train.labels.dim() == 2:  # two digits: [b,2], the second another one; each is drawn by itself elsewhere
        labels = torch.stack([labels, (labels + 1) % arguments["num_classes"]], 1)
        kind = kind.model_copy(update={"reconstruction": 0.0})
    objective = Objective(kind, model)

    def loss(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return objective(call_model(model, images, objective.decoder_labels(labels)), images, labels)

    autocast = torch.bfloat16 if settings.precision == "bf16" else None
    with float32_products(settings.precision):
        step = graphed_step(model, loss, make_optimiser(model, recipe.optimiser), (images, labels), autocast=autocast)
        for _ in range(5):  # the recording among them
            step(images, labels)
        _wait(device)
        began = time.perf_counter()
        for _ in range(steps):
            step(images, labels)
        _wait(device)
    return steps * settings.batch_size / (time.perf_counter() - began)


def gigaflop(recipe: Recipe) -> float:
    """Operations of one image, forward, in 10^9: those of convolutions and matrix products."""
    arguments = model_arguments(smoke_splits(recipe), recipe)
    model = create_model(str(recipe.model.name), **arguments).eval()
    size = arguments["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.rand(1, arguments["in_channels"], height, width))
    return counter.get_total_flops() / 1e9


def count_operations(path: Path, results: Path) -> None:
    """Write operations.csv beside the speeds: of networks that were timed, and of those of which nothing is known."""
    with path.open(newline="", encoding="utf-8") as file:
        timed = [row["recipe"] for row in csv.DictReader(file)]
    speeds = {key: line for key, line in read_speeds(path).items() if "gigaflop" not in line}
    unknown = [name for name, _ in _unmeasured(results, speeds) if expected(name, speeds) is None]
    with path.with_name(OPERATIONS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("recipe", "network", "gigaflop"))
        for name in (*timed, *unknown):
            recipe = load_recipe(name)
            writer.writerow((name, _network(recipe), f"{gigaflop(recipe):.4g}"))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _unmeasured(results: Path, speeds: Speeds) -> Iterator[tuple[str, Recipe]]:
    """Recipes of rows that were not run, each network once; those of which nothing is known come first."""
    evidence, seen = collect(results), {key for key, line in speeds.items() if "gigaflop" not in line}
    names = dict.fromkeys(row.recipe for row in all_rows(results / "rows.toml"))
    missing = [name for name in names if name and name not in evidence]
    known = {key: line for key, line in speeds.items() if key in seen}
    for name in sorted(missing, key=lambda name: expected(name, known) is not None):
        recipe = load_recipe(name)
        if recipe.text is None and _network(recipe) not in seen:
            seen.add(_network(recipe))
            yield name, recipe


def main() -> None:
    """Measure what is missing, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="file of speeds, made or added to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", action="append", default=[], help="only this recipe; may be repeated")
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--operations", action="store_true", help="time nothing, count operations")
    given = parser.parse_args()
    if given.operations:
        count_operations(given.path, given.results)
        return
    device, end = torch.device(given.device), time.monotonic() + given.seconds
    facts = describe_environment(device)
    new = not given.path.is_file()
    with given.path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for name, recipe in _unmeasured(given.results, read_speeds(given.path)):
            if given.only and name not in given.only:
                continue
            if time.monotonic() > end:
                print(f"time is up before {name}", flush=True)
                break
            try:
                speed = measure(recipe, device, given.steps)
            except Exception as error:  # one network that cannot be timed must not cost the others
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            settings = recipe.training
            row = [name, _network(recipe), settings.batch_size, settings.precision, round(speed)]
            writer.writerow(dict(zip(FIELDS, [*row, facts["hardware"], facts["revision"]])))
            file.flush()
            print(f"{name}: {speed:.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
