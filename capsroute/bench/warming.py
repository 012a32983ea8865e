"""Compiling everything that a benchmark needs in many processes at once, so that the measuring one finds it in caches.

torch.compile and Triton keep what they made on disk. A machine with many cores compiles all cases in the time of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from capsroute.bench.cases import Case
from capsroute.bench.measure import forward_backward
from capsroute.bench.models import Subject, training_step
from capsroute.bench.run import DTYPES, allow_tf32, implementations

__all__ = ["CaseTask", "ModelTask", "warm"]


class CaseTask(NamedTuple):
    """One implementation of a case in one dtype, compiled by running it once."""

    case: Case
    dtype: str
    implementation: str

    def run(self) -> None:
        tensors = list(self.case.tensors(DTYPES[self.dtype], "cuda").values())
        route = implementations(self.case, compiled=True, textbook=True)[self.implementation]
        with torch.no_grad():
            gradient = torch.ones_like(route(*tensors))
        forward_backward(route, tensors, gradient)()


class ModelTask(NamedTuple):
    """A training step and inference of a model, compiled or not."""

    subject: Subject
    half: bool
    compiled: bool

    def run(self) -> None:
        for call in training_step(self.subject, self.subject.batch, "cuda", self.half, self.compiled):
            call()


def warm(tasks: Sequence[CaseTask | ModelTask], jobs: int, limit: float) -> list[str]:
    """Run all tasks in that many processes, for at most `limit` seconds; what each did, or why it did not."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    deadline, said = time.monotonic() + limit, []
    with torch.multiprocessing.get_context("spawn").Pool(jobs) as pool:
        pending = [(task, pool.apply_async(_run, (task,))) for task in tasks]
        for task, result in pending:
            result.wait(max(0.0, deadline - time.monotonic()))
            said.append(f"{_name(task)}: {result.get() if result.ready() else 'not in time'}")
    return said


def _run(task: CaseTask | ModelTask) -> str:
    began = time.monotonic()
    allow_tf32()
    try:
        task.run()
        torch.cuda.synchronize()
    except Exception as error:  # it will be seen again, and written down, when it is measured
        return f"{type(error).__name__}: {error}".splitlines()[0]
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return f"{time.monotonic() - began:.0f} s"


def _name(task: CaseTask | ModelTask) -> str:
    if isinstance(task, CaseTask):
        return f"{task.case.name}, {task.dtype}, {task.implementation}"
    return f"{task.subject.model}, {'bfloat16' if task.half else 'float32'}{', compiled' if task.compiled else ''}"
