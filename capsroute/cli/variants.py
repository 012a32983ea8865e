"""Variants of a run's model as options of a command line."""

from __future__ import annotations

from capsroute.deprecation import warn_deprecated
from capsroute.training.report import VARIANTS


def parse_variant(given: str, *more: str) -> str:
    """A variant by its name, or one of `more`; "dynamic" is what "as_trained" was called before 0.2.

    >>> from capsroute.cli.variants import parse_variant
    >>> parse_variant("as_trained"), parse_variant("all", "all")
    ('as_trained', 'all')
    """
    if given == "dynamic":
        warn_deprecated("--routing dynamic", "--routing as_trained, whatever the routing is", since="0.2")
        return "as_trained"
    if given.replace("-", "_") in VARIANTS:
        return given.replace("-", "_")
    if given not in more:
        raise ValueError(f"--routing: expected one of {', '.join([*VARIANTS, *more])}, got {given!r}")
    return given
