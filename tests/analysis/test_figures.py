"""All pictures of a run: drawn where they apply, refused with a reason where not, shown on a page that stands alone.
Results know the names and sizes of their axes, and can be written down."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import capsroute as cr
from capsroute.analysis import Named, draw_run
from capsroute.analysis.figures import along, list_figures
from capsroute.data import ImageSet
from capsroute.training import Run
from capsroute.training.run import spread_rows
from tests.analysis.small import lookup

QUICK = [
    "training.epochs=2",
    "evaluation.pictures=false",
    "evaluation.speed_seconds=0.0",
    "model.arguments.channels=16",
    "model.arguments.primary_capsules=2",
    "model.arguments.class_pose=4",
    "model.arguments.decoder=[32,32]",
]
FOR_DIGITS = {
    "training",
    "confusions",
    "master_matrix",
    "reconstructions",
    "perturbations",
    "gt_column_correlations",
    "class_correlations",
    "master_correlations",
    "class_probabilities",
    "tuning_curves",
    "coupling_maps",
    "parse_tree",
    "routing_convergence",
    "by_iterations",
    "robustness",
}


def ours(figure):
    """Not one that an example of the documentation registered."""
    return figure.make.__module__.startswith("capsroute.")


def trained(folder, *overrides):
    recipe = cr.training.load_recipe("quickstart", [*QUICK, *overrides])
    cr.training.fit(None, None, recipe, folder, reporter=cr.training.SilentReporter())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def drawn(run):
    results = []
    return draw_run(run, report=results.append, images=100), results


def test_what_applies_is_drawn_and_the_rest_has_a_reason(drawn):
    _, results = drawn
    assert {result.figure.name for result in results if result.refusal is None and ours(result.figure)} == FOR_DIGITS
    reasons = {result.figure.name: result.refusal for result in results if result.refusal}
    assert reasons["separation"] == "images have one label"
    assert reasons["pose_by_azimuth"] == "no viewpoints are known of the test images"


@pytest.mark.parametrize("name", sorted(FOR_DIGITS))
def test_each_picture_is_there_as_png_svg_pdf_and_numbers(drawn, name):
    folder = drawn[0].parent
    with Image.open(folder / f"{name}.png") as picture:
        assert len(set(picture.convert("L").resize((40, 40)).tobytes())) > 5  # not blank
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    with np.load(folder / f"{name}.npz") as numbers:
        assert len(numbers.files) >= 2


def test_the_page_shows_every_picture_and_needs_no_other_file(drawn):
    page = drawn[0].read_text()
    shown = [name for name in re.findall(r'<figure id="(\w+)"', page) if name in FOR_DIGITS]
    assert shown == [figure.name for figure in list_figures() if figure.name in FOR_DIGITS]
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)"', page))
    assert "http" not in page
    assert 'name="viewport" content="width=device-width' in page
    assert "images have one label" in page


def test_a_network_without_decoder_or_masters_is_drawn_as_far_as_it_goes(tmp_path):
    routing = 'model.arguments.routing = "em"'
    without = ["model.arguments.decoder = 0", "loss.reconstruction = 0.0", "training.max_steps = 2"]
    folder = trained(tmp_path / "run", routing, *without)
    results = {figure.name: figure.refusal(Run(folder)) for figure in list_figures()}
    assert results["perturbations"] == "the model has no decoder"
    assert results["tuning_curves"] == "the run has no master coefficients, and none can be made"
    draw_run(folder, tmp_path / "out", only=["parse_tree", "routing_convergence"], images=20)
    assert (tmp_path / "out" / "parse_tree.svg").is_file()


def test_training_is_shown_beside_that_of_another_run(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.csv").write_text((run / "metrics.csv").read_text())
    draw_run(run, tmp_path / "out", only=["training"], beside=[other])
    with np.load(tmp_path / "out" / "training.npz") as numbers:
        assert numbers["train_loss"].shape == (2, 2)


def test_samples_are_spread_over_a_sorted_set():
    assert spread_rows(10, 5).tolist() == [0, 2, 4, 6, 8]
    assert spread_rows(3, 5).tolist() == [0, 1, 2]


def with_tests(run, **sets):
    """The run as if these had been its test sets."""
    subject = Run(run)
    subject.__dict__["splits"] = replace(subject.splits, test=sets)
    return subject


def test_a_sample_is_as_large_as_asked_for_whatever_the_batch_size(tmp_path):
    subject = Run(trained(tmp_path, "evaluation.batch_size=64", "training.max_steps=1"))
    assert len(subject.sample(200).images) == len(subject.sample(200).labels) == 200
    assert len(Run(subject.folder.path, limit=70).sample(200).images) == 70


def test_digits_apart_are_those_of_the_sampled_images(run):
    parts = torch.arange(20, dtype=torch.uint8)[:, None, None, None].expand(20, 2, 8, 8)
    pictures = parts[:, :1].contiguous()
    two = ImageSet(pictures, torch.zeros(20, 2).long(), tuple("0123456789"), metadata={"parts": parts})
    sample = with_tests(run, two=two).sample(4)
    torch.testing.assert_close(sample.parts[:, 0, 0, 0], sample.images[:, 0, 0, 0])
    assert len(sample.parts.unique()) == 4


def test_a_sequence_goes_through_all_test_sets(run):
    few = {"size": 8, "azimuths": (0, 2), "lightings": (0,)}
    low, high = (cr.data.load(name, "test", **few) for name in ("toynorb_low", "toynorb_high"))
    pictures, elevations = with_tests(run, low=low, high=high).sequences("elevation", azimuth=2)
    assert elevations.tolist() == list(range(9))
    own = (high.metadata["elevation"] == 5) & (high.metadata["azimuth"] == 2)
    torch.testing.assert_close(pictures[:, 5], high.images[own].float() / 255)


def test_poses_are_not_drawn_of_a_network_without_capsules(run):
    subject = Run(run, model=lookup(torch.zeros(1, 10)))
    reasons = {figure.name: figure.refusal(subject) for figure in list_figures() if figure.name.startswith("pose_")}
    assert set(reasons.values()) == {"the model has no class capsules"}


def test_captions_count_the_images_that_there_are(run):
    says = {figure.name: figure.says(Run(run)) for figure in list_figures()}
    assert "Accuracy on 359 test images" in says["robustness"]  # all of scikit-learn's digits
    assert "of 1295 training images" in says["class_correlations"]
    few = {figure.name: figure.says(Run(run, limit=40)) for figure in list_figures()}
    assert "Accuracy on 40 test images" in few["robustness"]
    assert not any("{" in text for text in [*says.values(), *few.values()])


def test_a_picture_that_fails_leaves_the_others_and_the_page_says_why(run, tmp_path):
    bare = shutil.copytree(run, tmp_path / "bare")
    (bare / "master.safetensors").unlink()
    page = draw_run(bare, tmp_path, only=["class_correlations", "tuning_curves", "robustness"], images=5)
    assert (tmp_path / "robustness.png").is_file()
    assert not (tmp_path / "tuning_curves.png").exists()
    assert (
        "Coefficients of classes: could not be drawn: batches: expected at least 2 images of every class"
        in page.read_text()
    )
    assert "Tuning curves, dynamic and fast: the run has no master coefficients" in page.read_text()
    with pytest.raises(ValueError, match="images: expected a number >= 1, got 0"):
        draw_run(run, tmp_path, images=0)


def test_unknown_pictures_are_named(run):
    with pytest.raises(ValueError, match=r"only: expected names among training, .*, got portrait"):
        draw_run(run, only=["portrait"])


def test_the_command_line_says_what_it_drew(run, tmp_path):
    from capsroute.cli.app import app

    result = CliRunner().invoke(app, ["figures", str(run), "--out", str(tmp_path), "--only", "training"])
    assert result.exit_code == 0
    assert "training" in result.output
    assert "index.html" in result.output
    refused = CliRunner().invoke(app, ["figures", str(tmp_path)])
    assert refused.exit_code == 1


def test_page_of_a_run_that_is_stopped_shows_what_was_drawn(run, tmp_path):
    def stop(drawn):
        if drawn.figure.name == "reconstructions":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_run(run, tmp_path, report=stop, only=["training", "reconstructions", "robustness"])
    page = (tmp_path / "index.html").read_text()
    assert 'id="training"' in page
    assert 'id="reconstructions"' in page
    assert 'id="robustness"' not in page


@dataclass(frozen=True, eq=False)
class Heights(Named):
    axes: ClassVar = {"metres": ("person", "year"), "years": ("year",), "names": ("person",)}
    metres: torch.Tensor
    years: torch.Tensor
    names: torch.Tensor | None = None


def test_size_is_found_by_name():
    result = Heights(torch.rand(3, 2), torch.arange(2))
    assert (result.size("person"), result.size("year")) == (3, 2)
    with pytest.raises(ValueError, match="axis: expected one of person, year, got 'month'"):
        result.size("month")


def test_a_missing_axis_is_an_error():
    with pytest.raises(ValueError, match="metres: expected the axes person, year"):
        Heights(torch.rand(3), torch.arange(2))


def test_axes_of_one_name_have_one_size():
    with pytest.raises(ValueError, match="years: expected 2 along 'year' as elsewhere, got 5"):
        Heights(torch.rand(3, 2), torch.arange(5))


def test_saved_numbers_come_back_with_their_axes(tmp_path):
    result = Heights(torch.rand(3, 2), torch.arange(2))
    result.save(tmp_path / "heights.npz")
    with np.load(tmp_path / "heights.npz") as stored:
        assert json.loads(str(stored["axes"])) == {"metres": ["person", "year"], "years": ["year"]}
        np.testing.assert_array_equal(stored["metres"], result.metres.numpy())
        assert "names" not in stored


def test_axes_can_stand_with_the_fields():
    @dataclass(frozen=True, eq=False)
    class Weights(Named):
        grams: torch.Tensor = field(metadata=along("person, shoe size"))
        sizes: torch.Tensor = field(metadata=along("shoe size"))
        unit: str

    assert Weights.axes == {"grams": ("person", "shoe size"), "sizes": ("shoe size",)}
    assert Weights(torch.rand(3, 2), torch.arange(2), "g").size("shoe size") == 2
    with pytest.raises(ValueError, match="sizes: expected 2 along 'shoe size' as elsewhere, got 5"):
        Weights(torch.rand(3, 2), torch.arange(5), "g")
