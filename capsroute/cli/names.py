"""Names that a shell completes: recipes, models, packaged weights, data sets."""

from __future__ import annotations


def complete_recipes(incomplete: str) -> list[str]:
    """Recipes that begin so.

    >>> from capsroute.cli.names import complete_recipes
    >>> complete_recipes("quick")
    ['quickstart']
    """
    from capsroute.training import list_recipes

    return [name for name in list_recipes() if name.startswith(incomplete)]


def complete_models(incomplete: str) -> list[str]:
    """Models that begin so."""
    from capsroute.models import list_models

    return [name for name in list_models() if name.startswith(incomplete)]


def complete_weights(incomplete: str) -> list[str]:
    """Packaged weights whose tag begins so."""
    from capsroute.models import pretrained_weights

    return [weights.tag for weights in pretrained_weights() if weights.tag.startswith(incomplete)]


def complete_datasets(incomplete: str) -> list[str]:
    """Data sets that begin so."""
    from capsroute.data import list_datasets

    return [info.name for info in list_datasets() if info.name.startswith(incomplete)]
