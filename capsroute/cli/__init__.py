"""The `capsroute` command. Each subcommand is one module of this folder, thin enough to read at a glance."""

import io
import sys
import warnings


def main() -> None:
    """Run the command line; say what to install when the training extra is missing."""
    try:
        from capsroute.cli.app import app
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "capsroute":
            raise
        sys.exit(f"capsroute: the command line needs the package {error.name!r}: pip install 'capsroute[train]'")
    if isinstance(sys.stdout, io.TextIOWrapper):  # what it cannot write, a file's odd name, is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _one_line  # type: ignore[assignment]
    if not sys.warnoptions:  # Python hides deprecations from all but who writes code; an option's are for who types it
        warnings.filterwarnings("default", ".* is deprecated since capsroute")
    app()


def _one_line(message: Warning | str, *where: object, **more: object) -> str:
    """A warning as a user of commands reads it: what it says, not the line of code that said it."""
    return f"capsroute: {message}\n"
