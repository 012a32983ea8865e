"""Runs cases: ours, the textbook form, and the textbook form compiled, in one process on the same tensors."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsroute.bench.cases import Case
from capsroute.bench.measure import capture, forward_backward, milliseconds, peak_mebibytes, relative_error

__all__ = ["Row", "hardware", "measure_case", "run_cases", "versions", "warm"]

NAN = float("nan")


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


def run_cases(
    cases: Iterable[Case], dtypes: Iterable[torch.dtype], device: str, compiled: bool = True, textbook: bool = True
) -> Iterator[Row]:
    """Rows of every case in every dtype, as they are measured."""
    for case in cases:
        for dtype in dtypes:
            yield from measure_case(case, dtype, device, compiled, textbook)


def measure_case(case: Case, dtype: torch.dtype, device: str, compiled: bool, textbook: bool) -> Iterator[Row]:
    """One row an implementation."""
    tensors = list(case.tensors(dtype, device).values())
    exact = _exact(case, tensors) if textbook else None
    for name, route in implementations(case, compiled, textbook).items():
        row = _row(case, dtype, name)
        try:
            _measure(row, route, tensors, exact, device)
        except torch.OutOfMemoryError:
            row.note = "out of memory"
        _forget(device)
        yield row


def implementations(case: Case, compiled: bool, textbook: bool) -> dict[str, Callable[..., Tensor]]:
    """What is compared."""
    found = {"capsroute": case.ours()}
    if textbook:
        found["textbook"] = case.textbook()
    if textbook and compiled:
        found["textbook compiled"] = torch.compile(case.textbook(), dynamic=False)
    return found


def _measure(row: Row, route: Callable[..., Tensor], tensors: list[Tensor], exact, device: str) -> None:
    with torch.no_grad():
        gradient = torch.randn(route(*tensors).shape, generator=torch.Generator().manual_seed(1)).to(device)
    step = forward_backward(route, tensors, gradient)

    def forward() -> Tensor:
        with torch.no_grad():
            return route(*tensors)

    row.forward_ms, row.step_ms = milliseconds(forward, device), milliseconds(step, device)
    if exact is not None:
        found = step()
        wanted = exact(gradient)
        row.error_poses, *gradients = relative_error(found, wanted)
        row.error_gradients = max(gradients)
        del found, wanted
    if device == "cuda":
        row.peak_mib = peak_mebibytes(step)
        row.graph_forward_ms = milliseconds(capture(forward), device)
        row.graph_step_ms = milliseconds(capture(step), device)


def _exact(case: Case, tensors: list[Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The textbook form in float64, made once for the gradient that all implementations are given."""
    kept: list[tuple[Tensor, ...]] = []

    def exact(gradient: Tensor) -> tuple[Tensor, ...]:
        if not kept:
            kept.append(forward_backward(case.textbook(), [t.double() for t in tensors], gradient.double())())
        return kept[0]

    return exact


def _row(case: Case, dtype: torch.dtype, name: str) -> Row:
    pose = f"{case.rows}x{case.k} -> {case.rows}x{case.o}" + (" shared" if case.shared else "")
    return Row(
        case.name, case.source, case.algorithm, case.batch, case.children, case.parents, pose, case.iterations,
        str(dtype).removeprefix("torch."), name,
    )  # fmt: skip


def _forget(device: str) -> None:
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()


def _warm_one(task: tuple[Case, torch.dtype]) -> None:
    """Compile what a case needs; the compiled code stays in the caches on disk."""
    case, dtype = task
    allow_tf32()
    tensors = list(case.tensors(dtype, "cuda").values())
    for route in implementations(case, compiled=True, textbook=True).values():
        with torch.no_grad():
            gradient = torch.ones_like(route(*tensors))
        forward_backward(route, tensors, gradient)()
    torch.cuda.synchronize()


def warm(cases: Iterable[Case], dtypes: Iterable[torch.dtype], jobs: int) -> None:
    """Compile all cases in that many processes at once, so that the measuring process finds everything compiled."""
    tasks = [(case, dtype) for case in cases for dtype in dtypes]
    with torch.multiprocessing.get_context("spawn").Pool(jobs) as pool:
        pool.map(_warm_one, tasks, chunksize=1)


def allow_tf32() -> None:
    """float32 products on the tensor cores, for all implementations alike."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def hardware(device: str) -> str:
    """The chip that a device is."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """What the numbers depend on besides the chip."""
    import importlib.metadata as metadata

    import capsroute

    found = {"python": platform.python_version(), "torch": torch.__version__, "capsroute": capsroute.__version__}
    try:
        found["triton"] = metadata.version("triton")
    except metadata.PackageNotFoundError:
        found["triton"] = "none"
    return found


def as_dicts(rows: Iterable[Row], device: str) -> list[dict[str, Any]]:
    """Rows as plain data, each with the hardware and the versions that it was measured on."""
    shared = {"hardware": hardware(device), **versions()}
    return [{**dataclasses.asdict(row), **shared} for row in rows]
