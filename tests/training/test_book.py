"""Finding recipes, extending them, overriding them."""

import pytest

from capsroute.training import RecipeError, list_recipes, load_recipe
from capsroute.training.book import merge, parse_override


def write(folder, name, text):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_recipe_takes_over_what_it_does_not_change(tmp_path):
    write(tmp_path, "base", '[model]\nname = "capsnet"\n[data]\nname = "mnist"\n[training]\nepochs = 3\nseed = 5\n')
    path = write(tmp_path, "row", 'extends = "base"\n[training]\nepochs = 7\n')
    recipe = load_recipe(path)
    assert (recipe.name, recipe.training.epochs, recipe.training.seed) == ("row", 7, 5)


def test_published_number_is_never_taken_over(tmp_path):
    write(tmp_path, "base", '[paper]\ntitle = "T"\nrow = "1"\npublished = 99.0\nspread = 0.1\n')
    recipe = load_recipe(write(tmp_path, "row", 'extends = "base"\n[paper]\nrow = "2"\n'))
    assert recipe.paper.title == "T"
    assert recipe.paper.published is None
    assert recipe.paper.spread is None


def test_row_must_be_named_anew(tmp_path):
    write(tmp_path, "base", '[paper]\ntitle = "T"\nrow = "1"\n')
    with pytest.raises(RecipeError, match=r"paper\.row: this setting is needed"):
        load_recipe(write(tmp_path, "row", 'extends = "base"\n'))


def test_table_that_changes_its_name_starts_afresh():
    base = {"model": {"name": "a", "arguments": {"x": 1}}, "data": {"name": "d", "test": ["e"]}}
    merged = merge(base, {"model": {"name": "b"}, "data": {"name": "d", "fresh": True}})
    assert merged == {"model": {"name": "b"}, "data": {"name": "d", "test": ["e"], "fresh": True}}


def test_circle_of_recipes_is_reported(tmp_path):
    write(tmp_path, "one", 'extends = "two"\n')
    path = write(tmp_path, "two", 'extends = "one"\n')
    with pytest.raises(RecipeError, match="extends itself"):
        load_recipe(path)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'quickstart'"):
        load_recipe("quikstart")


def test_file_that_is_no_toml_is_reported(tmp_path):
    with pytest.raises(RecipeError, match="expected TOML"):
        load_recipe(write(tmp_path, "bad", "= ="))


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=5", 5),
        ("a.b=5.0", 5.0),
        ("a.b=true", True),
        ("a.b=bf16", "bf16"),
        ('a.b="x=y"', "x=y"),
        ("a.b=[1, 2]", [1, 2]),
        ('a.b={name = "dynamic"}', {"name": "dynamic"}),
    ],
)
def test_override_is_toml_or_a_word(override, value):
    assert parse_override(override) == (["a", "b"], value)


@pytest.mark.parametrize("override", ["a.b", "=3", "a..b=3"])
def test_override_without_setting_is_refused(override):
    with pytest.raises(RecipeError, match="--set"):
        parse_override(override)


def test_override_is_checked_like_the_rest():
    assert load_recipe("quickstart", ["training.epochs=5"]).training.epochs == 5
    with pytest.raises(RecipeError, match=r"training\.epochs"):
        load_recipe("quickstart", ["training.epochs=x"])
    with pytest.raises(RecipeError, match="is a setting, not a section"):
        load_recipe("quickstart", ["training.epochs.more=1"])


def test_every_recipe_file_is_listed():
    assert "quickstart" in list_recipes()
    assert list_recipes() == sorted(list_recipes())
