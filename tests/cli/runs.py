"""A command as a user types it, and a small run that commands can be tried on."""

from typer.testing import CliRunner, Result

import capsroute as cr
from capsroute.cli.app import app


def call(*arguments, **variables) -> Result:
    """What a command says, under these variables of the environment."""
    return CliRunner().invoke(app, list(map(str, arguments)), env=variables)


def run(*arguments):
    """The status and the output of a command on a wide terminal; what it did not expect is raised here."""
    done = call(*arguments, COLUMNS="200")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def make_run(folder, *overrides):
    """A network on the digits after two steps of training."""
    settings = ["training.max_steps=2", "training.epochs=1", "evaluation.pictures=false", "evaluation.fast=false"]
    recipe = cr.training.load_recipe("quickstart", [*settings, "model.arguments.routing='max_min'", *overrides])
    cr.training.fit(None, None, recipe, folder, reporter=cr.training.SilentReporter())
    return folder
