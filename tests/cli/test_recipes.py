"""`capsroute recipes`."""

import pytest

from capsroute.training import list_recipes
from tests.cli.runs import call


def run(*arguments, columns=80):
    return call("recipes", *arguments, COLUMNS=str(columns))


def test_every_recipe_is_listed_with_its_number():
    done = run(columns=300)
    assert done.exit_code == 0
    assert all(name in done.output for name in list_recipes())
    assert "Zhao et al. 2019, Fast Inference in Capsule Networks" in done.output
    lines = done.output.splitlines()
    [at] = [at for at, line in enumerate(lines) if line.split()[:1] == ["zhao-mnist-max-min"]]
    assert "published accuracy 99.55 ± 0.02 %" in lines[at]
    assert "table 1, MNIST, max-min" in lines[at + 1]


def test_eighty_columns_cut_no_name_and_no_line():
    lines = run().output.splitlines()
    papers = [line for line in lines if line and lines[lines.index(line) - 1] == ""]
    assert all(len(line) <= 80 for line in lines if line not in papers)
    assert {line.split()[0] for line in lines if line and not line.startswith(" ")} >= set(list_recipes())


@pytest.mark.parametrize("pattern", ["heinsen", "heinsen-*", "*smallnorb*"])
def test_list_can_be_narrowed(pattern):
    done = run(pattern)
    assert "heinsen-smallnorb" in done.output
    assert "sabour" not in done.output


def test_list_can_be_narrowed_by_data_and_by_model():
    done = run("--data", "digits", "--model", "capsnet_s*")
    names = [line.split()[0] for line in done.output.splitlines() if line and not line.startswith(" ")]
    assert names == ["Not", "quickstart"]


@pytest.mark.parametrize("asked", [["sabor-mnist"], ["zhao-*", "--data", "imagenet"]])
def test_nothing_found_is_said(asked):
    done = run(*asked)
    assert done.exit_code == 1
    assert "no recipe matches" in done.output
    assert all(repr(word) in done.output for word in asked if not word.startswith("--"))
    if asked == ["sabor-mnist"]:
        assert "did you mean 'sabour-mnist'?" in done.output
