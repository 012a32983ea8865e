"""Progress bars for what takes long: on a terminal only, on standard error, gone when it is over."""

import sys
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any


@contextmanager
def bar(text: str, total: int | None = None, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar of `total` steps, None where nobody knows how many; what comes back is called with steps that are done.

    Nothing is shown where standard error is no terminal, or rich is not installed.

    >>> from capsroute.bars import bar
    >>> with bar("testing", total=3) as advance:
    ...     advance(2)
    """
    console = _console() if shown else None
    if console is None:
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda count: progress.advance(task, count)


class watched:
    """Batches, with a bar while they are gone through; as often as one likes.

    >>> from capsroute.bars import watched
    >>> list(watched([1, 2, 3], "counting"))
    [1, 2, 3]
    """

    def __init__(self, batches: Any, text: str, shown: bool = True):
        self.batches, self.text, self.shown = batches, text, shown

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        total = len(self.batches) if isinstance(self.batches, Sized) else None
        with bar(self.text, total, self.shown) as advance:
            for batch in self.batches:
                yield batch
                advance(1)


def _console() -> Any:
    """A terminal to draw on, or None."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None
