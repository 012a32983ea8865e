"""`capsroute bench grid`: sizes beside those of the papers, drawn once, ours against the compiled textbook form.

Goals are points and kernels get tuned to points; the grid shows the cliffs between them. Processes take points off one
list: each compiles what it needs while others do, and measures alone, the others stopped: what a compiler tries out on
the chip doubled times that were measured beside it. A row is appended to the file as soon as it is measured, and points
that are in the file are not measured again.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from capsroute.bench.cases import Case
from capsroute.bench.measure import (
    DTYPES,
    NAN,
    allow_recompiling,
    allow_tf32,
    append_row,
    capture,
    forward_backward,
    peak_mebibytes,
    read_rows,
    together,
)

PARENTS, CHILDREN, BATCHES = (2, 10, 32, 100, 1000), (32, 512, 1152, 8192), (1, 32, 256)
POSES = ((1, 8, 16), (1, 16, 32), (4, 4, 4), (6, 6, 6))  # rows, child columns, parent columns
NEWER = ("self_attention", "self_routing", "vb")
COUNTS = {
    "dynamic": 27, "max_min": 26, "inverted_attention": 26, "em": 25, "heinsen": 26, "fast": 12, "pooling": 10,
    **dict.fromkeys(NEWER, 16),
}  # fmt: skip
LARGEST = 1 << 30  # numbers of all votes, or of all transforms: 4 GiB in float32, of which the textbook holds several
GIB = 1 << 30
POINT_SECONDS = 240  # compiling and measuring one point


@dataclasses.dataclass(frozen=True)
class Point:
    """A layer and a dtype."""

    case: Case
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.case.name}, {self.dtype}"

    def row(self, note: str = "") -> GridRow:
        """Nothing measured yet."""
        case = self.case
        transforms = "shared" if case.shared else "none" if case.algorithm == "pooling" else "per child"
        pose = f"{case.rows}x{case.k} -> {case.rows}x{case.o}"
        sizes = (case.batch, case.children, case.parents, pose)
        return GridRow(self.name, case.algorithm, *sizes, transforms, self.dtype, note=note)

    @property
    def gibibytes(self) -> float:
        """What both implementations may hold at once, roughly: a dozen tensors of the size of votes or transforms."""
        case = self.case
        votes = case.batch * case.children * case.parents * case.rows * case.o
        transforms = 0 if case.shared else case.children * case.parents * case.k * case.o
        return 1 + (12 * votes + 6 * transforms) * 4 / GIB


@dataclasses.dataclass
class GridRow:
    """Milliseconds of a step as a CUDA graph and mebibytes beyond the inputs; ratios are textbook over ours."""

    point: str
    algorithm: str
    batch: int
    children: int
    parents: int
    pose: str
    transforms: str
    dtype: str
    ours_ms: float = NAN
    textbook_ms: float = NAN
    speedup: float = NAN
    ours_mib: float = NAN
    textbook_mib: float = NAN
    memory: float = NAN
    way: str = ""  # in which the faster textbook form is written
    note: str = ""


def points(seed: int = 0) -> list[Point]:
    """The points, always the same: so many of each algorithm among all that fit, spread evenly over the list.

    >>> from capsroute.bench.grid import points
    >>> len(points()) >= 150, points() == points()
    (True, True)
    """
    generator = random.Random(seed)
    columns = []
    for algorithm, count in COUNTS.items():
        found = list(_all_points(algorithm))
        columns.append(generator.sample(found, min(count, len(found))))
    return [point for row in itertools.zip_longest(*columns) for point in row if point is not None]


def _all_points(algorithm: str) -> Iterator[Point]:
    """Everything that fits of an algorithm. A pool has one parent and no transforms, fast routing has its own."""
    pool = algorithm == "pooling"
    iterations = 2 if algorithm == "inverted_attention" else 3
    ways = (False,) if algorithm in ("pooling", "fast") else (False, True)
    axes = itertools.product(BATCHES, CHILDREN, (1,) if pool else PARENTS, POSES, ways)
    for batch, children, parents, (rows, k, o), shared in axes:
        votes = batch * children * parents * rows * o
        transforms = 0 if shared or pool else children * parents * k * o
        if max(votes, transforms) <= LARGEST:
            case = Case(algorithm, "grid", batch, children, parents, rows, k, k if pool else o, iterations, shared)
            yield from (Point(case, dtype) for dtype in ("float32", "bfloat16"))


def measure_point(point: Point, device: str, ready: Callable[[], Any] = lambda: None) -> GridRow:
    """Compile both implementations, say that it is `ready`, then measure them; what fails is a note, not an error."""
    row, case, dtype = point.row(), point.case, DTYPES[point.dtype]
    tensors = list(case.tensors(dtype, device).values())
    routes = {"ours": case.ours()}
    routes |= {f"textbook {way}": torch.compile(case.textbook(way), dynamic=False) for way in worthwhile_ways(case)}
    steps = {}
    for name, route in routes.items():
        try:
            with torch.no_grad():
                gradient = torch.randn_like(route(*tensors))
            steps[name] = forward_backward(route, tensors, gradient)
            steps[name]()
        except Exception as error:
            _failed(row, name, steps, error)
        if device == "cuda":
            torch.cuda.empty_cache()
    ready()
    found: dict[str, tuple[float, float]] = {}
    for name in list(steps):
        try:
            found[name] = _measured(steps[name], device)
        except Exception as error:
            _failed(row, name, steps, error)
        if device == "cuda":
            torch.cuda.empty_cache()
    row.ours_ms, row.ours_mib = found.pop("ours", (NAN, NAN))
    if found:
        best = min(found, key=lambda name: found[name][0])
        (row.textbook_ms, row.textbook_mib), row.way = found[best], best.removeprefix("textbook ")
    row.speedup, row.memory = row.textbook_ms / row.ours_ms, row.textbook_mib / row.ours_mib if row.ours_mib else NAN
    return row


def worthwhile_ways(case: Case) -> tuple[str, ...]:
    """Ways to write the textbook form of which either may be the faster once compiled.

    Compiling takes longer than all else. Where votes are few a compiler fuses products that are summed, and einsums,
    which it leaves to a matrix product, were slower in each of the first 28 such points, measured both ways. Of newer
    algorithms none was.
    """
    few = case.batch * case.children * case.parents * case.rows * case.o < 1 << 27
    mixed = case.algorithm in NEWER or (case.shared and case.algorithm in ("em", "heinsen"))
    return ("sums",) if few and not mixed and "sums" in case.ways else case.ways


def _failed(row: GridRow, name: str, steps: dict, error: Exception) -> None:
    if isinstance(error, TimeoutError):
        raise error
    steps.pop(name, None)
    said = "out of memory" if isinstance(error, torch.OutOfMemoryError) else f"{type(error).__name__}: {error}"
    row.note = f"{row.note} {name}: {said.splitlines()[0][:120]}".strip()


def _measured(step: Callable[[], Any], device: str) -> tuple[float, float]:
    if device != "cuda":
        return together([step], device, 0.0, least=3)[0], NAN
    mib = peak_mebibytes(step)
    torch.cuda.empty_cache()
    replay = capture(step)
    return together([replay], device, 0.04, least=5, warm=2)[0], mib


def run_grid(
    path: Path, device: str, jobs: int, limit: float, say: Callable[[str], None] = print, only: str = ""
) -> None:
    """Measure what is not in the file yet, for at most `limit` seconds, in so many processes; then draw and sum up."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {row.point for row in read_rows(path, GridRow)} if path.exists() else set()
    wanted = [p for p in points() if p.name not in done and any(text in p.name for text in only.split("|"))]
    say(f"grid: {len(wanted)} points to measure, {len(done)} in {path} already")
    context = torch.multiprocessing.get_context("spawn")
    queue, chip, free = context.Queue(), context.Lock(), context.Condition()
    memory = context.Value("d", _gibibytes(device), lock=False)
    others = context.Array("i", max(1, min(jobs, len(wanted))), lock=False)  # processes; zero before they have started
    for point in wanted:
        queue.put(point)
    until = time.time() + limit
    processes = [
        context.Process(target=_work, args=(n, others, queue, chip, free, memory, path, device, until), daemon=True)
        for n in range(len(others))
    ]
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) and time.time() < until:
        time.sleep(0.5)
    for process in processes:
        process.kill()
    rows = read_rows(path, GridRow) if path.exists() else []
    say(summary(rows, len(points())))
    try:
        draw_grid(rows, path.with_suffix(".png"))
    except ImportError:
        say("no heat map: matplotlib is not installed")


