"""Which examples count when master coefficients are accumulated (Zhao 2019, section 8 and appendix A, step 3)."""

from __future__ import annotations

import inspect

from capsroute.inference.filters.base import CorrectFilter, Examples, Filter
from capsroute.inference.filters.clustering import ClusteringFilter
from capsroute.inference.filters.similarity import SimilarityFilter

__all__ = [
    "ClusteringFilter",
    "CorrectFilter",
    "Examples",
    "Filter",
    "SimilarityFilter",
    "list_filters",
    "make_filter",
]

_FILTERS: dict[str, type[Filter]] = {
    kind.name: kind for kind in (Filter, SimilarityFilter, ClusteringFilter, CorrectFilter)
}


def list_filters() -> list[str]:
    """The names that `filter=` takes.

    >>> from capsroute.inference import list_filters
    >>> list_filters()
    ['none', 'similarity', 'clustering', 'correct']
    """
    return list(_FILTERS)


def make_filter(filter: str | dict | Filter | None) -> Filter:
    """A filter from a name, from `{"name": ..., option: value}`, or the filter that is given; None filters nothing.

    >>> from capsroute.inference import make_filter
    >>> make_filter({"name": "similarity", "fraction": 0.5}).config()
    {'name': 'similarity', 'measure': 'pearson', 'fraction': 0.5, 'threshold': None}
    """
    if isinstance(filter, Filter):
        return filter
    options = {"name": filter or "none"} if not isinstance(filter, dict) else dict(filter)
    name = options.pop("name", None)
    if name not in _FILTERS:
        raise ValueError(f"filter: expected one of {', '.join(_FILTERS)}, or a Filter, got {name!r}")
    known = list(inspect.signature(_FILTERS[name]).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"filter: {name!r} has options {', '.join(known) or 'none'}, got {', '.join(unknown)}")
    return _FILTERS[name](**options)
