"""Every script of examples/ runs, as a stranger would run it."""

import os
import runpy
import sys
from pathlib import Path

import pytest
import torch

import capsroute as cr
from tests.training.processes import CONTEXT

ROOT = Path(__file__).parents[1]


def run(path, folder, said):
    """A script in this process, its folder another, its output in a file."""
    os.chdir(folder)
    sys.argv = [str(path)]
    with said.open("w") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    folder, said = tmp_path / "here", tmp_path / "said"
    folder.mkdir()
    process = CONTEXT.Process(target=run, args=(path, folder, said))
    process.start()
    process.join()
    assert process.exitcode == 0, said.read_text()
    assert not list(folder.iterdir()), "an example leaves nothing where it is run"


def test_the_routing_of_ones_own_that_people_copy_runs_where_its_votes_are():
    routing = runpy.run_path(str(ROOT / "examples" / "own_routing.py"))["forgetful_routing"]
    votes = cr.DenseVotes(torch.zeros(2, 6, 3, 5, device="meta"))
    assert routing(votes).poses.device == votes.device