def _gibibytes(device: str) -> float:
    if device != "cuda":
        return math.inf
    return 0.85 * torch.cuda.get_device_properties(0).total_memory / GIB


def _work(
    n: int, others: Any, queue: Any, chip: Any, free: Any, memory: Any, path: Path, device: str, until: float
) -> None:
    """A process: points off the list, until it is empty or the time is over."""
    others[n] = os.getpid()
    allow_tf32()
    allow_recompiling()
    signal.signal(signal.SIGALRM, _too_long)
    while time.time() < until:
        try:
            point = queue.get(timeout=1)
        except Exception:  # queue.Empty, in the clothes of the spawn context
            return
        with _reserved(point.gibibytes, free, memory):
            signal.alarm(POINT_SECONDS)
            try:
                with ExitStack() as alone:  # the chip to oneself, once there is something to measure
                    row = measure_point(point, device, partial(alone.enter_context, _quiet(chip, others)))
            except Exception as error:
                row = point.row(f"{type(error).__name__}: {error}".splitlines()[0][:160])
            finally:
                signal.alarm(0)
            torch._dynamo.reset()
            if device == "cuda":
                torch.cuda.empty_cache()
        with free:  # one writer at a time
            append_row(dataclasses.asdict(row), path, device)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {POINT_SECONDS} s")


