"""Sending to the device through pinned memory: rows of a set that stays on the host, one batch ahead of their use, and
the few numbers that were drawn for a batch."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

AHEAD = 2  # buffers: one is being sent while the other is being filled
SHARE = 0.5  # of the device's free memory that a resident set may take; the model needs the rest


def fits_on(device: torch.device, size: int) -> bool:
    """Whether `size` bytes may live on `device` for the whole run."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size <= SHARE * free


def send(values: Tensor, device: torch.device) -> Tensor:
    """`values` on `device`; whoever sends them to a GPU waits neither for the copy nor for the work queued before it.

    A plain `.to(device)` waits for both, on a GPU that several programs share even for its turn: several times a batch.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def stream_rows(store: Tensor, chunks: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """`store[chunk]` on `device` for each chunk of row numbers; `store` is in host memory, and may be memory-mapped."""
    if device.type != "cuda":
        yield from (store.index_select(0, chunk).to(device) for chunk in chunks)
        return
    rows = max((len(chunk) for chunk in chunks), default=0)
    pinned = [torch.empty((rows, *store.shape[1:]), dtype=store.dtype, pin_memory=True) for _ in range(AHEAD)]
    sent = [torch.cuda.Event() for _ in range(AHEAD)]
    side = torch.cuda.Stream(device)
    waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()
    for step, chunk in enumerate(chunks):
        buffer, event = pinned[step % AHEAD][: len(chunk)], sent[step % AHEAD]
        event.synchronize()  # the batch that was in this buffer before has left it
        torch.index_select(store, 0, chunk, out=buffer)
        with torch.cuda.stream(side):
            waiting.append((buffer.to(device, non_blocking=True), event))
            event.record(side)
        if len(waiting) == AHEAD:
            yield _arrive(*waiting.popleft(), device)
    while waiting:
        yield _arrive(*waiting.popleft(), device)


def _arrive(batch: Tensor, event: torch.cuda.Event, device: torch.device) -> Tensor:
    current = torch.cuda.current_stream(device)
    current.wait_event(event)
    batch.record_stream(current)  # it was allocated on the side stream, and is used on this one
    return batch
