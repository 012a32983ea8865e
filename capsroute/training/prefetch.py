"""Batches made ahead of time: a thread draws and augments the next ones on a stream of its own while a GPU trains."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import torch

from capsroute.training.sources import Source

__all__ = ["Prefetched"]

AHEAD = 3  # batches that wait at most


class Prefetched:
    """A source whose batches are made on the GPU ahead of the loop that takes them; order and values are the same.

    Drawing random numbers on the CPU and copying them makes whoever does it wait for the stream it copies on. Here
    that is a thread with a stream of its own, not the loop. `state_dict` speaks of what was taken, not of what was
    made. On other devices it is a thread like any other.

    >>> import torch, capsroute as cr
    >>> from capsroute.training.prefetch import Prefetched
    >>> digits = cr.data.load("digits")
    >>> made_ahead = Prefetched(cr.data.Batches(digits, 100, seed=1), torch.device("cpu"))
    >>> plain = cr.data.Batches(digits, 100, seed=1)
    >>> all(torch.equal(one[0], other[0]) for one, other in zip(made_ahead, plain))
    True
    """

    def __init__(self, source: Source, device: torch.device):
        self.source, self.device = source, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.state = source.state_dict()

    def __len__(self) -> int:
        return len(self.source)

    def set_epoch(self, epoch: int) -> None:
        self.source.set_epoch(epoch)
        self.state = self.source.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)
        self.state = self.source.state_dict()

    def __iter__(self) -> Iterator[Any]:
        made: queue.Queue = queue.Queue(AHEAD)
        left = threading.Event()
        thread = threading.Thread(target=self._make, args=(made, left), daemon=True)
        thread.start()
        try:
            while True:
                batch, self.state, ready = _raised(made.get())
                if batch is None:
                    return
                if ready is not None:
                    self._take_over(batch, ready)
                yield batch
        finally:
            left.set()
            while thread.is_alive():  # it may be waiting for room
                _drop(made)
                thread.join(0.01)

    def _take_over(self, batch: tuple[torch.Tensor, ...], ready: torch.cuda.Event) -> None:
        ours = torch.cuda.current_stream(self.device)
        ours.wait_event(ready)
        for values in batch:
            values.record_stream(ours)  # its memory is not given to the next batch before we are done

    def _make(self, made: queue.Queue, left: threading.Event) -> None:
        """What the thread does: (batch, the source's state after it, when the GPU has it), then (None, state, None)."""
        try:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                for batch in self.source:
                    ready = None if self.stream is None else self.stream.record_event()
                    made.put((batch, self.source.state_dict(), ready))
                    if left.is_set():
                        return
            made.put((None, self.source.state_dict(), None))
        except BaseException as error:  # for the loop to raise
            made.put(error)


def _raised(item: Any) -> tuple:
    if isinstance(item, BaseException):
        raise item
    return item


def _drop(made: queue.Queue) -> None:
    with suppress(queue.Empty):
        made.get_nowait()
