"""`capsroute recipes`: every experiment that comes with capsroute."""

from typing import Annotated

import typer

from capsroute.cli.names import matching, nothing_found, show_entry
from capsroute.training import Recipe, list_recipes, load_recipe
from capsroute.training.report import published

Pattern = Annotated[str, typer.Argument(help="Only names that match, for example 'zhao-*', or contain this.")]
Data = Annotated[str, typer.Option("--data", help="Only recipes on this data set; wildcards as above.")]
Model = Annotated[str, typer.Option("--model", help="Only recipes of this model; wildcards as above.")]


def recipes(pattern: Pattern = "", data: Data = "", model: Model = "") -> None:
    """List the recipes by paper, with the row of its table and the published accuracy."""
    chosen = [load_recipe(name) for name in matching(list_recipes(), pattern)]
    chosen = [recipe for recipe in chosen if matching([recipe.data.name or ""], data)]
    chosen = [recipe for recipe in chosen if matching([recipe.model.name or ""], model)]
    if not chosen:
        given = [("", pattern), ("--data ", data), ("--model ", model)]
        asked = " ".join(f"{option}{value!r}" for option, value in given if value)
        raise nothing_found("recipe", asked, list_recipes(), pattern)
    papers: dict[str, list[Recipe]] = {}
    for recipe in chosen:
        papers.setdefault(recipe.paper.title if recipe.paper else "Not of a paper", []).append(recipe)
    for title, found in papers.items():
        typer.secho(f"\n{title}", underline=True)
        for recipe in found:
            facts = "" if published(recipe) == "-" else f"published accuracy {published(recipe)}"
            show_entry(recipe.name, facts, recipe.paper.row if recipe.paper else recipe.description)
