"""`capsroute models`: every model with its number of parameters."""

from pathlib import Path

import capsroute as cr
from tests.cli.runs import call


def test_every_model_is_shown_with_its_parameters():
    result = call("models")
    assert result.exit_code == 0, result.output
    for name in cr.list_models():
        assert name in result.output
    assert "8,215,568 parameters; 1 x 28 x 28; 10 classes" in result.output
    assert "142,912 parameters; any x 37 x 1280; 5 classes" in result.output


def test_eighty_columns_cut_nothing():
    lines = call("models", COLUMNS="80").output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == set(cr.list_models())


def test_trained_ones_can_be_asked_for():
    lines = call("models", "--pretrained", COLUMNS="80").output.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == cr.list_pretrained()


def test_a_pattern_shows_some():
    result = call("models", "heinsen_*")
    assert "271,688 parameters" in result.output
    assert "capsnet" not in result.output


def test_a_pattern_that_matches_nothing_lists_the_names():
    result = call("models", "vgg*")
    assert result.exit_code == 1
    assert "no model matches 'vgg*'" in result.output
    assert "tsai_resnet_cifar10" in result.output


def test_the_documentation_shows_the_same_table():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    table = call("models", "--markdown").output
    assert table in page, "put the output of `capsroute models --markdown` into docs/models.md"
