import pytest
import torch

from experiments import constellations, scenes
from experiments.figures import constellations_table, differences_table, draw_constellations
from experiments.training import append

VARIANTS = pytest.mark.parametrize("variant", scenes.VARIANTS)


@VARIANTS
def test_as_many_votes_meet_at_an_object_as_it_has_corners_or_edges(variant):
    drawn = scenes.draw(64, variant, 0, "test")
    votes, there = scenes.votes(drawn, variant)
    poses, present = scenes.targets(drawn, variant)
    assert (present.sum((1, 2)) == scenes.OBJECTS).all()
    distance = (votes[:, :, None] - poses[:, :, :, None]).norm(dim=-1)  # [n, kind, 2, i]
    near = ((distance < 0.1) & (there[:, :, None] > 0)).sum(3)
    least = scenes.SIZES if variant == "shifted" else torch.tensor([4, 3, 5, 3])
    few = near < least.view(1, -1, 1)
    # Noise of an edge as short as that of an L moves some of its votes further.
    assert (few & (present > 0)).sum() <= (0 if variant == "shifted" else 0.15 * present.sum())


@VARIANTS
def test_poses_and_corners_are_of_one_object(variant):
    drawn = scenes.draw(16, variant, 4, "test")
    pose = scenes.to_pose(drawn.scale, drawn.centre, drawn.kind, variant)
    corners = scenes.corners_of(pose, drawn.kind)
    own = torch.stack([(drawn.points[:, :, None, None] - corners[:, None]).abs().amin(3)[..., k] for k in range(3)])
    for number in range(3):
        mine = (drawn.owner == number + 1) & drawn.there
        assert (own[number][mine] < 0.06).all()


@VARIANTS
def test_the_truth_scores_best_and_the_exhaustive_search_finds_it(variant):
    drawn = scenes.draw(32, variant, 8, "test")
    truth = (drawn.kind, scenes.to_pose(drawn.scale, drawn.centre, drawn.kind, variant))
    best = constellations.scores(drawn, variant, *truth)
    assert best["pose_error"] < 1e-5
    assert best["ari"] > 0.9  # objects that lie over each other share points
    found = constellations.scores(drawn, variant, *scenes.exhaustive_fit(drawn, variant))
    assert found["found"] > 0.9
    assert found["pose_error"] < 0.06
    wrong = constellations.scores(drawn, variant, (truth[0] + 1) % 4, truth[1])
    assert wrong["found"] < 0.5


def test_the_loss_does_not_care_which_parent_finds_an_object_and_sees_one_that_nobody_finds():
    torch.manual_seed(0)
    poses, present = scenes.targets(scenes.draw(8, "shifted", 0, "test"), "shifted")
    found = torch.cat([poses, torch.randn(8, 4, 2, 2)], 2)
    presence = torch.cat([20 * present - 10, torch.full((8, 4, 2), -10.0)], 2)
    right = constellations.set_loss((presence, found), poses, present)
    assert right < 0.01
    order = [2, 1, 3, 0]
    assert torch.allclose(right, constellations.set_loss((presence[:, :, order], found[:, :, order]), poses, present))
    assert constellations.set_loss((presence, found + 1.0), poses, present) > 1
    assert constellations.set_loss((-presence, found), poses, present) > 1


def test_the_experiment_runs_from_scenes_to_a_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(constellations, "CLUTTERS", (0, 2))
    words = ["--steps", "2", "--batch", "2", "--train", "8", "--test", "4", "--device", "cpu"]
    size = constellations.arguments().parse_args(words)
    path = tmp_path / "constellations.csv"
    for method in ("exhaustive", "em", "mean"):
        rows = constellations.work(("shifted", method), size)
        searched = sum(row["phase"] == "search" for row in rows)
        assert searched == (0 if method == "exhaustive" else 6)
        assert len(rows) - searched == 2 * 4 * (1 if method == "exhaustive" else 5)
        append(path, rows)
    draw_constellations(path)
    assert "\n| exhaustive | " in constellations_table(path)
    assert path.with_suffix(".png").is_file()


def test_differences_are_of_means_with_their_standard_error(tmp_path):
    path = tmp_path / "rows.csv"

    def row(method, seed, value):
        return {"variant": "shifted", "method": method, "phase": "test", "seed": seed, "clutter": 32, "metric": "ari",
                "value": value}  # fmt: skip

    append(path, [row("exhaustive", 0, 1.0), *(row("em", seed, 0.4 + seed / 10) for seed in (1, 2))])
    append(path, [row("uniform", seed, 0.2) for seed in (1, 2)])
    lines = differences_table(path).splitlines()
    assert lines[0] == "| shifted, 32 points | minus exhaustive | minus uniform |"
    assert lines[2] == "| em | -0.450 ± 0.050 | +0.350 ± 0.050 |"
    assert lines[3] == "| uniform | -0.800 ± 0.000 | - |"
