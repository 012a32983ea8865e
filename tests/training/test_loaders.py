"""Data, models, losses and callbacks as people have them: Datasets, DataLoaders, any module, any function."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import capsroute as cr
from capsroute.training import RunFolder, SilentReporter, Splits, fit
from capsroute.training.loaders import Loaded, LoadedBatches
from tests.data.images.shapes import make_shapes

RECIPE = {
    "training": {"epochs": 2, "batch_size": 100, "device": "cpu", "threads": 1},
    "optimiser": {"learning_rate": 0.01},
    "evaluation": {"pictures": False, "speed_seconds": 0.0},
    "logging": {"tensorboard": False},
}
DRAWN = {**RECIPE, "evaluation": {"pictures": True, "speed_seconds": 0.0}}


class Pairs(Dataset):
    """What a user writes: an image and an int, one after the other."""

    classes = tuple("0123456789")

    def __init__(self, split):
        self.digits = cr.data.load("digits", split)

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, number):
        return self.digits.images[number], int(self.digits.labels[number])


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def train(folder, model=None, data=None, recipe=RECIPE, **options):
    data = data or Splits(Pairs("train"), Pairs("validation"), {"digits": Pairs("test")})
    return fit(model or network(), data, recipe, folder, reporter=SilentReporter(), **options)


def test_plain_module_on_datasets_is_trained_and_tested(tmp_path):
    model = network()
    run = train(tmp_path, model, recipe=DRAWN)
    assert (tmp_path / "figures" / "training.png").is_file()
    assert run.model is model
    assert run.accuracy > 0.6
    assert run.result["test"].keys() == {"as_trained"}
    assert run.result["test"]["as_trained"]["images"] == 359
    again = network()
    cr.models.files.load_weights(again, tmp_path / "best")
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
    assert (tmp_path / "report.md").is_file()


@pytest.mark.parametrize("kind", ["dataset", "loader", "own generator"])
def test_interrupted_run_goes_on_exactly(tmp_path, kind):
    def data():
        generator = torch.Generator().manual_seed(3) if kind == "own generator" else None
        train = Pairs("train")
        if kind != "dataset":
            train = DataLoader(train, 100, shuffle=True, drop_last=True, generator=generator)
        return Splits(train, Pairs("validation"))

    whole = train(tmp_path / "whole", data=data())
    settings = {**RECIPE, "training": {**RECIPE["training"], "max_steps": 18}}
    train(tmp_path / "parts", data=data(), recipe=settings)
    parts = train(tmp_path / "parts", data=data(), resume=True)
    losses = [[row["train_loss"] for row in run.history] for run in (whole, parts)]
    if kind == "own generator":
        # Its state is the user's: order may differ, every image comes once all the same.
        assert parts.result["steps"] == 24
    else:
        assert losses[0] == losses[1]


def test_two_processes_share_a_dataset():
    part = Loaded(TensorDataset(torch.arange(10)[:, None], torch.arange(10)))
    whole = [labels for _, labels in LoadedBatches(part, 4, seed=1)]
    shares = [[labels for _, labels in LoadedBatches(part, 4, seed=1, rank=rank, world_size=2)] for rank in (0, 1)]
    for labels, *both in zip(whole, *shares, strict=True):
        assert torch.equal(labels, torch.cat(both))
    with pytest.raises(ValueError, match="several processes share a Dataset"):
        LoadedBatches(Loaded(DataLoader(part.dataset)), 4, world_size=2)


def test_order_is_new_every_epoch_and_bytes_become_numbers():
    batches = LoadedBatches(Loaded(Pairs("train")), 200)
    orders = [torch.cat([labels for _, labels in batches]) for _ in range(2)]
    assert not torch.equal(*orders)
    assert torch.equal(*(order.sort().values for order in orders))
    images, labels = next(iter(batches))
    assert images.dtype == torch.float32
    assert images.max() == 1.0
    assert labels.dtype == torch.int64


def test_data_that_cannot_be_trained_on_are_refused():
    with pytest.raises(ValueError, match="data: expected at least one example"):
        Loaded(TensorDataset(torch.zeros(0, 1), torch.zeros(0)))
    with pytest.raises(ValueError, match=r"data: expected batches of \(inputs, labels\)"):
        next(iter(LoadedBatches(Loaded(TensorDataset(torch.zeros(3, 1))), 2)))


def test_model_of_ours_is_made_for_a_dataset(tmp_path):
    recipe = {**DRAWN, "model": {"name": "capsnet_small", "arguments": {"channels": 4, "decoder": []}}}
    run = fit(None, Splits(Pairs("train"), test={"digits": Pairs("test")}), recipe, tmp_path, reporter=SilentReporter())
    assert (tmp_path / "figures" / "training.png").is_file()
    assert run.model.num_classes == 10
    assert run.model.classes == Pairs.classes
    assert "uniform" in run.result["test"]


def test_loss_by_name_by_function_and_of_the_model(tmp_path):
    class Judged(torch.nn.Sequential):
        def loss(self, output, labels):
            seen.append(type(output))
            return F.multi_margin_loss(output, labels)

    seen = []
    named = train(tmp_path / "named", loss="binary_cross_entropy")
    assert RunFolder(tmp_path / "named").recipe().loss.name == "binary_cross_entropy"
    given = train(tmp_path / "given", loss=lambda output, labels: F.multi_margin_loss(output, labels))
    judged = train(tmp_path / "judged", Judged(*network()))
    assert set(seen) == {torch.Tensor}
    losses = [[row["validation_loss"] for row in run.history] for run in (named, given, judged)]
    assert losses[1] == losses[2]
    assert losses[0] != losses[1]


def test_output_with_scores_reaches_the_loss_whole(tmp_path):
    class Outputs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, images):
            return cr.models.ModelOutput(self.body(images), poses=images)

    def loss(output, labels):
        assert output.poses.shape[1:] == (1, 8, 8)
        return F.cross_entropy(output.scores, labels)

    assert train(tmp_path, Outputs(), loss=loss).accuracy > 0.6


def test_module_without_scores_is_refused(tmp_path):
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, images):
            return {"logits": self.body(images)}

    with pytest.raises(ValueError, match=r"model: expected scores \[b,classes\], or an output that has them, got dict"):
        train(tmp_path, Pair())


def test_callbacks_hear_of_the_beginning_every_epoch_and_the_end(tmp_path):
    class Log:
        def begin(self, folder, recipe):
            heard.append(("begin", folder, recipe.training.epochs))

        def epoch(self, row):
            heard.append(("epoch", row["epoch"]))

        def end(self, result):
            heard.append(("end", result["test"]["as_trained"]["accuracy"]))

    heard, rows = [], []
    run = train(tmp_path, callbacks=[Log(), rows.append])
    assert heard == [("begin", tmp_path, 2), ("epoch", 1), ("epoch", 2), ("end", run.accuracy)]
    assert [row["validation_accuracy"] for row in rows] == [row["validation_accuracy"] for row in run.history]
    with pytest.raises(ValueError, match="callbacks: expected a function"):
        train(tmp_path / "other", callbacks=["wandb"])


class Shapes(Dataset):
    """Picture files in class folders, as a user reads them: any size to 16 x 16."""

    def __init__(self, folder, seed):
        make_shapes(folder, 12, seed)
        self.classes = tuple(sorted(path.name for path in folder.iterdir()))
        self.files = sorted(folder.glob("*/*"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        with Image.open(self.files[number]) as picture:
            pixels = torch.from_numpy(np.array(picture.convert("RGB").resize((16, 16))))
        return pixels.movedim(2, 0) / 255, self.classes.index(self.files[number].parent.name)


class Convolutional(torch.nn.Module):
    """A network of the user's own; two attributes say what `predict` and `export` must know."""

    input_shape = (3, 16, 16)

    def __init__(self, classes):
        super().__init__()
        self.preprocessing = cr.models.Preprocessing(classes=classes)
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 5, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, len(classes))
        )

    def forward(self, images):
        return self.body(images - 0.5)


