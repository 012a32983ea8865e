"""Trained weights on other classes: a new classifier, a learning rate of its own, the rest frozen or not."""

import pytest
import torch

import capsroute as cr
from capsroute.data import ImageSet
from capsroute.training import Recipe, Splits
from capsroute.training.graphs import set_learning_rate
from capsroute.training.optimisers import make_optimiser
from capsroute.training.sections import OptimiserSection

QUIET = {"evaluation": {"pictures": False, "speed_seconds": 0.0}, "logging": {"tensorboard": False}}


def shapes(count, seed):
    """Bars, rings and crosses of 28 x 28 pixels, somewhere near the middle."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    labels = torch.arange(count) % 3
    for image, label in zip(images[:, 0], labels.tolist()):
        top, left = (int(torch.randint(4, 9, (), generator=generator)) for _ in range(2))
        drawn = image[top : top + 15, left : left + 15]
        if label == 0:
            drawn[6:9] = 255
        elif label == 1:
            drawn[:] = 255
            drawn[3:12, 3:12] = 0
        else:
            drawn[6:9], drawn[:, 6:9] = 255, 255
    return ImageSet(images, labels, ("bar", "ring", "cross"))


def recipe(**tables):
    content = {
        "model": {"name": "capsnet_max_min", "pretrained": True},
        "optimiser": {"learning_rate": 1e-3, "classifier_factor": 10.0},
        "training": {"epochs": 4, "batch_size": 15, "device": "cpu", "threads": 1},
        **QUIET,
    }
    return Recipe.of({**content, **{name: {**content.get(name, {}), **table} for name, table in tables.items()}})


@pytest.mark.parametrize("freeze", [False, True])
def test_trained_weights_learn_three_classes_of_which_they_know_nothing(freeze, tmp_path):
    splits = Splits(shapes(60, seed=0), test={"shapes": shapes(30, seed=1)})
    run = cr.training.fit(
        None, splits, recipe(model={"freeze": freeze}), tmp_path / "run", reporter=cr.training.SilentReporter()
    )
    assert run.accuracy >= 0.9
    before, after = cr.create_model("capsnet_max_min", pretrained=True), cr.load_model(tmp_path / "run")
    assert after.classes == ("bar", "ring", "cross")
    assert torch.equal(after.convolution.weight, before.convolution.weight) is freeze
    found = cr.predict(tmp_path / "run", splits.test["shapes"].images)
    right = sum(after.classes[label] == one.label for label, one in zip(splits.test["shapes"].labels, found))
    assert right / 30 == pytest.approx(run.accuracy)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_classifier_has_a_learning_rate_of_its_own(decay):
    model = cr.create_model("zhao_huang_resnet20", **cr.models.small_options("zhao_huang_resnet20"))
    settings = OptimiserSection(name="sgd", learning_rate=0.1, weight_decay=decay, classifier_factor=5.0)
    optimiser = make_optimiser(model, settings)
    set_learning_rate(optimiser, 0.01)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == pytest.approx(0.05 if name.startswith("classifier") else 0.01)
    assert decays[id(model.classifier.weight)] == decay
    assert decays[id(model.classifier.bias)] == 0


def test_a_model_that_names_no_classifier_is_refused():
    with pytest.raises(ValueError, match=r"optimiser\.classifier_factor: the model has no `get_classifier`"):
        make_optimiser(torch.nn.Linear(2, 2), OptimiserSection(classifier_factor=2.0))


def test_the_recipe_is_there():
    made = cr.training.load_recipe("fine-tune")
    assert made.model.pretrained is True
    assert made.optimiser.classifier_factor == 10
