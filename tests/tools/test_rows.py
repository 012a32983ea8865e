"""Rows of the tables: read from TOML, every mistake named; and each one names a recipe that exists."""

from pathlib import Path

import pytest

from tools.rows import PAPERS, all_rows, load_rows

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


def test_every_recipe_of_a_paper_has_a_row():
    rows = {row.recipe for row in all_rows(REPOSITORY / "results" / "rows.toml")}
    papers = {path.stem for path in (REPOSITORY / "recipes").glob("*.toml") if path.stem.startswith(tuple(PAPERS))}
    without = {name for name in papers if not rows & {name, f"{name}-fast", name.removesuffix("-fast")}}
    assert not without


def test_what_stands_in_for_a_papers_data_is_named():
    rows = {row.name: row for row in load_rows(REPOSITORY / "results" / "rows.toml")}
    assert "MiniLM" in rows["SST-2/R, Heinsen routing"].stand_in
    assert "generated" in rows["bMNIST, max-min, as trained"].stand_in
    assert "generated" in rows["affNIST after training on expanded MNIST"].stand_in
    assert rows["MNIST, max-min, as trained"].stand_in == ""
