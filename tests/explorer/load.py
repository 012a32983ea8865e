"""Many users of one explorer at once: each draws, strokes half a second apart, and waits for every answer.

    python -m tests.explorer.load --users 200 --seconds 10

starts a server in a process of its own, asks it over the loopback, and prints what users waited.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time

import httpx

SHAPE = 28 * 28
VOTES = 4 * (10 + 10 * 16 + 288 * 10 * 16)  # bytes of an answer


async def user(client: httpx.AsyncClient, address: str, until: float, pause: float, seed: int) -> list[float]:
    """What one user waited for each answer, in seconds; anything but a whole answer is an error."""
    chance, waits = random.Random(seed), []
    await asyncio.sleep(chance.random() * pause)
    while time.perf_counter() < until:
        drawing = chance.randbytes(SHAPE)
        start = time.perf_counter()
        answer = await client.post(f"{address}networks/mnist-max-min/look", content=drawing)
        waits.append(time.perf_counter() - start)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) == VOTES
        await asyncio.sleep(pause)
    return waits


async def crowd(address: str, users: int, seconds: float, pause: float) -> list[float]:
    """What all users waited, in no order."""
    limits = httpx.Limits(max_connections=users, max_keepalive_connections=users)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        until = time.perf_counter() + seconds
        waits = await asyncio.gather(*(user(client, address, until, pause, seed) for seed in range(users)))
    return [wait for each in waits for wait in each]


def summary(waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    parts = {"p50": 0.5, "p99": 0.99}
    return {"answers": len(ordered), "most": ordered[-1]} | {
        name: ordered[min(int(part * len(ordered)), len(ordered) - 1)] for name, part in parts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--pause", type=float, default=0.5)
    given = parser.parse_args()
    command = [sys.executable, "-m", "capsroute", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            asyncio.run(crowd(address, 2, 1, 0.1))  # warm
            found = summary(asyncio.run(crowd(address, given.users, given.seconds, given.pause)))
        finally:
            server.terminate()
    print(json.dumps(found | {"load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
