"""Questions at the same time: answered together, to the right ones, and never without an end."""

import asyncio
import threading

import pytest
import torch

from capsroute.explorer import batching
from capsroute.explorer.batching import LARGEST_BATCH, Batcher, Busy


def asked(count, answer, key=lambda at: "same", batcher=None):
    async def main():
        ours = batcher or Batcher()
        questions = [ours.ask(key(at), answer, torch.full((1, 2), float(at))) for at in range(count)]
        return await asyncio.gather(*questions, return_exceptions=True)

    return asyncio.run(main())


def test_each_gets_its_own_answer_and_few_passes_serve_all():
    sizes = []

    def answer(rows):
        sizes.append(len(rows))
        return {"twice": 2 * rows}

    answers = asked(100, answer)
    assert [float(found["twice"][0, 0]) for found in answers] == [2.0 * at for at in range(100)]
    assert max(sizes) == LARGEST_BATCH
    assert len(sizes) == 4


def test_questions_of_two_kinds_are_not_mixed():
    seen = []

    def answer(rows):
        seen.append(sorted({int(row[0]) % 2 for row in rows}))
        return {"same": rows}

    answers = asked(20, answer, key=lambda at: at % 2)
    assert sorted(seen) == [[0], [1]]
    assert [float(found["same"][0, 0]) for found in answers] == list(range(20))


def test_a_mistake_reaches_everyone_who_asked_and_no_one_else():
    def answer(rows):
        if float(rows.max()) < 3:
            raise RuntimeError("broken")
        return {"same": rows}

    answers = asked(4, answer, key=lambda at: at == 3)
    assert [str(error) for error in answers[:3]] == ["broken"] * 3
    assert float(answers[3]["same"][0, 0]) == 3


def test_too_many_waiting_are_told_so(monkeypatch):
    monkeypatch.setattr(batching, "MOST_WAITING", 5)
    answers = asked(8, lambda rows: {"same": rows})
    assert sum(isinstance(found, Busy) for found in answers) == 3


def test_who_went_away_is_not_worked_for():
    started, go_on, worked = threading.Event(), threading.Event(), []

    def answer(rows):
        worked.append(rows[:, 0].tolist())
        started.set()
        assert go_on.wait(60)
        return {"same": rows}

    async def main():
        batcher = Batcher()
        first = asyncio.ensure_future(batcher.ask(0, answer, torch.zeros(1, 1)))
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        second = asyncio.ensure_future(batcher.ask(1, answer, torch.ones(1, 1)))
        await asyncio.sleep(0)
        second.cancel()
        go_on.set()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(main())
    assert worked == [[0.0]]
