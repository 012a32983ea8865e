"""All routers by name. A layer takes `routing=` as a name, as a dict of a name and options, or as a router."""

from __future__ import annotations

import copy
import inspect

from capsroute.layers.dot_routers import DynamicRouter, FastRouter, MaxMinRouter, PoolingRouter
from capsroute.layers.gaussian_routers import EMRouter, HeinsenRouter
from capsroute.layers.inverted_attention import InvertedAttentionRouter
from capsroute.layers.router import Router

__all__ = ["list_routings", "make_router"]

_ROUTERS: dict[str, type[Router]] = {
    router.name: router
    for router in (
        DynamicRouter,
        MaxMinRouter,
        FastRouter,
        PoolingRouter,
        InvertedAttentionRouter,
        EMRouter,
        HeinsenRouter,
    )
}


def list_routings() -> list[str]:
    """The names that `routing=` takes.

    >>> from capsroute.layers import list_routings
    >>> "max_min" in list_routings()
    True
    """
    return list(_ROUTERS)


def make_router(routing: str | dict | Router) -> Router:
    """A router from a name, from `{"name": ..., option: value}`, or a copy of the router that is given.

    >>> from capsroute.layers import make_router
    >>> make_router({"name": "dynamic", "iterations": 1})
    DynamicRouter(iterations=1, stop_gradient=False)
    """
    if isinstance(routing, Router):
        return copy.deepcopy(routing)
    options = {"name": routing} if isinstance(routing, str) else dict(routing)
    name = options.pop("name", None)
    if name not in _ROUTERS:
        raise ValueError(f"routing: expected one of {', '.join(_ROUTERS)}, or a router, got {name!r}")
    known = list(inspect.signature(_ROUTERS[name].__init__).parameters)[1:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"routing: {name!r} has options {', '.join(known)}, got {', '.join(unknown)}")
    return _ROUTERS[name](**options)