@contextmanager
def _quiet(chip: Any, others: Any) -> Iterator[None]:
    """The chip's lock, the other processes stopped."""
    with chip:
        try:
            _tell(others, signal.SIGSTOP)
            time.sleep(0.05)  # what they have launched ends
            yield
        finally:
            _tell(others, signal.SIGCONT)


def _tell(others: Any, what: signal.Signals) -> None:
    for process in others:
        if process not in (0, os.getpid()):
            with suppress(ProcessLookupError):  # it has ended
                os.kill(process, what)


@contextmanager
def _reserved(gibibytes: float, free: Any, memory: Any) -> Iterator[None]:
    """So much of the chip's memory for this process; waits until others have given back enough."""
    with free:
        free.wait_for(lambda: memory.value >= gibibytes)
        memory.value -= gibibytes
    try:
        yield
    finally:
        with free:
            memory.value += gibibytes
            free.notify_all()


def summary(rows: Sequence[GridRow], drawn: int) -> str:
    """The goals in numbers: geometric mean and worst of the speed, memory, and every point that misses one.

    `drawn` is how many points there are, in the file or not.
    """
    measured = [row for row in rows if math.isfinite(row.speedup)]
    if not measured:
        return "grid: nothing measured"
    worst = min(measured, key=lambda row: row.speedup)
    fat = sum(row.memory < 1 for row in measured)
    lines = [
        f"grid: {len(measured)} of {drawn} points; geometric mean {_mean(measured):.2f}x, worst "
        f"{worst.speedup:.2f}x ({worst.point}); {fat} use more memory than the textbook"
    ]
    lines += [f"  {name}: {_mean(found):.2f}x of {len(found)}" for name, found in _groups(measured, "algorithm")]
    slow = sorted((row for row in measured if row.speedup < 1 or row.memory < 1), key=lambda row: row.speedup)
    lines += [
        f"  {row.speedup:.2f}x {row.point}: {row.ours_ms:.3g} ms, textbook {row.textbook_ms:.3g} ms; "
        f"{row.ours_mib:.0f} MiB, textbook {row.textbook_mib:.0f}"
        for row in slow
    ]
    lines += [f"  not measured: {row.point}: {row.note}" for row in rows if not math.isfinite(row.speedup)]
    return "\n".join(lines)


def _mean(rows: Sequence[GridRow]) -> float:
    return math.exp(sum(math.log(row.speedup) for row in rows) / len(rows))


def _groups(rows: Sequence[GridRow], field: str) -> list[tuple[Any, list[GridRow]]]:
    keys = sorted({getattr(row, field) for row in rows})
    return [(key, [row for row in rows if getattr(row, field) == key]) for key in keys]


def draw_grid(rows: Sequence[GridRow], path: Path) -> None:
    """A heat map for each axis: algorithms down, sizes across; the geometric mean, and the worst below it."""
    from matplotlib.figure import Figure

    measured = [row for row in rows if math.isfinite(row.speedup)]
    if not measured:
        return
    fields = ("parents", "children", "batch", "pose", "transforms", "dtype")
    names = [name for name, _ in _groups(measured, "algorithm")]
    keys = {field: [key for key, _ in _groups(measured, field)] for field in fields}
    widths = [len(keys[field]) for field in fields]
    figure = Figure(figsize=(2 + 0.75 * sum(widths), 1.5 + 0.5 * len(names)))
    axes = figure.subplots(1, len(fields), width_ratios=widths, sharey=True)
    for axis, field in zip(axes, fields):
        cells = [
            [[r for r in measured if r.algorithm == name and getattr(r, field) == key] for key in keys[field]]
            for name in names
        ]
        means = [[math.log2(_mean(cell)) if cell else NAN for cell in line] for line in cells]
        axis.imshow(means, cmap="RdYlGn", vmin=-4, vmax=4, aspect="auto")
        for y, line in enumerate(cells):
            for x, cell in enumerate(line):
                if cell:
                    text = f"{_mean(cell):.1f}\n({min(row.speedup for row in cell):.1f})"
                    axis.text(x, y, text, ha="center", va="center", fontsize=7)
        axis.set_xticks(range(len(keys[field])), [str(key) for key in keys[field]], fontsize=7, rotation=30, ha="right")
        axis.set_title(field, fontsize=9)
    axes[0].set_yticks(range(len(names)), names, fontsize=8)
    figure.suptitle("times faster than the compiled textbook form: geometric mean (worst)", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
