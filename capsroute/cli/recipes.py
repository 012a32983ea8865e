"""`capsroute recipes`: every experiment that comes with capsroute."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.training import list_recipes, load_recipe
from capsroute.training.report import published

Filter = Annotated[str, typer.Argument(help="Show only recipes with this in their name.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute recipes`."""
    app.command()(recipes)


def recipes(contains: Filter = "") -> None:
    """List the recipes with their paper, row of its table and published accuracy."""
    table = Table("recipe", "paper", "row", "published", box=None)
    for name in list_recipes():
        if contains in name:
            recipe = load_recipe(name)
            title, row = (recipe.paper.title, recipe.paper.row) if recipe.paper else ("-", recipe.description)
            table.add_row(name, title, row, published(recipe))
    Console().print(table)
