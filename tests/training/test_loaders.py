"""Data, models, losses and callbacks as people have them: Datasets, DataLoaders, any module, any function."""

import random
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset, WeightedRandomSampler

import capsroute as cr
from capsroute.training import RunFolder, SilentReporter, Splits, fit
from capsroute.training.checkpoint import random_state
from capsroute.training.data import made_ahead
from capsroute.training.loaders import Loaded, LoadedBatches
from tests.data.images.shapes import make_shapes

RECIPE = {
    "training": {"epochs": 2, "batch_size": 100, "device": "cpu", "threads": 1},
    "optimiser": {"learning_rate": 0.01},
    "evaluation": {"pictures": False, "speed_seconds": 0.0},
    "logging": {"tensorboard": False},
}
KEPT = "train_loss", "train_accuracy", "validation_loss", "validation_accuracy"  # what no clock has a part in
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


class Noisy(Pairs):
    """Images a little brighter or darker, by chance, and noise of numpy and Python."""

    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return image / 255 + 0.3 * torch.rand(()) + 0.1 * np.random.rand() + 0.1 * random.random(), label


def network(dropout=0.0):
    torch.manual_seed(0)
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(dropout)
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 10))


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


def loaded(kind):
    """Training data of one kind, fresh as at the start of a program."""
    pairs = Noisy("train") if kind != "workers that persist" else Pairs("train")  # whose noise goes on and on
    if kind == "dataset":
        return pairs
    options = {"shuffle": True, "drop_last": True}
    if kind == "own generator":
        options["generator"] = torch.Generator().manual_seed(3)
    elif kind == "own sampler":
        options = {"sampler": WeightedRandomSampler(torch.ones(len(pairs)), len(pairs)), "drop_last": True}
    elif kind == "own batches":
        return DataLoader(pairs, batch_sampler=BatchSampler(RandomSampler(pairs), 100, True))
    elif "workers" in kind:
        options.update(num_workers=1, persistent_workers="persist" in kind)
    return DataLoader(pairs, 100, **options)


KINDS = ["dataset", "loader", "own generator", "own sampler", "own batches", "workers", "workers that persist"]


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_run_goes_on_exactly(tmp_path, kind):
    """Of data that draw noise and a network that drops out, in the middle of an epoch and between two."""

    def run(folder, recipe=RECIPE, **options):
        data = Splits(loaded(kind), Noisy("validation"))
        return train(tmp_path / folder, network(dropout=0.5), data, recipe, **options)

    whole = run("whole")
    for steps in (12, 18):
        run(f"parts {steps}", {**RECIPE, "training": {**RECIPE["training"], "max_steps": steps}})
        parts = run(f"parts {steps}", resume=True)
        rows = [[{name: row[name] for name in KEPT} for row in result.history] for result in (whole, parts)]
        assert rows[0] == rows[1], steps


def generators():
    state = random_state(torch.device("cpu"))
    return state.pop("torch").tolist(), state


def draws():
    return torch.rand(()).item(), np.random.rand(), random.random()


class Meeting(Dataset):
    """Noise. Where a thread makes it ahead, whoever trains draws when the second example is half made."""

    def __init__(self):
        self.trainer, self.made = threading.current_thread(), 0
        self.half_made, self.drawn = threading.Event(), threading.Event()

    def __len__(self):
        return 4

    def __getitem__(self, number):
        half = draws()
        self.made += 1
        if threading.current_thread() is self.trainer:
            self.half_made.set()  # nobody makes another meanwhile
        elif self.made == 2:
            self.half_made.set()
            assert self.drawn.wait(10)
        return torch.tensor([*half, *draws()]), number


def test_nothing_draws_for_a_batch_while_the_model_draws_on_a_gpu_either(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)

    def epoch(device):
        data = Meeting()
        batches = made_ahead(LoadedBatches(Loaded(data), 1, seed=1), torch.device(device))
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        seen = []
        for images, _ in batches:
            assert data.half_made.wait(10)
            seen.append((images.tolist(), draws(), generators()))
            data.drawn.set()
        return seen

    assert epoch("cpu") == epoch("cuda")


def test_generators_are_put_back_after_every_batch_after_an_error_and_in_a_loop_that_is_left():
    for kind in KINDS[:-2]:
        batches = LoadedBatches(Loaded(loaded(kind)), 100, seed=1)
        before = generators()
        for step, _ in enumerate(batches):
            assert generators() == before
            if step == 2:
                break
        assert generators() == before

    class Torn(Noisy):
        def __getitem__(self, number):
            super().__getitem__(number)
            raise OSError(number)

    with pytest.raises(OSError, match="0"):
        next(iter(LoadedBatches(Loaded(Torn("train")), 3, shuffle=False)))
    assert generators() == before


def test_a_position_that_is_saved_again_before_a_batch_keeps_its_generators():
    """As by a run that is stopped as soon as it goes on."""
    batches = LoadedBatches(Loaded(loaded("own generator")), 100, seed=1)
    next(iter(batches))
    state, again = batches.state_dict(), LoadedBatches(Loaded(loaded("own generator")), 100, seed=1)
    again.load_state_dict(state)
    [saved], [kept] = state["generators"], again.state_dict()["generators"]
    assert torch.equal(saved, kept)


def test_a_state_without_generators_is_gone_on_from():
    """As that of an older version."""
    batches = LoadedBatches(Loaded(loaded("own generator")), 100, seed=1)
    batches.load_state_dict({"epoch": 1, "position": 10, "seed": 1, "size": len(Pairs("train"))})
    assert len(list(batches)) == len(batches) - 10


def test_a_batch_of_nothing_does_not_end_the_epoch():
    loader = DataLoader(Pairs("train"), 100, collate_fn=lambda items: None)
    with pytest.raises(ValueError, match=r"data: expected batches of \(inputs, labels\), got NoneType"):
        list(LoadedBatches(Loaded(loader), 100, seed=1))


def test_two_processes_draw_other_noise():
    class Noise(TensorDataset):
        def __getitem__(self, number):
            return torch.rand(1), 0

    noise = Loaded(Noise(torch.zeros(4)))
    mine, theirs = (next(iter(LoadedBatches(noise, 4, seed=1, rank=rank, world_size=2)))[0] for rank in (0, 1))
    assert not torch.equal(mine, theirs)


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
