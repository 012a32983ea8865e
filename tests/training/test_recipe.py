"""A recipe is checked before anything runs, and every mistake is one readable line."""

import pytest

from capsroute.training import Recipe, RecipeError
from tests.training.tiny import SETTINGS, tiny


def changed(setting, value):
    content = {key: dict(table) if isinstance(table, dict) else table for key, table in SETTINGS.items()}
    table, key = setting.split(".")
    content.setdefault(table, {})[key] = value
    return content


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("training.epoch", 3, "tiny: training.epoch: no such setting; did you mean 'epochs'?"),
        ("training.xyzzy", 3, "tiny: training.xyzzy: no such setting; there are epochs, batch_size"),
        ("training.epochs", "many", "tiny: training.epochs: input should be a valid integer, got 'many'"),
        ("training.epochs", 0, "tiny: training.epochs: input should be greater than or equal to 1, got 0"),
        ("training.epochs", True, "tiny: training.epochs: input should be a valid integer, got True"),
        ("training.precision", "fp8", "tiny: training.precision: input should be 'fp32', 'tf32', 'bf16' or 'fp16'"),
        ("training.precision", "fp16", "tiny: training.precision: 'fp16' needs a GPU"),
        ("training.accumulate", 300, "tiny: training.accumulate: a batch of 200 cannot be cut into 300 parts"),
        ("training.cuda_graphs", True, "tiny: training.cuda_graphs: they need a GPU"),
        ("schedule.name", "cyclic", "tiny: schedule.name: input should be 'constant', 'exponential'"),
        ("schedule.milestones", [3], "tiny: schedule.milestones: 'constant' has no such setting"),
        ("schedule.name", "step", "tiny: schedule.milestones: the schedule 'step' needs the epochs"),
        ("optimiser.nesterov", True, "tiny: optimiser.nesterov: 'adam' has no such setting"),
        ("loss.scaling", "code", "tiny: loss.scaling: input should be 'paper' or 'released', got 'code'"),
        ("data.name", "mnits", "tiny: data.name: expected one of"),
        ("data.augment", [{"name": "blur"}], "tiny: data.augment: expected a name of shift"),
        ("data.augment", [{"name": "shift", "angle": 3}], "tiny: data.augment: shift has pixels, got angle"),
        ("data.normalise", "channels", "tiny: data.normalise: reconstruction needs images in [0, 1]"),
        ("data.fresh", True, "tiny: data.fresh: only generated data sets can be drawn anew"),
        ("model.name", "resnet", "tiny: model.name: no model is called 'resnet'"),
    ],
)
def test_mistake_is_one_line_that_names_the_setting(setting, value, line):
    with pytest.raises(RecipeError) as caught:
        Recipe.of(changed(setting, value))
    assert str(caught.value).startswith(line)
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
