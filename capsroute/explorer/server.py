"""The explorer's web application: a page, two questions, and limits on who may ask what and how long that may take."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio  # which starlette brings
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor
from uvicorn.protocols.http.h11_impl import H11Protocol

from capsroute.explorer.batching import Batcher, Busy
from capsroute.explorer.engine import Engine, Refused, images_of, poses_of
from capsroute.explorer.network import Network

STATIC = Path(__file__).with_name("static")
LARGEST_QUESTION = 2_000_000  # bytes
READ_SECONDS = 10.0  # that a request may take to arrive
PATIENCE = 10.0  # seconds for the head of a request to arrive, from the first byte, or from the connection
ANSWERED_WITHIN = 60.0  # seconds for a request to be read, answered and taken by whoever asked
IDLE = 75  # seconds between an answer and the next question: longer than browsers under load pause
MOST_CONNECTIONS = 800  # below the 1,024 files that a process may usually open
LOCAL = ("127.0.0.1", "localhost")
EVERYWHERE = ("0.0.0.0", "::")
HEADERS = {
    # The page runs only what comes with it, and nothing leaves it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(networks: Mapping[str, Network], host: str = LOCAL[0]) -> Starlette:
    """The web application; it answers only requests that name `host` or this machine, whoever they come from.

    Another name in the Host header is how a page of the internet would reach a local server through its visitor; a
    foreign Origin is how it would send questions.

    >>> from capsroute.explorer.network import load_network
    >>> from capsroute.explorer.server import make_app
    >>> [route.path for route in make_app({"digits": load_network()}).routes][:2]
    ['/', '/networks.json']
    """
    engines = {name: Engine(network) for name, network in networks.items()}
    about = {name: json.dumps(engine.describe()).encode() for name, engine in engines.items()}
    titles = [{"name": name, "title": network.title} for name, network in networks.items()]
    batcher = Batcher()

    def engine_of(request: Request) -> Engine:
        name = request.path_params["name"]
        if name not in engines:
            raise Refused(f"expected one of {', '.join(engines)}, got {name[:80]!r}")
        return engines[name]

    async def listing(request: Request) -> Response:
        return JSONResponse({"form": "server", "networks": titles})

    async def describe(request: Request) -> Response:
        engine_of(request)
        return Response(about[request.path_params["name"]], media_type="application/json")

    async def look(request: Request) -> Response:
        engine = engine_of(request)
        wanted = _wanted(request, engine)
        images = images_of(await _body(request), engine.model.input_shape)
        answer = await batcher.ask((engine, wanted), lambda rows: engine.look(rows, wanted), images)
        return _numbers([answer[name] for name in wanted])

    async def paint(request: Request) -> Response:
        engine = engine_of(request)
        if engine.painter is None:
            raise Refused("This network has no decoder.")
        poses = poses_of(await _body(request), engine.painter.input_shape)
        answer = await batcher.ask((engine, "paint"), lambda rows: {"pictures": engine.paint(rows)}, poses)
        return _numbers([answer["pictures"]])

    # Someone who listens on every address is reached under names that cannot be known here.
    hosts = ["*"] if host in EVERYWHERE else sorted({host, *LOCAL})
    return Starlette(
        routes=[
            Route("/", _page),
            Route("/networks.json", listing),
            Route("/networks/{name}/about.json", _answering(describe)),
            Route("/networks/{name}/look", _answering(look), methods=["POST"]),
            Route("/networks/{name}/paint", _answering(paint), methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(_Guard), Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free. A port in use is an error that says so."""
    if not host:  # to a socket it means every address
        raise ValueError("--host: expected an address, such as 127.0.0.1, got ''")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen(1024)
    except OSError as error:
        opened.close()
        option = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise ValueError(f"{option}: cannot listen on {host}:{port} ({error.strerror})") from None
    return opened


def serve(networks: Mapping[str, Network], opened: socket.socket, host: str) -> None:
    """Answer until interrupted."""
    # One core is left to the requests themselves: threads that wait for each other only slow both down.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    make_server(make_app(networks, host)).run(sockets=[opened])


def make_server(app: ASGIApp) -> uvicorn.Server:
    """The server of an application: not too many connections, and none that only waits."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Impatient,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE,
            server_header=False,
        )
    )


class _Guard:
    """Around everything: the same headers on every answer, and no questions from other sites' pages."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self.app if _same_origin(Headers(scope=scope)) else _foreign
        await app(scope, receive, with_headers)


async def _foreign(scope: Scope, receive: Receive, send: Send) -> None:
    await _refusal("This page may not ask here.", 403)(scope, receive, send)


def _same_origin(headers: Headers) -> bool:
    """Whether a request comes from this server's own page, or from no page at all."""
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _answering(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """What cannot be used is answered with a message."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as error:
            return _refusal(str(error), 400)
        except Busy as error:
            return _refusal(str(error), 503)
        except ClientDisconnect:
            return Response(status_code=400)

    return endpoint


def _wanted(request: Request, engine: Engine) -> tuple[str, ...]:
    """The outputs that are asked for, in that order."""
    known = engine.exposed.output_names
    wanted = tuple(request.query_params.get("want", ",".join(known)).split(","))
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(known):
        raise Refused(f"want: expected some of {', '.join(known)}")
    return wanted


def _numbers(arrays: list[Tensor]) -> Response:
    """Arrays of float32, one after the other, little-endian."""
    content = b"".join(array.contiguous().numpy().astype("<f4", copy=False).tobytes() for array in arrays)
    return Response(content, media_type="application/octet-stream")


async def _body(request: Request) -> bytes:
    """The body of a request, read no further than it may be long and no longer than it may take."""
    content = bytearray()
    try:
        with anyio.fail_after(READ_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > LARGEST_QUESTION:
                    raise Refused(f"This is too large: at most {LARGEST_QUESTION} bytes can be sent.")
    except TimeoutError:
        raise Refused(f"expected a whole question within {READ_SECONDS:.0f} seconds") from None
    return bytes(content)


def _refusal(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status_code=status)


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
