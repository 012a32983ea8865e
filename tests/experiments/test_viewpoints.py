import pytest
import torch

from capsroute.data.sets import ImageSet
from experiments import viewpoints
from experiments.figures import Run, draw_viewpoints, matched_level, viewpoints_table
from experiments.training import append


def run_of(*looks):
    run = Run()
    run.looks = [(step, familiar, novel, {"45": novel}) for step, familiar, novel in looks]
    return run


def test_novel_accuracy_is_read_where_the_familiar_one_first_reaches_the_level():
    run = run_of((3, 0.9, 0.5), (1, 0.5, 0.2), (2, 0.7, 0.4), (4, 0.95, 0.3))
    assert run.at(0.8)["novel"] == pytest.approx(0.45)
    assert run.at(0.4) == {"familiar": 0.5, "novel": 0.2, "45": 0.2}
    assert run.at(0.96) is None
    assert run.last()["novel"] == 0.3


def test_the_level_is_one_that_every_seed_of_every_head_reaches_but_for_heads_that_fail():
    runs = {name: {1: run_of((1, best, 0.5)), 2: run_of((1, 0.999, 0.5))} for name, best in
            (("a", 0.957), ("b", 0.943), ("c", 0.99), ("failed", 0.3))}  # fmt: skip
    assert matched_level(runs) == (0.94, ["failed"])


def test_the_experiment_runs_from_images_to_a_figure(tmp_path, monkeypatch):
    labels = torch.arange(40) % 5
    images = (50 * labels).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 2, 16, 16).contiguous()
    both = (images, labels)
    torch.save((both, both, {"familiar": both, "45": both, "50": (255 - images, labels)}), tmp_path / "elevation.pt")
    monkeypatch.setattr(viewpoints, "LOOKS", 2)
    size = viewpoints.arguments().parse_args(["--steps", "4", "--batch", "4", "--device", "cpu"])
    path = tmp_path / "viewpoints.csv"
    for method in ("average", "heinsen"):
        rows = viewpoints.work(("elevation", method), size, tmp_path)
        assert sum(row["phase"] == "search" for row in rows) == 6
        assert len(rows) == 6 + 2 * 5
        append(path, rows)
    draw_viewpoints(path)
    assert "\n| heinsen | " in viewpoints_table(path)
    assert path.with_suffix(".png").is_file()


@pytest.mark.parametrize(("name", "bins"), [("elevation", ["familiar", "70"]), ("azimuth", ["familiar", "100"])])
def test_toys_in_novel_views_are_not_trained_on(name, bins, monkeypatch):
    asked = {}

    def load(dataset, split, **options):
        elevation, azimuth = torch.tensor([0, 2, 8, 0]), torch.tensor([0, 8, 0, 18])
        shown = torch.ones(4, dtype=torch.bool)
        for key, values in (("elevations", elevation), ("azimuths", azimuth)):
            shown &= torch.isin(values, torch.tensor(options.get(key, range(36))))
        asked[split] = options
        metadata = {"elevation": elevation[shown], "azimuth": azimuth[shown]}
        images = torch.zeros(int(shown.sum()), 2, 8, 8, dtype=torch.uint8)
        return ImageSet(images, torch.arange(4)[shown], tuple("abcd"), "toynorb", split, metadata)

    monkeypatch.setattr(viewpoints.cr.data, "load", load)
    task = viewpoints.make_task(name, viewpoints.arguments().parse_args(["--device", "cpu"]))
    assert list(task.tests) == bins
    assert set(asked) == {"train", "validation", "test"}
    novel = 2 if name == "elevation" else 3
    assert novel not in task.train[1]
    assert novel not in task.held[1]
    assert task.tests[bins[1]][1].tolist() == [novel]


def test_fewer_steps_than_looks_are_refused():
    with pytest.raises(SystemExit, match=r"--steps: expected at least 15, .*, got 3"):
        viewpoints.main(viewpoints.arguments().parse_args(["--steps", "3"]))
