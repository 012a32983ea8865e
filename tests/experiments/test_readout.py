"""The read-out experiment at toy size: every head learns, runs do not see each other, all get the same search."""

import collections
import queue
import time

import pytest
import torch

from capsroute.data import ImageSet, TextSet
from capsroute.training.text import Padded
from experiments import readout
from experiments.masked_autoencoder import MaskedAutoencoder, pretrain
from experiments.readout import HEADS, Frozen, Plan, Study, study

CPU = torch.device("cpu")
TOY = Plan(rates=(1e-2, 1e-5), seeds=2, epochs=2, batch=16)


def toy(depths=None, width=16, tokens=5):
    """The class is in every token."""
    torch.manual_seed(0)
    labels = torch.arange(96) % 2
    shape = (96, tokens) if depths is None else (96, tokens, depths)
    found = 0.3 * torch.randn(*shape, width)
    found[..., 0] += (2.0 * labels - 1).view(-1, *[1] * (len(shape) - 1))
    mask = torch.ones(96, tokens, dtype=torch.bool)
    mask[::3, 3:] = False
    rows = {"train": torch.arange(64), "validation": torch.arange(64, 80), "test": torch.arange(80, 96)}
    return Frozen(found.half(), mask, labels, rows)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_trains_and_is_timed(head):
    assert readout.microseconds(HEADS[head], (2, 5, 16), 2, repeats=1) > 0
    rows = study(toy(), HEADS[head], Plan(rates=(1e-2,), seeds=1, epochs=1, batch=16))
    assert [row["phase"] for row in rows] == ["trial", "test"]
    assert all(row["parameters"] > 0 for row in rows)


def test_the_best_rate_of_the_trials_is_tested_with_every_seed():
    rows = study(toy(), HEADS["attention"], TOY)
    assert [(row["phase"], row["rate"], row["seed"]) for row in rows] == [
        *[("trial", 1e-2, 0), ("trial", 1e-5, 0)],
        *[("test", 1e-2, 1), ("test", 1e-2, 2)],
    ]
    assert rows[-1]["accuracy"] > 90


def test_a_run_does_not_depend_on_the_runs_before_it():
    data = toy()
    torch.manual_seed(0)
    one = Study(lambda: readout.RoutingHead(16, 2, pooling="attention"), data, TOY)
    one.train(1e-2, 3)
    first = {name: value.clone() for name, value in one.head.state_dict().items()}
    one.train(1e-3, 4)
    one.train(1e-2, 3)
    assert all(torch.equal(first[name], value) for name, value in one.head.state_dict().items())


def test_test_rows_are_not_trained_on():
    data = toy()
    broken = Frozen(data.tokens.clone(), data.mask, data.labels, data.rows)
    broken.tokens[64:] = torch.nan
    weights = []
    for given in (data, broken):
        torch.manual_seed(0)
        one = Study(lambda: readout.RoutingHead(16, 2, pooling="mean"), given, TOY)
        one.train(1e-2, 1)
        weights.append(one.head.classifier.weight.detach().clone())
    assert torch.equal(*weights)


def test_heads_of_all_depths_see_all_of_them_and_others_the_last(tmp_path):
    data = toy(depths=3)
    data.save(tmp_path / "sst.safetensors")
    back = Frozen.load(tmp_path / "sst.safetensors")
    assert back.to(CPU, last=True).tokens.equal(data.tokens[:, :, -1])
    assert back.to(CPU, last=False).tokens.equal(data.tokens)
    jobs, done = queue.Queue(), queue.Queue()
    for job in [("sst5", "mean"), ("sst5", "mean, all depths"), None]:
        jobs.put(job)
    readout._work(tmp_path, jobs, done, {"sst5": TOY}, "cpu", time.time() + 600)
    answers = [done.get(), done.get()]
    assert [answer[3] for answer in answers] == [None, None]
    assert answers[1][2][0]["parameters"] == answers[0][2][0]["parameters"] + 2 * 3 * 16


def test_a_head_that_cannot_be_trained_is_told_and_its_process_ends(tmp_path):
    jobs, done = queue.Queue(), queue.Queue()
    for job in [("sst5", "mean"), ("sst5", "cls"), None]:
        jobs.put(job)
    readout._work(tmp_path, jobs, done, {"sst5": TOY}, "cpu", time.time() + 600)
    assert "sst.safetensors" in done.get_nowait()[3]
    assert done.empty()
    assert jobs.get_nowait() == ("sst5", "cls")


