"""Several seeds: mean and spread, and going on after an interruption."""

import json
import statistics

import pytest

from capsroute.training import fit, seeds
from tests.training.tiny import tiny


def test_three_seeds_give_mean_and_spread_and_only_what_is_missing_is_run_again(tmp_path, monkeypatch):
    recipe = tiny(**{"training.epochs": 1, "training.seed": 4})
    summary = seeds.fit_seeds(recipe, 3, tmp_path)
    values = summary["tests"]["digits"]["dynamic"]["values"]
    assert summary["seeds"] == [4, 5, 6]
    assert len(set(values)) > 1
    assert summary["tests"]["digits"]["dynamic"]["mean"] == pytest.approx(sum(values) / 3)
    assert summary["tests"]["digits"]["dynamic"]["spread"] == pytest.approx(statistics.stdev(values))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary

    trained = []

    def watched(model, data, recipe, folder, **options):
        trained.append(recipe.training.seed)
        return fit(model, data, recipe, folder, **options)

    monkeypatch.setattr(seeds, "fit", watched)
    (tmp_path / "seed-5" / "result.json").unlink()
    assert seeds.fit_seeds(recipe, 3, tmp_path, resume=True)["tests"]["digits"]["dynamic"]["values"] == values
    assert trained == [5]
