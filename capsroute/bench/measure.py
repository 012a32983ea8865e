"""How a call is measured (time with device events and medians, CUDA graphs, peak memory, error against float64), and a
case: ours, the textbook form, and the textbook form compiled, in one process on the same tensors."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from capsroute.bench.cases import LARGEST_DRAWN, Case

BUDGET = 0.12  # seconds of repetitions per number
CPU_BUDGET = 1.0  # the same where other programs share the machine
NAN = float("nan")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COMPILED = "textbook compiled"

Call = Callable[[], Any]
Routes = dict[str, Callable[..., Tensor]]
Exact = Callable[[Tensor], tuple[Tensor, ...] | None] | None  # what is compared with; None: nothing
R = TypeVar("R")


def allow_recompiling() -> None:
    """Let torch.compile make many versions of one function, one for each of many shapes."""
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name in torch 2.6
    setattr(config, name, 64)


def milliseconds(call: Call, device: str) -> float:
    """The median time of a call, after warming up."""
    return together([call], device)[0]


def together(
    calls: Sequence[Callable[[], Any]], device: str, budget: float = BUDGET, least: int = 5, warm: int | None = None
) -> list[float]:
    """The median milliseconds of each call, taken in turns so that a machine that slows down slows all of them.

    As many turns as the budget (seconds a call) allows, after `warm` that do not count (None: as the device needs).
    """
    for call in calls:
        for _ in range((3 if device == "cuda" else 1) if warm is None else warm):
            call()
    times: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    while len(times[0]) < least or (time.perf_counter() - began < budget * len(calls) and len(times[0]) < 1000):
        for call, taken in zip(calls, times):
            taken.append(_one(call, device))
    return [statistics.median(taken) for taken in times]


def _one(call: Call, device: str) -> float:
    if device != "cuda":
        # One thread's own clock leaves out the time in which other programs had the core.
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        began = clock()
        call()
        return (clock() - began) * 1e3
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def capture(call: Call) -> Callable[[], None]:
    """The call as a CUDA graph: calling the result replays it, without the host's share of the time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def replay() -> None:
        graph.replay()

    # What the graph reads and writes must outlive it.
    replay.call, replay.kept = call, kept  # type: ignore[attr-defined]
    return replay


def peak_mebibytes(call: Call) -> float:
    """The most device memory that a call holds beyond what was held before it."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def forward_backward(
    route: Callable[..., Tensor], tensors: Sequence[Tensor], gradient: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """A call that makes the poses and the gradient of every tensor."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]

    def call() -> tuple[Tensor, ...]:
        poses = route(*leaves)
        gradients = torch.autograd.grad(poses, leaves, gradient.to(poses.dtype), allow_unused=True)
        # Detached: an autograd graph that outlives the call would tie a capture to the stream it was made on.
        return poses.detach(), *gradients

    return call


