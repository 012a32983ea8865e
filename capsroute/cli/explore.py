"""`capsroute explore`: the capsule explorer, a local web page."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capsroute.cli.failures import explained

Run = Annotated[Path | None, typer.Argument(help="A run folder; without one, the small model that comes along.")]
Host = Annotated[str, typer.Option(help="Address to listen on; others than 127.0.0.1 open it to the network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any that is free.")]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute explore`."""
    app.command()(explore)


def explore(run: Run = None, host: Host = "127.0.0.1", port: Port = 8765, browser: Browser = True) -> None:
    """Draw a digit and watch the capsules: lengths, reconstructions, routing."""
    try:
        from capsroute.explorer.exhibit import load_exhibit
        from capsroute.explorer.server import listen, serve
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"the explorer needs {error.name!r}: pip install 'capsroute[explore]'") from None

    with explained():
        exhibit = load_exhibit(run)
        opened = listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{opened.getsockname()[1]}/"
        Console().print(f"The capsule explorer is at {address} (Ctrl+C ends it)", highlight=False, soft_wrap=True)
        if browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        serve(exhibit, opened, host)
