"""Rows of the tables: read from TOML, every mistake named; and each one names a recipe that exists."""

import collections
from pathlib import Path

import pytest

from tools.evidence import collect
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
    rows = load_rows(REPOSITORY / "results" / "rows.toml")
    assert {name for row in rows for name in (row.recipe, row.without, *row.above) if name} <= recipes


def test_a_row_has_a_recipe_or_says_why_not(tmp_path):
    path = tmp_path / "rows.toml"
    for given in ("", 'recipe = "y"\nno_recipe = "lost"\n'):
        path.write_text(f'[[row]]\npaper = "zhao"\nname = "x"\n{given}')
        with pytest.raises(ValueError, match="expected recipe, or no_recipe"):
            load_rows(path)


# How many numbers each table, figure and section gives; other people's that a paper repeats are not counted.
PUBLISHED = {
    ("sabour", "table 1"): 8,
    ("sabour", "section 5.2"): 2,
    ("zhao", "table 1"): 20,
    ("zhao-huang", "table 1"): 9,
    ("zhao-huang", "table 2"): 8,
    ("zhao-huang", "table 4"): 10,
    ("zhao-huang", "section 4.3"): 2,
    ("heinsen", "table 1"): 1,
    ("heinsen", "table 2"): 1,
    ("heinsen", "table 3"): 1,
    ("tsai", "table 1"): 16,
    ("tsai", "figure 5"): 4,
    ("tsai", "section 6"): 2,
    ("tsai", "figure 4"): 30,
}


def test_every_published_number_has_one_row():
    rows = load_rows(REPOSITORY / "results" / "rows.toml")
    assert collections.Counter((row.paper, row.source) for row in rows if row.source) == PUBLISHED
    assert len({(row.paper, row.name) for row in rows}) == len(rows)


def test_a_row_of_a_paper_has_its_number_or_says_that_it_cannot_be_read():
    for row in load_rows(REPOSITORY / "results" / "rows.toml"):
        assert not row.source or (row.number is None) == bool(row.said), row.name


def test_a_row_without_a_run_says_why():
    evidence = collect(REPOSITORY / "results")
    for row in all_rows(REPOSITORY / "results" / "rows.toml"):
        if not any(row.test in run.accuracy for run in evidence.get(row.recipe, [])):
            assert row.no_recipe or row.note.startswith(("not run", "never measured")), row.name


def test_every_recipe_of_a_paper_has_a_row():
    rows = {row.recipe for row in all_rows(REPOSITORY / "results" / "rows.toml")}
    papers = {path.stem for path in (REPOSITORY / "recipes").glob("*.toml") if path.stem.startswith(tuple(PAPERS))}
    without = {name for name in papers if not rows & {name, f"{name}-fast", name.removesuffix("-fast")}}
    assert not without


def test_newer_algorithms_have_rows_whose_recipes_are_the_papers_or_ours():
    rows = {row.recipe: row for row in all_rows(REPOSITORY / "results" / "rows.toml") if row.paper == "newer"}
    assert rows["hahn-cifar10"].own
    assert rows["hahn-cifar10"].name.startswith("Hahn")
    assert not rows["mazzia-mnist-fast"].own
    assert "mazzia-mnist" not in rows


def test_what_stands_in_for_a_papers_data_is_named():
    rows = {row.name: row for row in load_rows(REPOSITORY / "results" / "rows.toml")}
    assert "MiniLM" in rows["SST-2/R, Heinsen routing"].stand_in
    assert "generated" in rows["bMNIST, max-min, as trained"].stand_in
    assert "generated" in rows["affNIST after training on expanded MNIST"].stand_in
    assert rows["MNIST, max-min, as trained"].stand_in == ""
