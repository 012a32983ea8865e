"""How much memory something takes at its highest."""

from contextlib import contextmanager
from pathlib import Path


@contextmanager
def little_memory(most=50_000):
    """Fail if more than so many kilobytes are taken inside, on a system that can tell."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        yield
        return

    def peak():
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])

    reset.write_text("5")  # forget the highest point so far
    before = peak()
    yield
    assert peak() - before < most


def anonymous_memory():
    """Kilobytes that are ours alone now: not those of files that are mapped, which the system takes back at will."""
    found = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(found[0].split()[1]) if found else 0
