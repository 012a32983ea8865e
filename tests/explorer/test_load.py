"""A hundred users at once: everyone gets an answer, and their own."""

import asyncio

import httpx
import numpy as np
import pytest
import torch

from capsroute.explorer.engine import Engine

pytest.importorskip("selenium", reason="tests.explorer.sites needs selenium")
from tests.explorer.load import summary
from tests.explorer.sites import served

USERS, STROKES = 100, 3


def test_a_hundred_users_lose_nothing(one_digit):
    images = torch.randint(
        256, (USERS, STROKES, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    expected = Engine(one_digit).look(images.flatten(0, 1), ("scores",))["scores"].view(USERS, STROKES, 10)

    async def user(client, at):
        found = []
        for stroke in range(STROKES):
            content = images[at, stroke].numpy().tobytes()
            answer = await client.post("networks/small/look?want=scores", content=content)
            assert answer.status_code == 200, answer.text
            found.append(torch.from_numpy(np.frombuffer(answer.content, "<f4").copy()))
        return torch.stack(found)

    async def crowd(address):
        limits = httpx.Limits(max_connections=USERS, max_keepalive_connections=USERS)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
            return torch.stack(await asyncio.gather(*(user(client, at) for at in range(USERS))))

    with served({"small": one_digit}) as address:
        torch.testing.assert_close(asyncio.run(crowd(address)), expected)


def test_waits_are_summed_up_by_rank():
    found = summary([float(wait) for wait in range(1, 201)])
    assert found == {"answers": 200, "most": 200.0, "p50": 101.0, "p99": 199.0}
