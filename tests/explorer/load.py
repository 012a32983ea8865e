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
from pathlib import Path
from urllib.parse import urlsplit

SHAPE = 28 * 28
VOTES = 4 * (10 + 10 * 16 + 288 * 10 * 16)  # bytes of an answer


async def user(host: str, port: int, until: float, pause: float, seed: int) -> list[float]:
    """What one user waited for each answer, in seconds; anything but a whole answer is an error."""
    chance, waits = random.Random(seed), []
    await asyncio.sleep(chance.random() * pause)
    # Plain streams: a client that computes more than the server would measure itself.
    reader, writer = await asyncio.open_connection(host, port, limit=2 * VOTES)
    head = f"POST /networks/mnist-max-min/look HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {SHAPE}\r\n\r\n"
    while time.perf_counter() < until:
        drawing = chance.randbytes(SHAPE)
        start = time.perf_counter()
        writer.write(head.encode() + drawing)
        answer = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(VOTES)
        waits.append(time.perf_counter() - start)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert f"content-length: {VOTES}".encode() in answer.lower(), answer
        await asyncio.sleep(pause)
    writer.close()
    return waits


async def crowd(address: str, users: int, seconds: float, pause: float) -> list[float]:
    """What all users waited, in no order."""
    where = urlsplit(address)
    until = time.perf_counter() + seconds
    waits = await asyncio.gather(*(user(where.hostname, where.port, until, pause, seed) for seed in range(users)))
    return [wait for each in waits for wait in each]


def summary(waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    parts = {"p50": 0.5, "p99": 0.99}
    return {"answers": len(ordered), "most": ordered[-1]} | {
        name: ordered[min(int(part * len(ordered)), len(ordered) - 1)] for name, part in parts.items()
    }


def cpu_seconds(process: int) -> float:
    """What a process has computed so far, on Linux."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
            before, own = cpu_seconds(server.pid), time.process_time()
            found = summary(asyncio.run(crowd(address, given.users, given.seconds, given.pause)))
            found["users_cpu_ms"] = 1000 * (time.process_time() - own) / found["answers"]
            found["server_cpu_ms"] = 1000 * (cpu_seconds(server.pid) - before) / found["answers"]
        finally:
            server.terminate()
    print(json.dumps(found | {"load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
