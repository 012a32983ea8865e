"""A recipe and a model so small that whole runs of them take a fraction of a second."""

import torch

from capsroute.models import create_model, small_options
from capsroute.training import Recipe, RunResult, SilentReporter, fit
from capsroute.training.smoke import smoke_recipe

SETTINGS = {
    "name": "tiny",
    "model": {
        "name": "capsnet_small",
        "arguments": {"channels": 4, "primary_capsules": 2, "primary_pose": 4, "class_pose": 4, "decoder": [8, 8]},
    },
    "data": {"name": "digits", "augment": [{"name": "shift", "pixels": 1}]},
    "loss": {"reconstruction": 0.0005},
    "optimiser": {"learning_rate": 0.01},
    "training": {"epochs": 2, "batch_size": 200, "device": "cpu", "threads": 1},
    "evaluation": {"pictures": False, "speed_seconds": 0.0},
    "logging": {"tensorboard": False},
}


def tiny(**changes) -> Recipe:
    """The tiny recipe with dotted settings changed."""
    return Recipe.of(SETTINGS).replace(**changes)


def train(folder, model=None, splits=None, resume=False, reporter=None, **changes) -> RunResult:
    """A run of the tiny recipe with dotted settings changed, which says nothing."""
    return fit(model, splits, tiny(**changes), folder, resume=resume, reporter=reporter or SilentReporter())


class Spoiler(torch.nn.Module):
    """Passes on what it gets, until the step at which it does not."""

    def __init__(self, step, spoil):
        super().__init__()
        self.step, self.spoil, self.calls = step, spoil, 0

    def forward(self, values):
        self.calls += self.training
        return self.spoil(values) if self.training and self.calls > self.step else values


def tiny_model():
    """The network of the tiny recipe, as a run with seed 0 would make it."""
    torch.manual_seed(0)
    return create_model(tiny().model.name, image_size=8, **tiny().model.arguments)


def spoilt_model(step, spoil):
    model = tiny_model()
    model.convolution = torch.nn.Sequential(model.convolution, Spoiler(step, spoil))
    return model


def small_smoke(recipe: Recipe) -> Recipe:
    """A smoke test of the small version of a recipe's model; sizes that follow from the data stay."""
    shrunk = small_options(recipe.model.name) if recipe.model.name is not None else {}
    for size in ("image_size", "num_classes", "in_channels", "depth", "width"):
        shrunk.pop(size, None)
    # Trained weights are of the whole model.
    small = {"model.arguments": {**recipe.model.arguments, **shrunk}, "model.pretrained": False}
    return smoke_recipe(recipe).replace(**small)
