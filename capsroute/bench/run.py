"""Runs cases: ours, the textbook form, and the textbook form compiled, in one process on the same tensors."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from capsroute.bench.cases import LARGEST_DRAWN, Case
from capsroute.bench.measure import capture, forward_backward, milliseconds, peak_mebibytes, relative_error, together

NAN = float("nan")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_BUDGET = 1.0  # seconds of repetitions per number, where other programs share the machine

Call = Callable[[], Any]
Routes = dict[str, Callable[..., Tensor]]
Exact = Callable[[Tensor], tuple[Tensor, ...] | None] | None  # what is compared with; None: nothing


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


def measure_case(
    case: Case, dtype: torch.dtype, device: str, routes: dict[str, Callable[..., Tensor]], quick: bool = False
) -> Iterator[Row]:
    """One row an implementation. `quick` measures only what a sweep fits: time and memory of forward and backward."""
    rows = {name: _row(case, dtype, name) for name in routes}
    try:
        tensors = list(case.tensors(dtype, device).values())
    except torch.OutOfMemoryError:
        yield from [dataclasses.replace(row, note="out of memory: the operands") for row in rows.values()]
        return
    exact = None if quick else _exact(case, tensors)
    if device == "cpu":
        yield from _on_cpu(case, dtype, routes, tensors, exact, quick)
        return
    for name, row in rows.items():
        try:
            _on_cuda(row, routes[name], tensors, exact, quick)
        except torch.OutOfMemoryError:
            row.note = "out of memory"
        torch.cuda.empty_cache()
    yield from best_ways(rows.values())


COMPILED = "textbook compiled"


def implementations(case: Case, compiled: bool) -> dict[str, Callable[..., Tensor]]:
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


def _on_cpu(
    case: Case, dtype: torch.dtype, routes: Routes, tensors: list[Tensor], exact: Exact, quick: bool
) -> Iterator[Row]:
    """All implementations in turns: other programs share a CPU."""
    calls = {name: _calls(route, tensors) for name, route in routes.items()}
    forward = [NAN] * len(calls) if quick else together([each[0] for each in calls.values()], "cpu", CPU_BUDGET)
    step = together([each[1] for each in calls.values()], "cpu", CPU_BUDGET / 10 if quick else CPU_BUDGET, 3)
    rows = []
    for name, forward_ms, step_ms in zip(calls, forward, step):
        row = dataclasses.replace(_row(case, dtype, name), forward_ms=forward_ms, step_ms=step_ms)
        _errors(row, *calls[name][1:], exact)
        rows.append(row)
    yield from best_ways(rows)


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


def append_row(row: Mapping[str, Any], path: Path, device: str) -> None:
    """One row more in a CSV file, with its hardware and versions: on the disk before the next is measured."""
    fields = {**row, "hardware": hardware(device), **versions()}
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(fields))
        if fresh:
            writer.writeheader()
        writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in fields.items()})
        file.flush()
        os.fsync(file.fileno())


R = TypeVar("R")


def read_rows(path: str | os.PathLike[str], kind: type[R]) -> list[R]:
    """The rows of a CSV file as dataclasses of a kind; what that has no field for (hardware, versions) is left out."""
    make: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    kinds = {field.name: make[str(field.type)] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    with Path(path).open(newline="") as file:
        return [
            kind(**{key: kinds[key](value) for key, value in row.items() if key in kinds})
            for row in csv.DictReader(file)
        ]
