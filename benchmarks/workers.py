"""Many processes compile at once; then each measures what it compiled while the others wait.

Compiling the textbook forms takes most of a benchmark's time, and measuring wants the chip for itself. So tasks are
prepared in parallel, and measured one after the other in the process that prepared them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from capsroute.bench.measure import allow_recompiling, allow_tf32

LOST = "its process ended"


class Task(Protocol):
    """`prepare` takes long and many run at once; `measure` runs alone, in the same process, and yields rows."""

    @property
    def name(self) -> str: ...

    @property
    def cost(self) -> int: ...  # of preparing it, roughly: more begins first

    def prepare(self) -> None: ...

    def measure(self) -> Iterator[Any]: ...


class Workers:
    """Processes that prepare all tasks at once, for at most `limit` seconds; then `measure` runs one of them alone.

    `enough` ends preparing earlier. jobs = 0: no processes; a task is prepared and measured here.
    """

    def __init__(
        self, tasks: Sequence[Task], jobs: int, limit: float, say: Callable[[str], None] = print,
        enough: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        self._tasks, self._jobs, self._limit, self._say, self._enough = tasks, jobs, limit, say, enough
        self._owners: dict[int, Connection] = {}
        self._processes: list[Any] = []
        self._places: dict[Connection, int] = {}

    def __enter__(self) -> Workers:
        if self._jobs:
            self._prepare(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()

    def measure(self, task: Task) -> Iterator[Any]:
        """The rows of a task; of one that was not prepared in time, none, and that is said."""
        if not self._jobs:
            yield from task.measure()
            return
        index = next(place for place, each in enumerate(self._tasks) if each is task)
        if index not in self._owners:
            self._say(f"{task.name}: not prepared in time")
            return
        connection = self._owners[index]
        connection.send(index)
        while (row := _received(connection)) is not None:
            if isinstance(row, str):  # why it failed
                self._say(f"{task.name}: {row}")
                return
            yield row

    def _start(self) -> list[Connection]:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        context = torch.multiprocessing.get_context("spawn")
        connections: list[Connection] = []
        for _ in range(min(self._jobs, len(self._tasks))):
            ours, theirs = context.Pipe()
            self._processes.append(context.Process(target=_work, args=(self._tasks, theirs), daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._places[ours] = len(connections)
            connections.append(ours)
        return connections

    def _prepare(self, free: list[Connection]) -> None:
        """Tasks go to whoever is free, those that take longest first, until all are prepared or the time is over."""
        waiting = sorted(range(len(self._tasks)), key=lambda index: -self._tasks[index].cost)
        busy: dict[Connection, int] = {}
        deadline = time.monotonic() + self._limit
        while (busy or (waiting and free)) and time.monotonic() < deadline and not self._enough():
            while waiting and free:
                connection = free.pop()
                busy[connection] = waiting.pop(0)
                connection.send(busy[connection])
            ready = wait(list(busy), min(1.0, deadline - time.monotonic()))
            for connection in [each for each in busy if each in ready]:
                index = busy.pop(connection)
                said = _received(connection)
                self._say(f"prepared {self._tasks[index].name}: {said}")
                if said == LOST:  # and what it had prepared before, which others do again
                    lost = [place for place, owner in self._owners.items() if owner is connection]
                    waiting += [place for place in lost if self._owners.pop(place)]
                else:
                    self._owners[index] = connection
                    free.append(connection)
        for connection in busy:  # whoever has something to measure finishes first: measuring wants the chip alone
            if connection in self._owners.values():
                self._say(f"prepared {self._tasks[busy[connection]].name} late: {_received(connection)}")
                self._owners[busy[connection]] = connection
            else:
                self._processes[self._places[connection]].kill()


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return LOST


def _work(tasks: Sequence[Task], connection: Connection) -> None:
    """A worker: prepares the tasks it is sent first, and measures those it is sent again."""
    allow_recompiling()
    allow_tf32()
    prepared: set[int] = set()
    while True:
        index = connection.recv()
        if index in prepared:
            _measure(tasks[index], connection)
        else:
            connection.send(_prepare(tasks[index]))
            prepared.add(index)


def _measure(task: Task, connection: Connection) -> None:
    try:
        for row in task.measure():
            connection.send(row)
        torch.cuda.empty_cache()
        connection.send(None)
    except Exception as error:
        connection.send(_sentence(error))


def _prepare(task: Task) -> str:
    began = time.monotonic()
    try:
        task.prepare()
        torch.cuda.synchronize()
    except Exception as error:  # it is seen again, and written down, when it is measured
        return _sentence(error)
    torch.cuda.empty_cache()
    return f"{time.monotonic() - began:.0f} s"


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
