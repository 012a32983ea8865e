"""`capsroute recipes`."""

from typer.testing import CliRunner

from capsroute.cli.app import app
from capsroute.training import list_recipes


def test_every_recipe_is_listed_with_its_number():
    done = CliRunner().invoke(app, ["recipes"], env={"COLUMNS": "300"})
    assert done.exit_code == 0
    assert all(name in done.output for name in list_recipes())
    assert "Zhao et al. 2019, Fast Inference in Capsule Networks" in done.output
    [line] = [line for line in done.output.splitlines() if line.split()[:1] == ["zhao-mnist-max-min"]]
    assert "table 1, MNIST, max-min" in line
    assert "99.55 ± 0.02 %" in line


def test_list_can_be_narrowed():
    done = CliRunner().invoke(app, ["recipes", "heinsen"], env={"COLUMNS": "300"})
    assert "heinsen-smallnorb" in done.output
    assert "sabour" not in done.output
