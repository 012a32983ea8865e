"""A small run that commands can be tried on."""

import capsroute as cr


def make_run(folder, *overrides):
    """A network on the digits after two steps of training."""
    settings = ["training.max_steps=2", "training.epochs=1", "evaluation.pictures=false", "evaluation.fast=false"]
    recipe = cr.training.load_recipe("quickstart", [*settings, "model.arguments.routing='max_min'", *overrides])
    cr.training.fit(None, None, recipe, folder, reporter=cr.training.SilentReporter())
    return folder
