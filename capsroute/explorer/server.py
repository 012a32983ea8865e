"""The explorer's web application: a page, four questions, and limits on what may be sent."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from capsroute.explorer.engine import Engine, to_grey
from capsroute.explorer.exhibit import Exhibit
from capsroute.explorer.pictures import Refused, as_message, from_file, from_message

__all__ = ["listen", "make_app", "serve"]

STATIC = Path(__file__).with_name("static")
LARGEST_QUESTION = 2_000_000  # bytes of JSON
LARGEST_UPLOAD = 10_000_000
LOCAL = ("127.0.0.1", "localhost")
EVERYWHERE = ("0.0.0.0", "::")
HEADERS = {
    # The page runs only what comes with it, and nothing leaves it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(exhibit: Exhibit, host: str = LOCAL[0]) -> Starlette:
    """The web application; it answers only requests that name `host` or this machine, whoever they come from.

    Another name in the Host header is how a page of the internet would reach a local server through its visitor.

    >>> from capsroute.explorer.exhibit import load_exhibit
    >>> from capsroute.explorer.server import make_app
    >>> [route.path for route in make_app(load_exhibit()).routes][:2]
    ['/', '/api/model']
    """
    engine = Engine(exhibit)

    def predict(message: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        answer = engine.predict(engine.see(from_message(message.get("image")), message.get("centre") is True))
        return answer | {"milliseconds": 1000 * (time.perf_counter() - start)}

    def route(message: dict[str, Any]) -> dict[str, Any]:
        return engine.route(engine.see(from_message(message.get("image")), False))

    def reconstruct(message: dict[str, Any]) -> dict[str, Any]:
        name, pose = message.get("class"), message.get("pose")
        if not isinstance(name, int) or not isinstance(pose, list) or not all(map(_is_number, pose)):
            raise Refused("capsule: expected a class and a pose of finite numbers")
        return engine.reconstruct(name, pose)

    def upload(content: bytes) -> dict[str, Any]:
        image = from_file(content)
        if exhibit.centred and float(image.mean()) > 0.5:
            image = 1 - to_grey(image)  # dark on light, as on paper; the network knows light on dark
        return {"image": as_message(engine.see(image, exhibit.centred))}

    # Someone who listens on every address is reached under names that cannot be known here.
    hosts = ["*"] if host in EVERYWHERE else sorted({host, *LOCAL})
    return Starlette(
        routes=[
            Route("/", _page),
            Route("/api/model", lambda request: JSONResponse(engine.describe(), headers=HEADERS)),
            Route("/api/predict", _answering(predict), methods=["POST"]),
            Route("/api/route", _answering(route), methods=["POST"]),
            Route("/api/reconstruct", _answering(reconstruct), methods=["POST"]),
            Route("/api/upload", _uploading(upload), methods=["POST"]),
            Mount("/static", _Files(directory=STATIC)),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free. A port in use is an error that says so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
        opened.listen()
    except OSError as error:
        opened.close()
        raise ValueError(f"--port: cannot listen on {host}:{port} ({error.strerror})") from None
    return opened


def serve(exhibit: Exhibit, opened: socket.socket, host: str) -> None:
    """Answer until interrupted."""
    import uvicorn

    config = uvicorn.Config(make_app(exhibit, host), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[opened])


class _Files(StaticFiles):
    """Static files with the same headers as everything else."""

    def file_response(self, *args, **kwargs) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=HEADERS)


def _answering(answer: Callable[[dict[str, Any]], dict[str, Any]]):
    """A question in JSON, answered in JSON; what cannot be used is answered with a message."""

    async def endpoint(request: Request) -> Response:
        try:
            message = json.loads(await _body(request, LARGEST_QUESTION))
            if not isinstance(message, dict):
                raise Refused("expected a JSON object")
            return JSONResponse(await run_in_threadpool(answer, message), headers=HEADERS)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            return _refusal("expected JSON")
        except Refused as error:
            return _refusal(str(error))

    return endpoint


def _uploading(answer: Callable[[bytes], dict[str, Any]]):
    """A file as the body of a request."""

    async def endpoint(request: Request) -> Response:
        try:
            content = await _body(request, LARGEST_UPLOAD)
            return JSONResponse(await run_in_threadpool(answer, content), headers=HEADERS)
        except Refused as error:
            return _refusal(str(error))

    return endpoint


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, read no further than it may be long."""
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > most:
            raise Refused(f"This is too large: at most {most // 1_000_000} MB can be sent.")
        parts.append(part)
    return b"".join(parts)


def _refusal(message: str) -> Response:
    return JSONResponse({"error": message}, status_code=400, headers=HEADERS)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e6
