"""Networks of one kind trained side by side: one seed or one learning rate each, by one vmapped step.

A small network leaves a GPU idle; five of them, stacked, take hardly longer than one. Each has its own weights, rate,
batches and clipping, so that none can tell that the others are there.
"""

from __future__ import annotations

import copy
import csv
import math
import os
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from capsroute.data.seeding import generator_at
from capsroute.training.environment import revision
from capsroute.training.graphs import GraphedPass

CLIP, WARM_UP = 1.0, 0.05
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
        for _ in range(steps):
            losses = self._run(self.rows[self.done], self.factors[self.done])
            self.done += 1
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

    When the time is up the processes end, and what they had not finished is not there: the next call goes on with it.
    """
    end = time.monotonic() + seconds
    waiting = list(jobs)

    def finish(job: Any, result: Callable[[], list[dict]]) -> None:
        waiting.remove(job)
        try:
            append(path, result())
            print(f"done {job}, {len(waiting)} left", flush=True)
        except Exception:
            print(f"failed {job}\n{traceback.format_exc()}", flush=True)

    if at_once == 0:
        while waiting and time.monotonic() < end:
            finish(waiting[0], partial(work, waiting[0]))
    else:
        # A process for each job: one that loses its GPU takes no other job with it.
        with get_context("spawn").Pool(at_once, torch.set_num_threads, (1,), maxtasksperchild=1) as pool:
            results = {job: pool.apply_async(work, (job,)) for job in jobs}
            while waiting and time.monotonic() < end:
                time.sleep(0.2)
                for job in [job for job in waiting if results[job].ready()]:
                    finish(job, results[job].get)
    print(f"time is up, left: {waiting}" if waiting else "all done", flush=True)


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
