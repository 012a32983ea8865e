import pytest
import torch

import capsroute as cr
from capsroute.cli.accumulate import parse_filter
from tests.cli.runs import call, make_run

pytestmark = pytest.mark.filterwarnings("ignore:the network classifies")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("a run"))


def test_writes_what_accumulate_finds_in_the_training_data(run):
    result = call("accumulate", run, "--device", "cpu")
    assert result.exit_code == 0, result.output
    master = cr.inference.MasterCoefficients.load(run / "master.safetensors")
    recipe, model = cr.training.load_run(run)
    expected = cr.inference.accumulate(model, cr.training.load_splits(recipe).train)
    torch.testing.assert_close(master["class_capsules"], expected["class_capsules"], rtol=0, atol=1e-6)
    assert f"{int(expected.counts.sum()):,} of {int(expected.counts.sum()):,} images" in result.output
    assert f"`capsroute evaluate '{run}' --routing fast`" in result.output  # for a shell: the folder has a space


def test_options_reach_accumulate(run, tmp_path):
    path = tmp_path / "other.safetensors"
    options = ["--iteration", 2, "--columns", "ground_truth", "--normalise", "none", "--layer", "class_capsules"]
    result = call("accumulate", run, "--filter", "similarity:fraction=0.5,measure=dot", *options, "--out", path)
    assert result.exit_code == 0, result.output
    assert "capsroute evaluate" not in result.output  # which reads those of the run folder
    how = cr.inference.MasterCoefficients.load(path).how
    assert how["filter"] == {"name": "similarity", "measure": "dot", "fraction": 0.5, "threshold": None}
    assert (how["iteration"], how["columns"], how["normalisation"]) == (2, "ground_truth", {"class_capsules": "none"})


def test_the_old_word_for_out_is_taken_and_warns(run, tmp_path):
    with pytest.warns(
        DeprecationWarning, match="--output is deprecated since capsroute 0.2 and goes in 0.4; write --out"
    ):
        assert call("accumulate", run, "--output", tmp_path / "there.safetensors").exit_code == 0
    assert (tmp_path / "there.safetensors").is_file()


def test_coefficients_can_be_learned(run, tmp_path):
    paths = [tmp_path / "plain.safetensors", tmp_path / "learned.safetensors"]
    assert call("accumulate", run, "--out", paths[0]).exit_code == 0
    assert call("accumulate", run, "--out", paths[1], "--learn", 1).exit_code == 0
    plain, learned = map(cr.inference.MasterCoefficients.load, paths)
    assert not torch.allclose(plain["class_capsules"], learned["class_capsules"], atol=1e-4)
    assert learned.how["learned epochs"] == 1


def test_evaluate_uses_what_was_accumulated(run):
    matrix = torch.zeros(128, 10, dtype=torch.float64)
    matrix[:, 3] = 1  # nothing reaches any class but 3
    master = cr.inference.MasterCoefficients({"class_capsules": matrix}, torch.ones(10).long(), {"by": "hand"})
    master.save(run / "master.safetensors")
    result = call("evaluate", run, "--routing", "fast", "--device", "cpu")
    assert result.exit_code == 0, result.output
    test = cr.data.load("digits", "test")
    assert f"{(test.labels == 3).double().mean():.2%}" in result.output
    assert cr.inference.MasterCoefficients.load(run / "master.safetensors").how == {"by": "hand"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--filter", "best"], "filter: expected one of none, similarity, clustering, correct"),
        (["--filter", "similarity:half"], "--filter: expected options as NAME=VALUE, got 'half'"),
        (["--iteration", "9"], "iteration: layer 'class_capsules' has iterations 1 to 3, got 9"),
    ],
)
def test_says_what_is_wrong(run, arguments, says):
    result = call("accumulate", run, *arguments)
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--normalise", "nope"], "--normalise: expected one of routing, none, got 'nope'; did you mean 'none'?"),
        (["--columns", "some"], "--columns: expected one of all, ground_truth, got 'some'"),
        (["--learn", "-1"], "Invalid value for '--learn'"),
        (["--iteration", "-1"], "Invalid value for '--iteration'"),
        (["--layer", "nope"], "layers: expected names among class_capsules, got 'nope'"),
        (["--filter", "similarity:fraction=7"], "fraction: expected a number in (0, 1], got 7"),
    ],
)
def test_says_so_before_an_image_is_read(run, monkeypatch, arguments, says):
    monkeypatch.setattr("capsroute.training.run.load_splits", lambda *_: pytest.fail("read"))
    result = call("accumulate", run, *arguments, COLUMNS="200")
    assert result.exit_code
    assert says in result.output


def test_values_of_filter_options_have_their_types():
    assert parse_filter("clustering:clusters=3,method=kmeans") == {
        "name": "clustering",
        "clusters": 3,
        "method": "kmeans",
    }
    assert parse_filter("none") == {"name": "none"}
