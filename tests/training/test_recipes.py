"""Every recipe that comes with capsroute: it loads, says where it is from, and trains."""

import pytest
import torch

from capsroute.training import SilentReporter, fit, list_recipes, load_recipe
from capsroute.training.smoke import smoke_splits
from tests.training.tiny import small_smoke


def one_of_each_network():
    """All recipes; those whose network and loss an earlier one has, such as shorter ones, where there is time."""
    seen = set()
    for name in list_recipes():
        recipe = load_recipe(name)
        same = (repr(recipe.model), repr(recipe.loss)) in seen
        seen.add((repr(recipe.model), repr(recipe.loss)))
        yield pytest.param(name, marks=pytest.mark.slow) if same else name


@pytest.mark.filterwarnings("ignore:the network classifies")  # two steps on noise teach it nothing
@pytest.mark.parametrize("name", list(one_of_each_network()))
def test_recipe_trains_on_data_of_its_shape(name, tmp_path):
    recipe = small_smoke(load_recipe(name))
    run = fit(None, smoke_splits(recipe), recipe, tmp_path, reporter=SilentReporter())
    assert len(run.history) == 1
    assert run.history[0]["step"] == 2
    assert torch.isfinite(torch.tensor(run.history[0]["train_loss"]))
    assert set(run.result["tests"]) == set(recipe.data.test or [recipe.data.name or "images"])


@pytest.mark.parametrize("name", list_recipes())
def test_recipe_of_a_paper_names_its_row(name):
    recipe = load_recipe(name)
    assert recipe.paper is not None or recipe.description
    if recipe.paper is not None:
        assert recipe.paper.row
        assert recipe.paper.published is None or 30 < recipe.paper.published < 100


def test_rows_are_told_apart():
    papers = [load_recipe(name).paper for name in list_recipes() if not name.endswith("-fast")]
    rows = [(paper.title, paper.row) for paper in papers if paper is not None]
    assert len(set(rows)) == len(rows)
