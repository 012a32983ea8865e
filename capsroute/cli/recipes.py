"""`capsroute recipes`: every experiment that comes with capsroute."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.training import Recipe, list_recipes, load_recipe
from capsroute.training.report import published

Filter = Annotated[str, typer.Argument(help="Show only recipes with this in their name.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute recipes`."""
    app.command()(recipes)


def recipes(contains: Filter = "") -> None:
    """List the recipes by paper, with the row of its table and the published accuracy."""
    chosen = [load_recipe(name) for name in list_recipes() if contains in name]
    papers: dict[str, list[Recipe]] = {}
    for recipe in chosen:
        papers.setdefault(recipe.paper.title if recipe.paper else "Not of a paper", []).append(recipe)
    console = Console()
    for title, found in papers.items():
        table = Table("recipe", "row", "published", box=None, padding=(0, 2, 0, 0))
        for recipe in found:
            table.add_row(recipe.name, recipe.paper.row if recipe.paper else recipe.description, published(recipe))
        console.print(f"\n{title}", style="bold", highlight=False, soft_wrap=True)
        console.print(table)
