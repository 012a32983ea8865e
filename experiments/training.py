"""Networks of one kind trained side by side: one seed or one learning rate each, by one vmapped step.

A small network leaves a GPU idle; five of them, stacked, take hardly longer than one. Each has its own weights, rate,
batches and clipping, so that none can tell that the others are there.
"""

from __future__ import annotations

import copy
import csv
import gc
import json
import math
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from capsroute.data.seeding import generator_at
from capsroute.training.environment import revision
from capsroute.training.graphs import GraphedPass

CLIP, WARM_UP = 1.0, 0.05
WARM_STEPS = 8  # by then a step is recorded
BETAS, EPS = (0.9, 0.99), 1e-8


class Stack:
    """`len(seeds)` networks from `make()`, trained by Adam with a rate each.

    data: tensors [n,...] on the device, of which a batch is some rows. loss(outputs, *batch) -> [], of one network;
    the network is called with the first `inputs` tensors of a batch.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        seeds: Sequence[int],
        rates: Sequence[float],
        data: Sequence[Tensor],
        inputs: int,
        loss: Callable[..., Tensor],
        steps: int,
        batch: int,
    ):
        networks = []
        for seed in seeds:
            torch.manual_seed(seed)
            networks.append(make())
        self.device = data[0].device
        self.empty = copy.deepcopy(networks[0]).to("meta")
        parameters, _ = stack_module_state(networks)
        self.parameters = {k: p.detach().to(self.device).requires_grad_() for k, p in parameters.items()}
        self.data, self.inputs, self.loss, self.steps = data, inputs, loss, steps
        self.rates = torch.tensor(list(rates), device=self.device)
        self.factors = torch.tensor([schedule(step / steps) for step in range(steps)], device=self.device)
        rows = [torch.randint(len(data[0]), (steps, batch), generator=generator_at(s, "rows")) for s in seeds]
        self.rows = torch.stack(rows, 1).to(self.device)  # [steps, m, batch]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters.values()]
        self.count = torch.zeros((), device=self.device)
        graphs = self.device.type == "cuda" and os.environ.get("EXPERIMENTS_GRAPHS", "1") == "1"
        graphed = GraphedPass(self._step, self._forget) if graphs else None
        self._run = self._plain if graphed is None else graphed
        self.done = 0

    def train(self, steps: int) -> Tensor:
        """So many more steps; the last losses [m]."""
        first = self.done == 0
        if first:  # A stack let go before this one is a cycle: it must not be collected while steps are recorded.
            gc.collect()
            gc.disable()
        try:
            for _ in range(steps):
                losses = self._run(self.rows[self.done], self.factors[self.done])
                self.done += 1
                if first and self.done > WARM_STEPS:
                    gc.enable()
        finally:
            gc.enable()
        return losses.clone()

    @torch.no_grad()
    def outputs(self, *inputs: Tensor, piece: int = 512) -> Any:
        """What each network gives for inputs [n,...]: tensors [m,n,...], n taken a piece at a time."""
        run = vmap(lambda p, *x: functional_call(self.empty, p, x), in_dims=(0, *(None for _ in inputs)))
        found = [run(self.parameters, *parts) for parts in zip(*(x.split(piece) for x in inputs))]
        return (
            tuple(torch.cat(parts, 1) for parts in zip(*found)) if isinstance(found[0], tuple) else torch.cat(found, 1)
        )

    def _plain(self, *batch: Tensor) -> Tensor:
        self._forget()
        return self._step(*batch).detach()

    def _forget(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _step(self, rows: Tensor, factor: Tensor) -> Tensor:
        def one(parameters: dict[str, Tensor], *batch: Tensor) -> Tensor:
            return self.loss(functional_call(self.empty, parameters, batch[: self.inputs]), *batch[self.inputs :])

        batch = [tensor.index_select(0, rows.flatten()).unflatten(0, rows.shape) for tensor in self.data]
        losses = vmap(one)(self.parameters, *batch)  # [m]
        losses.sum().backward()
        self._adam(factor)
        return losses

    @torch.no_grad()
    def _adam(self, factor: Tensor) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters.values()]
        norms = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()  # [m]
        scale = CLIP / norms.clamp_min(CLIP)
        self.count += 1
        corrections = [1 - torch.pow(torch.full_like(self.count, beta), self.count) for beta in BETAS]
        for parameter, grad, (first, second) in zip(self.parameters.values(), grads, self.moments):
            each = (-1, *(1 for _ in grad.shape[1:]))
            grad = grad * scale.view(each)
            first.lerp_(grad, 1 - BETAS[0])
            second.lerp_(grad.square(), 1 - BETAS[1])
            step = (first / corrections[0]) / ((second / corrections[1]).sqrt() + EPS)
            parameter.sub_(step * (factor * self.rates).view(each))


def schedule(done: float) -> float:
    """The share of the learning rate at a share of the training: a rise, then half a cosine down to a fiftieth."""
    if done < WARM_UP:
        return (done + 1e-3) / WARM_UP
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def run_all(work: Callable[[Any], list[dict]], jobs: Sequence[Any], path: Path, at_once: int, seconds: float) -> None:
    """`work(job)` -> rows for each job, in order, so many processes at once (0: in this one); a CSV gets rows as each
    job ends.

    A process for each job: one that loses its GPU, or dies, takes no other with it, and is tried once more without CUDA
    graphs. When the time is up the processes end, and what they had not finished is not there: the next call goes on.
    """
    end = time.monotonic() + seconds
    waiting = [(job, True) for job in jobs]  # and whether graphs are allowed
    running: dict[Any, tuple[BaseProcess | None, bool]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {job: Path(folder) / f"{n}.json" for n, job in enumerate(jobs)}
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < max(1, at_once):
                job, graphs = waiting.pop(0)
                running[job] = _start(files[job], work, job, graphs) if at_once else None, graphs
                if at_once == 0:
                    _work_to(files[job], work, job)
            for job in [job for job, (process, _) in running.items() if not process or process.exitcode is not None]:
                process, graphs = running.pop(job)
                if files[job].is_file():
                    append(path, json.loads(files[job].read_text()))
                    print(f"done {job}, {len(waiting) + len(running)} left", flush=True)
                elif process and graphs:
                    print(f"failed {job}, exit code {process.exitcode}; once more, without CUDA graphs", flush=True)
                    waiting.append((job, False))
                else:
                    print(f"failed {job}", flush=True)
            time.sleep(0.2 if at_once else 0)
        for process, _ in running.values():
            if process:
                process.kill()
                process.join()
    left = [*running, *(job for job, _ in waiting)]
    print(f"time is up, left: {left}" if left else "all done", flush=True)


def _start(file: Path, work: Callable[[Any], list[dict]], job: Any, graphs: bool) -> BaseProcess:
    process = get_context("spawn").Process(target=_alone, args=(file, work, job, graphs))
    process.start()
    return process


def _alone(file: Path, work: Callable[[Any], list[dict]], job: Any, graphs: bool) -> None:
    """One job in a process of its own."""
    torch.set_num_threads(1)
    if not graphs:
        os.environ["EXPERIMENTS_GRAPHS"] = "0"
    _work_to(file, work, job)


def _work_to(file: Path, work: Callable[[Any], list[dict]], job: Any) -> None:
    """Rows of a job into a file, which is there when they all are; a failure is printed."""
    try:
        text = json.dumps(work(job))
    except Exception:
        print(f"{job}\n{traceback.format_exc()}", flush=True)
        return
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows, with the code version, to the end of a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*rows[0], "revision"], lineterminator="\n")
        if stream.tell() == 0:
            writer.writeheader()
        writer.writerows({**row, "revision": revision() or "unknown"} for row in rows)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
