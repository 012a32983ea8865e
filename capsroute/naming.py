"""Things by name: the nearest name where one is not known, and what a name with options makes."""

import difflib
import fnmatch
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

OF_YOUR_OWN = "one of your own: first import the module that registers it (on the command line, --import MODULE)"

# What an option that is annotated so may be, and how that is called.
_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a string"),
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: the nearest that is, if one is near.

    >>> from capsroute.naming import did_you_mean
    >>> did_you_mean("capsnet_smal", ["capsnet_small", "tsai_cnn"])
    "; did you mean 'capsnet_small'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def names_like(pattern: str | None, names: Iterable[str]) -> list[str]:
    """The names that match a pattern, all for None, in alphabetical order.

    >>> from capsroute.naming import names_like
    >>> names_like("caps*", ["tsai_cnn", "capsnet"])
    ['capsnet']
    """
    if not (pattern is None or isinstance(pattern, str)):
        raise TypeError(f"filter: expected a pattern such as 'caps*', or None, got {pattern!r}")
    return sorted(name for name in names if pattern is None or fnmatch.fnmatch(name, pattern))


def check_one_of(argument: str, given: object, known: Iterable[str | None], also: str = "") -> None:
    """A ValueError about `argument` that lists what is known, and what `also` can be given, unless `given` is of it.

    >>> from capsroute.naming import check_one_of
    >>> check_one_of("side", "left", ("left", "right"))
    """
    choices = list(known)
    if given not in choices:
        near = did_you_mean(str(given), [choice for choice in choices if choice is not None])
        raise ValueError(f"{argument}: expected one of {', '.join(map(str, choices))}{also}, got {given!r}{near}")


def did_you_mean_beside(path: Path, holding: str) -> str:
    """The same for a folder that is not there or not the right one: the nearest beside it that holds such a file."""
    beside = {file.parent.name: str(file.parent) for file in path.parent.glob(f"*/{holding}")}
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean '{beside[near[0]]}'?" if near else ""


def options_of(maker: Callable[..., Any]) -> list[str]:
    """The arguments that a class or function takes, by name."""
    parameters = inspect.signature(maker).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def make_named(
    argument: str, makers: Mapping[str, Callable[..., T]], given: str | dict, *first: Any, also: str = ""
) -> T:
    """What a name makes, or `{"name": ..., option: value}`; `first` goes before the options.

    A ValueError about `argument` lists the names, and what `also` can be given, or the options of the name; or says
    what an option that is annotated as bool, int, float or str was given in place of one.

    >>> from capsroute.naming import make_named
    >>> make_named("number", {"complex": complex}, {"name": "complex", "imag": 1})
    1j
    """
    options = dict(given) if isinstance(given, dict) else {"name": given}
    name = options.pop("name", None)
    check_one_of(argument, name, makers, also)
    known = options_of(makers[name])[len(first) :]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{argument}: {name!r} has options {', '.join(known) or 'none'}, got {', '.join(unknown)}")
    _check_plain(argument, name, makers[name], options)
    return makers[name](*first, **options)


def _check_plain(argument: str, name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """ "false" would count as true, and true as one."""
    words = {kind.__name__: kind for kind in _PLAIN}  # of modules that postpone their annotations
    for option, value in options.items():
        annotation = inspect.signature(maker).parameters[option].annotation
        kind = words.get(annotation, annotation) if isinstance(annotation, str) else annotation
        if kind in _PLAIN and (not isinstance(value, _PLAIN[kind][0]) or isinstance(value, bool) != (kind is bool)):
            raise ValueError(f"{argument}: {name!r} expects {_PLAIN[kind][1]} as {option}, got {value!r}")
