"""Training slots: recipes, the schedule, what a run leaves behind, and that slots learn to tell objects apart."""

import csv
import json

import pytest
import torch

import capsroute as cr
from capsroute.training.slots import SlotRecipe, SlotRun, fit_slots, load_slot_recipe

TINY = {
    "model": {"features": 8, "channels": 8, "hidden": 8, "kernel_size": 3},
    "data_options": {"cell": 1, "count": 40},
    "batch_size": 8,
    "device": "cpu",
}


@pytest.mark.parametrize("name", ["tetrominoes", "shapes", "tetrominoes-cpu"])
def test_every_recipe_makes_its_model(name):
    recipe = load_slot_recipe(name)
    assert recipe.name == name
    shape = cr.data.dataset_info(recipe.data).shape
    cr.models.SlotAutoencoder(shape[0], shape[1:], **recipe.model)


def test_the_learning_rate_warms_up_and_falls():
    recipe = SlotRecipe(learning_rate=1.0, warmup=10, last=0.1)
    assert recipe.rate(0, 0.0) == pytest.approx(0.1)
    assert recipe.rate(9, 0.0) == pytest.approx(1.0)
    assert recipe.rate(100, 0.5) == pytest.approx(0.55)
    assert recipe.rate(100, 1.0) == pytest.approx(0.1)


def test_a_run_leaves_metrics_result_and_weights(tmp_path):
    model, result = fit_slots(SlotRecipe(steps=3, every=0, **TINY), tmp_path, say=lambda line: None)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [1, 2, 3]
    assert set(rows[0]) == {"step", "seconds", "learning_rate", "loss", "gradient_norm", "error", "foreground_ari"}
    assert json.loads((tmp_path / "result.json").read_text()) == result
    again = cr.models.SlotAutoencoder(**json.loads((tmp_path / "config.json").read_text()))
    from safetensors.torch import load_file

    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(list(again.parameters()), list(model.parameters()))


def test_how_often_a_run_is_judged_does_not_change_it(tmp_path):
    """Seconds decide when that is, and slots are drawn at random."""
    torch.manual_seed(7)
    before = torch.get_rng_state()
    models, results = [], []
    for every in (0.0, 1e9):
        recipe = SlotRecipe(steps=3, every=every, **TINY)
        model, result = fit_slots(recipe, tmp_path / str(every), say=lambda line: None)
        models.append(model)
        results.append({name: result[name] for name in ("error", "foreground_ari")})
    assert all(torch.equal(one, other) for one, other in zip(*(model.parameters() for model in models), strict=True))
    assert results[0] == results[1]
    assert torch.equal(before, torch.get_rng_state())


def test_minutes_end_a_run_before_its_steps(tmp_path):
    _, result = fit_slots(SlotRecipe(steps=10**6, minutes=0.005, **TINY), tmp_path, say=lambda line: None)
    assert result["steps"] < 1000


def test_gradients_are_clipped():
    run = SlotRun(SlotRecipe(clip=1e-3, **TINY))
    run.step_once()
    norm = torch.stack([parameter.grad.norm() for parameter in run.model.parameters()]).norm()
    assert norm <= 1.01e-3


@pytest.mark.slow
def test_slots_learn_to_tell_pieces_apart_on_a_cpu(tmp_path):
    _, result = fit_slots(load_slot_recipe("tetrominoes-cpu", every=1e9), tmp_path, say=lambda line: None)
    assert result["foreground_ari"] > 0.6
