"""Rows of the tables: read from TOML, every mistake named; and each one names a recipe that exists."""

from pathlib import Path

import pytest

from capsroute.reproduce import load_rows

REPOSITORY = Path(__file__).parents[2]


def test_a_misspelt_key_is_named(tmp_path):
    path = tmp_path / "rows.toml"
    path.write_text('[[row]]\npaper = "zhao"\nname = "x"\nrecipe = "y"\npublised = 1.0\n')
    with pytest.raises(ValueError, match="publised"):
        load_rows(path)


def test_an_unknown_paper_is_named(tmp_path):
    path = tmp_path / "rows.toml"
    path.write_text('[[row]]\npaper = "nobody"\nname = "x"\nrecipe = "y"\n')
    with pytest.raises(ValueError, match="nobody"):
        load_rows(path)


def test_every_row_of_the_repository_names_a_recipe_that_exists():
    recipes = {path.stem for path in (REPOSITORY / "recipes").glob("*.toml")}
    missing = {row.recipe for row in load_rows(REPOSITORY / "results" / "rows.toml")} - recipes
    assert not missing
