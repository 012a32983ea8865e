"""HTTP for people who finish what they begin: a connection on which nothing goes forward is closed."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0  # seconds for the head of a request to arrive, from the first byte, or from the connection
ANSWERED_WITHIN = 60.0  # seconds for a request to be read, answered and taken by whoever asked
IDLE = 75  # seconds between an answer and the next question: longer than browsers under load pause


class Impatient(H11Protocol):
    """uvicorn's protocol closes connections that are idle after an answer, but not those that never asked anything,
    ask half a question, or do not read what they are sent. This one does."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._watch: asyncio.TimerHandle | None = None
        self._hearing = False  # whether a part of a head is there

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._hear()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._hear()
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:  # a whole head has come
            self._hearing = False
            self._wait(ANSWERED_WITHIN)

    def on_response_complete(self) -> None:
        # First of all: what it calls may already begin with the next request.
        self._hearing = False
        self._wait(IDLE)
        super().on_response_complete()
        if self.conn.trailing_data[0] and self.cycle.response_complete:  # of the next head, a part is there already
            self._hear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _hear(self) -> None:
        """The time runs from the first byte: whoever sends one now and then gains nothing."""
        if not self._hearing:
            self._hearing = True
            self._wait(PATIENCE)

    def _wait(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_later(seconds, self.transport.abort)
