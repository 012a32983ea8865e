"""A recipe is checked before anything runs, and every mistake is one readable line; finding, extending, overriding."""

import pytest

from capsroute.training import Recipe, RecipeError, list_recipes, load_recipe
from capsroute.training.recipe import merge, parse_override
from tests.training.tiny import SETTINGS, tiny

INF = float("inf")


def changed(setting, value):
    content = {key: dict(table) if isinstance(table, dict) else table for key, table in SETTINGS.items()}
    table, key = setting.split(".")
    content.setdefault(table, {})[key] = value
    return content


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("training.epoch", 3, "training.epoch: no such setting; did you mean 'epochs'?"),
        ("training.xyzzy", 3, "training.xyzzy: no such setting; there are epochs, batch_size"),
        ("training.epochs", "many", "training.epochs: input should be a valid integer, got 'many'"),
        ("training.epochs", 0, "training.epochs: input should be greater than or equal to 1, got 0"),
        ("training.epochs", True, "training.epochs: input should be a valid integer, got True"),
        ("training.precision", "fp8", "training.precision: input should be 'fp32', 'tf32', 'bf16' or 'fp16'"),
        ("training.precision", "fp16", "training.precision: 'fp16' needs a GPU"),
        ("training.accumulate", 300, "training.accumulate: a batch of 200 cannot be cut into 300 parts"),
        ("training.cuda_graphs", True, "training.cuda_graphs: they need a GPU"),
        ("schedule.name", "cyclic", "schedule.name: input should be 'constant', 'exponential'"),
        ("schedule.milestones", [3], "schedule.milestones: 'constant' has no such setting"),
        ("schedule.name", "step", "schedule.milestones: the schedule 'step' needs the epochs"),
        ("optimiser.nesterov", True, "optimiser.nesterov: 'adam' has no such setting"),
        ("loss.scaling", "code", "loss.scaling: input should be 'paper' or 'released', got 'code'"),
        ("data.name", "mnits", "data.name: expected one of"),
        ("data.augment", [{"name": "blur"}], "data.augment: expected one of shift"),
        ("data.augment", [{"name": "shift", "angle": 3}], "data.augment: 'shift' has options pixels, got angle"),
        ("data.fresh", True, "data.fresh: only generated data sets can be drawn anew"),
        ("model.name", "xyzzy", "model.name: no model is called 'xyzzy'; cr.list_models() lists them; one of your own"),
        ("model.name", "capsnet_smal", "model.name: no model is called 'capsnet_smal'; did you mean 'capsnet_small"),
        ("model.arguments", {"decoder": None}, "model.arguments.decoder: a recipe is TOML, which has no word for"),
        (
            "model.arguments",
            {"chanels": 32},
            "model.arguments.chanels: 'capsnet_small' has no such argument; did you mean 'channels'?",
        ),
        ("model.arguments", {"xyzzy": 1}, "model.arguments.xyzzy: 'capsnet_small' has no such argument; there"),
        ("model.arguments", {"weight_scale": INF}, "model.arguments.weight_scale: expected a finite number"),
        ("model.arguments", {"routing": {"a": [0, -INF]}}, "model.arguments.routing.a.1: expected a finite number"),
        ("data.options", {"count": float("nan")}, "data.options.count: expected a finite number"),
        ("data.augment", [{"name": "affine", "angle": INF}], "data.augment.0.angle: expected a finite number"),
        ("optimiser.learning_rate", INF, "optimiser.learning_rate: input should be a finite number"),
        ("evaluation.speed_seconds", INF, "evaluation.speed_seconds: input should be a finite number"),
        ("evaluation.speed_seconds", 1e9, "evaluation.speed_seconds: input should be less than or equal to 600"),
    ],
)
def test_mistake_is_one_line_that_names_the_setting(setting, value, line):
    with pytest.raises(RecipeError) as caught:
        Recipe.of(changed(setting, value))
    assert str(caught.value).startswith(f"tiny: {line}")
    assert "\n" not in str(caught.value)


def test_every_mistake_has_its_line():
    content = changed("training.epochs", 0)
    content["optimiser"] = {"lr": 3}
    with pytest.raises(RecipeError) as caught:
        Recipe.of(content)
    assert len(str(caught.value).splitlines()) == 2


def test_resolved_recipe_is_read_back_equal():
    recipe = tiny(**{"optimiser.name": "sgd", "schedule": {"name": "step", "milestones": [1.5]}, "training.clip": 1.0})
    again = Recipe.of(recipe.plain())
    assert again.plain() == recipe.plain()
    assert "betas" not in recipe.plain()["optimiser"]


def test_replace_checks_like_a_fresh_recipe():
    assert tiny(**{"training.seed": 7}).training.seed == 7
    with pytest.raises(RecipeError, match=r"training\.epochs"):
        tiny(**{"training.epochs": -1})


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


@pytest.mark.parametrize("base", ["3", "true", '["base"]', "{a = 1}"])
def test_base_that_is_no_name_is_reported(tmp_path, base):
    with pytest.raises(RecipeError, match=r"row\.toml: extends: expected the name of a recipe, got"):
        load_recipe(write(tmp_path, "row", f"extends = {base}\n"))


def test_what_names_no_recipe_is_refused():
    for given in (3, None, ["quickstart"]):
        with pytest.raises(TypeError, match=r"recipe: expected the name of one or a TOML file, got (int|None|list)"):
            load_recipe(given)


def test_circle_of_recipes_is_reported(tmp_path):
    write(tmp_path, "one", 'extends = "two"\n')
    path = write(tmp_path, "two", 'extends = "one"\n')
    with pytest.raises(RecipeError, match="extends itself"):
        load_recipe(path)


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
