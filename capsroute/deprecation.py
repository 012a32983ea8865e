"""How a public name goes: it warns for two minor releases, and says which version takes it away (CONTRIBUTING.md)."""

import warnings

MINORS = 2  # releases that a name keeps working for, counted from the one that first warns


def removal(since: str) -> str:
    """The version that takes away what has warned since a version.

    >>> from capsroute.deprecation import removal
    >>> removal("0.2")
    '0.4'
    """
    major, minor = (int(part) for part in since.split(".")[:2])
    return f"{major}.{minor + MINORS}"


def warn_deprecated(old: str, instead: str, since: str, depth: int = 1) -> None:
    """Warn that `old` goes, what to write instead, and when. `depth`: calls between here and whoever is to change.

    >>> import warnings
    >>> from capsroute.deprecation import warn_deprecated
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_deprecated("cr.old", "cr.new", since="0.2")
    >>> print(caught[0].message)
    cr.old is deprecated since capsroute 0.2 and goes in 0.4; write cr.new
    """
    message = f"{old} is deprecated since capsroute {since} and goes in {removal(since)}; write {instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=2 + depth)
