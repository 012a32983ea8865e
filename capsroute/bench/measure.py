"""How a call is measured: time with device events and medians, CUDA graphs, peak memory, error against float64."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BUDGET = 0.12  # seconds of repetitions per number


def allow_recompiling(times: int = 64) -> None:
    """Let torch.compile make so many versions of one function, one for each of many shapes."""
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # its name in torch 2.6
    setattr(config, name, times)


def milliseconds(call: Callable[[], Any], device: str, budget: float = BUDGET) -> float:
    """The median time of a call, after warming up."""
    return together([call], device, budget)[0]


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


def _one(call: Callable[[], Any], device: str) -> float:
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


def capture(call: Callable[[], Any]) -> Callable[[], None]:
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

    replay.kept = call, kept  # type: ignore[attr-defined]  # what the graph reads and writes must outlive it
    return replay


def peak_mebibytes(call: Callable[[], Any]) -> float:
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