def test_pictures_a_loader_and_a_module_of_ones_own_all_the_way(tmp_path):
    """Train, evaluate, predict, export to ONNX, and go on after a break: the whole way in Python."""
    known, unseen = Shapes(tmp_path / "known", 0), Shapes(tmp_path / "unseen", 1)
    settings = {**RECIPE, "training": {**RECIPE["training"], "epochs": 12}}

    def trained(folder, recipe=settings, **options):
        torch.manual_seed(0)
        splits = Splits(DataLoader(known, 12, shuffle=True), test={"unseen": DataLoader(unseen, 12)})
        return train(tmp_path / folder, Convolutional(known.classes), splits, recipe, **options)

    run = trained("whole")
    assert run.accuracy > 0.6
    assert cr.training.evaluate(run.model, DataLoader(unseen, 9))["accuracy"] == run.accuracy
    half = {**settings, "training": {**settings["training"], "max_steps": 20}}
    trained("parts", half)
    again = trained("parts", resume=True)
    for ours, theirs in zip(again.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    exported = cr.inference.export(run.model, tmp_path / "own.onnx").path
    images = torch.stack([image for image, _ in unseen])
    ours, theirs = (cr.predict(source, images, top=None) for source in (run.model, exported))
    assert [one.classes for one in ours] == [one.classes for one in theirs]
    right = sum(one.label == file.parent.name for one, file in zip(ours, unseen.files, strict=True))
    assert right / len(unseen) == pytest.approx(run.accuracy)
    assert cr.predict(run.model, unseen.files)[0].label in known.classes
