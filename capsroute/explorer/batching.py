"""Questions that come at the same time, answered together: one worker, bounded waiting."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LARGEST_BATCH = 32  # rows that are answered together
MOST_WAITING = 1024  # questions


class Busy(RuntimeError):
    """More questions wait than can be answered soon."""


@dataclass(eq=False)
class Question:
    """Rows [n, ...] for a function that takes any number of them."""

    key: Any  # questions with the same key may be answered together
    answer: Callable[[Tensor], dict[str, Tensor]]
    rows: Tensor
    future: asyncio.Future[dict[str, Tensor]]


class Batcher:
    """Answers questions in the order they come, and with each those of its kind that already wait.

    >>> import asyncio, torch
    >>> from capsroute.explorer.batching import Batcher
    >>> async def main():
    ...     batcher = Batcher()
    ...     double = lambda rows: {"twice": 2 * rows}
    ...     one, two = await asyncio.gather(*(batcher.ask("double", double, torch.ones(1) * n) for n in (1, 2)))
    ...     return one["twice"], two["twice"]
    >>> asyncio.run(main())
    (tensor([2.]), tensor([4.]))
    """

    def __init__(self) -> None:
        self._waiting: list[Question] = []
        self._pool = ThreadPoolExecutor(1, "explorer")  # torch itself uses the cores
        self._working: asyncio.Task[None] | None = None

    async def ask(self, key: Any, answer: Callable[[Tensor], dict[str, Tensor]], rows: Tensor) -> dict[str, Tensor]:
        """The answer for these rows; `Busy` where too many questions wait."""
        if len(self._waiting) >= MOST_WAITING:
            raise Busy("Too many questions are waiting; ask again in a moment.")
        question = Question(key, answer, rows, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())
        return await question.future

    async def _work(self) -> None:
        try:
            # Those who ask in this very moment are heard before work begins.
            await asyncio.sleep(0)
            while self._waiting:
                await self._answer(self._take())
        finally:
            self._working = None

    def _take(self) -> list[Question]:
        """The oldest question and those of its kind, as many as fit; who went away is left out."""
        self._waiting = [question for question in self._waiting if not question.future.done()]
        taken: list[Question] = []
        rows = 0
        for question in self._waiting:
            same = not taken or question.key == taken[0].key
            if same and (not taken or rows + len(question.rows) <= LARGEST_BATCH):
                taken.append(question)
                rows += len(question.rows)
        self._waiting = [question for question in self._waiting if question not in taken]
        return taken

    async def _answer(self, taken: list[Question]) -> None:
        if not taken:
            return
        rows = torch.cat([question.rows for question in taken])
        try:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self._pool, taken[0].answer, rows)
        except Exception as error:
            for question in taken:
                if not question.future.done():
                    question.future.set_exception(error)
            return
        start = 0
        for question in taken:
            end = start + len(question.rows)
            if not question.future.done():
                question.future.set_result({name: output[start:end] for name, output in answers.items()})
            start = end
