"""Things by name: the nearest name where one is not known, and what a name with options makes."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: the nearest that is, if one is near.

    >>> from capsroute.naming import did_you_mean
    >>> did_you_mean("capsnet_smal", ["capsnet_small", "tsai_cnn"])
    "; did you mean 'capsnet_small'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def options_of(maker: Callable[..., Any]) -> list[str]:
    """The arguments that a class or function takes, by name."""
    parameters = inspect.signature(maker).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def make_named(
    argument: str, makers: Mapping[str, Callable[..., T]], given: str | dict, *first: Any, also: str = ""
) -> T:
    """What a name makes, or `{"name": ..., option: value}`; `first` goes before the options.

    A ValueError about `argument` lists the names, and what `also` can be given, or the options of the name.

    >>> from capsroute.naming import make_named
    >>> make_named("number", {"complex": complex}, {"name": "complex", "imag": 1})
    1j
    """
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if name not in makers:
        hint = did_you_mean(str(name), makers)
        raise ValueError(f"{argument}: expected one of {', '.join(makers)}{also}, got {name!r}{hint}")
    known = options_of(makers[name])[len(first) :]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{argument}: {name!r} has options {', '.join(known) or 'none'}, got {', '.join(unknown)}")
    return makers[name](*first, **options)