@pytest.mark.slow
def test_another_process_takes_the_place_of_one_that_failed(tmp_path):
    toy().save(tmp_path / "sst.safetensors")
    path, end = tmp_path / "readout.csv", time.time() + 300
    jobs, plans = [("cifar10-mae", "mean"), ("sst5", "mean")], {"cifar10-mae": TOY, "sst5": TOY}
    assert readout.run_heads(path, tmp_path, jobs, plans, CPU, 1, end) == 1  # there are no features of pictures
    assert {row["data"] for row in readout.read(path)} == {"sst5"}
    assert readout.run_heads(path, tmp_path, jobs[1:], plans, CPU, 1, end) == 0  # the file has it
    assert len(readout.read(path)) == 4


def test_sentences_keep_their_labels_their_split_and_their_tokens(monkeypatch):
    """A text of n letters has n tokens, which say how many."""

    class Letters:
        def __init__(self, settings, device):
            assert settings.max_tokens == readout.TOKENS

        def __call__(self, texts):
            mask = torch.tensor([[place < len(text) for place in range(max(map(len, texts)))] for text in texts])
            hidden = (
                torch.tensor([float(len(text)) for text in texts]).view(-1, 1, 1, 1).expand(-1, mask.shape[1], 2, 3)
            )
            return Padded(hidden * mask[:, :, None, None], mask)

    texts = {"train": ("a", "bb", "ccc"), "validation": ("dddd", "eeeee"), "test": ("ff", "g")}
    labels = {"train": [0, 2, 4], "validation": [2, 1], "test": [3, 2]}
    monkeypatch.setattr(readout, "Encoder", Letters)
    monkeypatch.setattr(
        readout, "load", lambda name, split, classes: TextSet(texts[split], torch.tensor(labels[split]), ("",) * 5)
    )
    data = readout.sentences("letters", CPU)
    assert data.tokens.shape == (7, readout.TOKENS, 2, 3)
    assert data.mask.sum(1).tolist() == [1, 2, 3, 4, 5, 2, 1]
    assert data.tokens[:, 0, 1, 0].tolist() == [1, 2, 3, 4, 5, 2, 1]
    two = data.without_neutral()
    assert {split: rows.tolist() for split, rows in two.rows.items()} == {
        "train": [0, 2],
        "validation": [4],
        "test": [5],
    }
    assert two.labels[torch.tensor([0, 2, 4, 5])].tolist() == [0, 1, 0, 1]


def test_all_heads_are_in_the_queue_for_every_data_set():
    counted = collections.Counter(data for data, _ in readout._jobs(list(readout.FILES), list(HEADS)))
    assert counted["cifar10-mae"] == len(HEADS)
    assert counted["sst2"] == counted["sst5"] == len(HEADS) + len(readout.DEEP)


def test_the_table_and_the_figure_are_of_the_csv(tmp_path):
    path = tmp_path / "readout.csv"
    line = "sst2,{},test,0.001,{},{},100,10,1,True,gpu,abc"
    lines = [line.format("mean", seed, 80 + seed) for seed in (1, 2)] + [line.format("vector", 1, 90)]
    path.write_text("\n".join([",".join(readout.FIELDS), *lines]) + "\n")
    readout.times_of(path).write_text("\n".join([",".join(readout.TIMES), "sst2,mean,64,15.4,cpu"]) + "\n")
    text = readout.draw(path)
    assert "| SST-2 | accuracy" in text
    assert "| mean | 81.50 ± 0.71 (n=2) | 100 | 15 | 0.001 |" in text
    assert "| vector | 90.00 ± 0.00 (n=1) | 100 | - | 0.001 |" in text
    assert text.index("vector") < text.index("mean |")
    assert path.with_suffix(".png").is_file()


def test_an_autoencoder_learns_and_gives_a_token_a_patch():
    torch.manual_seed(0)
    faces = torch.nn.functional.interpolate(torch.rand(64, 3, 2, 2), 8, mode="bilinear")
    images = ImageSet((255 * faces).byte(), torch.arange(64) % 2, ("a", "b"), "toy", "train")
    model, facts = pretrain(images, CPU, steps=40, seconds=600.0, batch=32, width=24, depth=1)
    start = MaskedAutoencoder(8, width=24, depth=1)
    with torch.no_grad():
        assert model(faces) < start(faces)
    assert facts["steps"] == 40
    data = readout.pictures(images, images, CPU, 1, 60.0, width=24, depth=1)
    assert data.tokens.shape == (128, 5, 24)
    assert set(data.rows["train"].tolist()).isdisjoint(data.rows["validation"].tolist())
    assert data.rows["test"].tolist() == list(range(64, 128))


def test_an_autoencoder_is_trained_in_bfloat16_too():
    torch.manual_seed(0)
    model, images = MaskedAutoencoder(8, width=24, depth=1), torch.rand(4, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(images)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