def relative_error(ours: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> list[float]:
    """|ours - exact| / |exact| of each tensor, in float64; where neither exists it is left out."""
    pairs = [(a, b) for a, b in zip(ours, exact) if a is not None and b is not None]
    return [((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300)).item() for a, b in pairs]


@dataclass
class Row:
    """One implementation of one case: milliseconds, mebibytes beyond the inputs, relative errors against float64."""

    case: str
    source: str
    algorithm: str
    batch: int
    children: int
    parents: int
    pose: str
    iterations: int
    dtype: str
    implementation: str
    forward_ms: float = NAN
    step_ms: float = NAN  # forward and backward
    graph_forward_ms: float = NAN  # the same as a CUDA graph, without the host's share
    graph_step_ms: float = NAN
    peak_mib: float = NAN
    error_poses: float = NAN
    error_gradients: float = NAN  # the worst of all gradients
    note: str = ""


def measure_case(case: Case, dtype: torch.dtype, device: str, routes: Routes, quick: bool = False) -> Iterator[Row]:
    """One row an implementation. `quick` measures only what a sweep fits: time and memory of forward and backward."""
    rows = {name: _row(case, dtype, name) for name in routes}
    try:
        tensors = list(case.tensors(dtype, device).values())
    except torch.OutOfMemoryError:
        yield from [dataclasses.replace(row, note="out of memory: the operands") for row in rows.values()]
        return
    exact = None if quick else _exact(case, tensors)
    if device == "cpu":
        _on_cpu(rows, routes, tensors, exact, quick)
    for name, row in rows.items() if device == "cuda" else ():
        try:
            _on_cuda(row, routes[name], tensors, exact, quick)
        except torch.OutOfMemoryError:
            row.note = "out of memory"
        torch.cuda.empty_cache()
    yield from best_ways(rows.values())


def implementations(case: Case, compiled: bool) -> Routes:
    """What is compared; the textbook form is compiled in every way that it can be written."""
    found = {"capsroute": case.ours(), "textbook": case.textbook()}
    if compiled:
        found |= {f"{COMPILED}: {way}": torch.compile(case.textbook(way), dynamic=False) for way in case.ways}
    return found


def best_ways(rows: Iterable[Row]) -> list[Row]:
    """The rows, of which those of compiled ways become one: the fastest step, which its note names."""
    rows = list(rows)
    ways = [row for row in rows if row.implementation.startswith(COMPILED)]
    if not ways:
        return rows
    best = min(ways, key=lambda row: min(x for x in (row.graph_step_ms, row.step_ms, math.inf) if x == x))
    way = best.implementation.removeprefix(f"{COMPILED}: ")
    best = dataclasses.replace(best, implementation=COMPILED, note=f"{best.note} written as {way}".strip())
    return [row for row in rows if row not in ways] + [best]


def _calls(route: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[Call, Call, Tensor]:
    """Forward; forward and backward; and the gradient of the poses, the same for all implementations."""

    def forward() -> Tensor:
        with torch.no_grad():
            return route(*tensors)

    shape, device = forward().shape, tensors[0].device
    where = device if shape.numel() > LARGEST_DRAWN else torch.device("cpu")  # as the tensors are
    gradient = torch.randn(shape, generator=torch.Generator(where).manual_seed(1), device=where).to(device)
    return forward, forward_backward(route, tensors, gradient), gradient


def _on_cpu(rows: dict[str, Row], routes: Routes, tensors: list[Tensor], exact: Exact, quick: bool) -> None:
    """All implementations in turns: other programs share a CPU."""
    calls = {name: _calls(route, tensors) for name, route in routes.items()}
    forward = [NAN] * len(calls) if quick else together([each[0] for each in calls.values()], "cpu", CPU_BUDGET)
    step = together([each[1] for each in calls.values()], "cpu", CPU_BUDGET / 10 if quick else CPU_BUDGET, 3)
    for row, (_, call, gradient), forward_ms, step_ms in zip(rows.values(), calls.values(), forward, step):
        row.forward_ms, row.step_ms = forward_ms, step_ms
        _errors(row, call, gradient, exact)


def _on_cuda(row: Row, route: Callable[..., Tensor], tensors: list[Tensor], exact: Exact, quick: bool) -> None:
    forward, step, gradient = _calls(route, tensors)
    _errors(row, step, gradient, exact)
    torch.cuda.empty_cache()
    row.peak_mib = peak_mebibytes(step)
    if quick:
        _quickly(row, step)
        return
    row.forward_ms, row.step_ms = milliseconds(forward, "cuda"), milliseconds(step, "cuda")
    row.graph_forward_ms, row.graph_step_ms = (milliseconds(capture(call), "cuda") for call in (forward, step))


def _quickly(row: Row, step: Call) -> None:
    """A graph where a step is short; where it is long the host hides behind the chip, and a few calls do."""
    row.step_ms = together([step], "cuda", 0.0, least=2, warm=0)[0]
    if row.step_ms < 20:
        row.graph_step_ms = together([capture(step)], "cuda", 0.02, warm=1)[0]


def _errors(row: Row, step: Call, gradient: Tensor, exact: Exact) -> None:
    if exact is None:
        return
    wanted = exact(gradient)
    if wanted is None:
        row.note = "no errors: float64 is out of memory"
        return
    row.error_poses, *gradients = relative_error(step(), wanted)
    row.error_gradients = max(gradients)


def _exact(case: Case, tensors: list[Tensor]) -> Callable[[Tensor], tuple[Tensor, ...] | None]:
    """The textbook form in float64, made once for the gradient that all implementations are given, if it fits."""
    kept: list[tuple[Tensor, ...] | None] = []

    def exact(gradient: Tensor) -> tuple[Tensor, ...] | None:
        if not kept:
            try:
                kept.append(forward_backward(case.textbook(), [t.double() for t in tensors], gradient.double())())
            except torch.OutOfMemoryError:
                kept.append(None)
        return kept[0]

    return exact


def _row(case: Case, dtype: torch.dtype, name: str) -> Row:
    pose = f"{case.rows}x{case.k} -> {case.rows}x{case.o}" + (" shared" if case.shared else "")
    return Row(
        case.name, case.source, case.algorithm, case.batch, case.children, case.parents, pose, case.iterations,
        str(dtype).removeprefix("torch."), name,
    )  # fmt: skip


def allow_tf32() -> None:
    """float32 products on the tensor cores, for all implementations alike."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def hardware(device: str) -> str:
    """The chip that a device is."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    from capsroute.training.environment import processor

    threads = torch.get_num_threads()
    timed = "1 thread, CPU time" if threads == 1 else f"{threads} threads"
    return f"{processor()}, {timed}"


def versions() -> dict[str, str]:
    """What the numbers depend on besides the chip."""
    import capsroute
    from capsroute.training.environment import package_version

    found = {"python": platform.python_version(), "torch": torch.__version__, "capsroute": capsroute.__version__}
    return found | {"triton": package_version("triton") or "none"}


def as_dicts(rows: Iterable[Any], device: str) -> list[dict[str, Any]]:
    """Rows as plain data, each with the hardware and the versions that it was measured on."""
    shared = {"hardware": hardware(device), **versions()}
    return [{**dataclasses.asdict(row), **shared} for row in rows]


def as_text(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a CSV file has it: numbers of six digits."""
    return {key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()}


def append_row(row: Mapping[str, Any], path: Path, device: str) -> None:
    """One row more in a CSV file, with its hardware and versions: on the disk before the next is measured."""
    fields = {**row, "hardware": hardware(device), **versions()}
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(fields))
        if fresh:
            writer.writeheader()
        writer.writerow(as_text(fields))
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: str | os.PathLike[str], kind: type[R]) -> list[R]:
    """The rows of a CSV file as dataclasses of a kind; what that has no field for (hardware, versions) is left out."""
    make: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    kinds = {field.name: make[str(field.type)] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    with Path(path).open(newline="") as file:
        return [
            kind(**{key: kinds[key](value) for key, value in row.items() if key in kinds})
            for row in csv.DictReader(file)
        ]
