"""`capsroute explore`: the capsule explorer, a local web page or a folder of plain files."""

import socket
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capsroute.cli.failures import explained

Runs = Annotated[list[Path] | None, typer.Argument(help="Run folders; without one, the networks that come along.")]
Host = Annotated[str, typer.Option(help="Address to listen on; others than 127.0.0.1 open it to the network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any that is free.")]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")]
Static = Annotated[
    Path | None, typer.Option("--static", help="Write a folder that any file server serves instead (needs npm, once).")
]


def explore(
    runs: Runs = None, host: Host = "127.0.0.1", port: Port = 8765, browser: Browser = True, static: Static = None
) -> None:
    """Draw a digit and watch capsules vote, agree and be routed."""
    try:
        from capsroute.explorer.network import load_networks
        from capsroute.explorer.server import listen, serve
        from capsroute.explorer.static_site import write_site
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"the explorer needs {error.name!r}: pip install 'capsroute[explore]'") from None

    console = Console()
    with explained():
        networks = load_networks(runs or ())
        if static is not None:
            for line in write_site(networks, static):
                console.print(line, highlight=False, soft_wrap=True)
            return
        opened = listen(host, port)
        port = opened.getsockname()[1]
        for line in opening(host, port, [network.title for network in networks.values()]):
            console.print(line, highlight=False, soft_wrap=True)
        if browser:
            threading.Timer(0.5, webbrowser.open, [_address(host, port)]).start()
        serve(networks, opened, host)


def opening(host: str, port: int, titles: list[str]) -> list[str]:
    """What is said before the first question: where the page is, and whom it is open to.

    >>> from capsroute.cli.explore import opening
    >>> opening("127.0.0.1", 8765, ["digits"])
    ['The capsule explorer is at http://127.0.0.1:8765/ (Ctrl+C ends it)']
    """
    lines = [f"The capsule explorer is at {_address(host, port)} (Ctrl+C ends it)"]
    if host in ("127.0.0.1", "localhost", "::1"):
        return lines
    here = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return [
        *lines,
        f"It is open to everyone who reaches this machine as {here}:{port}, without a password and without encryption.",
        f"They can use {', '.join(titles)} and see the sample images; no file of this machine, and no other program.",
    ]


def _address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host == "0.0.0.0" else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"
