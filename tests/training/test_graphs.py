"""A step for a loop of one's own; where it cannot be replayed it says why. Replaying needs a GPU: test_gpu.py."""

import contextlib
import gc
from types import SimpleNamespace

import pytest
import torch

import capsroute as cr
from capsroute.training.graphs import GraphedPass, capturable, graphs_refused, set_learning_rate
from tests.training.tiny import tiny


@pytest.mark.parametrize(
    ("device", "size", "changes", "reason"),
    [
        ("cuda", 1, {}, None),
        ("cpu", 1, {}, "they need a GPU, this run is on cpu"),
        ("cuda", 2, {}, "one process only, this run has 2"),
        ("cuda", 1, {"training.accumulate": 2}, "batches must be whole, this run cuts them into 2 parts"),
        ("cuda", 1, {"loss.name": "spread"}, None),
    ],
)
def test_reason_is_given(device, size, changes, reason):
    world = SimpleNamespace(device=torch.device(device), size=size)
    refused = graphs_refused(tiny(**changes), world)
    assert refused is None if reason is None else refused.startswith(reason)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def cross_entropy(model, inputs, labels):
    return torch.nn.functional.cross_entropy(model(inputs), labels)


def batches(sizes=(6, 6, 6, 2)):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 4, generator=generator), torch.arange(size) % 3) for size in sizes]


def by_hand(optimiser, model, clip=None, autocast=None):
    """The loop that everybody writes."""
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    found = []
    for inputs, labels in batches():
        optimiser.zero_grad()
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = cross_entropy(model, inputs, labels)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        schedule.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("options", [{}, {"clip": 0.01}, {"autocast": torch.bfloat16}])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_step_is_that_of_a_plain_loop(kind, options):
    one, two = network(), network()
    expected = by_hand(kind(one.parameters(), lr=0.1), one, **options)
    optimiser = kind(two.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    step = cr.training.graphed_step(two, cross_entropy, optimiser, batches()[0], **options)
    found = []
    for batch in batches():
        found.append(step(*batch).item())
        schedule.step()
    assert found == expected
    for mine, theirs in zip(two.parameters(), one.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert step.reason == "CUDA graphs need a GPU, and the model is on cpu"


def test_what_is_no_loss_and_no_batch_is_refused_by_name():
    model, images = torch.nn.Linear(3, 2), torch.rand(2, 3)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"loss: expected a function of \(model, \*batch\), got 'margin'"):
        cr.training.graphed_step(model, "margin", optimiser, (images, None))
    with pytest.raises(TypeError, match=r"example: expected a batch, such as \(images, labels\), got a tensor"):
        cr.training.graphed_step(model, lambda model, x: model(x).sum(), optimiser, images)


def test_an_optimiser_of_another_model_is_refused():
    model, other = network(), network()
    step = cr.training.graphed_step(model, cross_entropy, torch.optim.SGD(other.parameters(), 0.1), batches()[0])
    with pytest.raises(ValueError, match=r"optimiser: expected .*, got 4 that the loss of Sequential does not"):
        step(*batches()[0])


def test_a_part_of_a_model_and_a_probe_of_a_frozen_one_are_trained():
    model, probe = network(), torch.nn.Linear(3, 3)
    step = cr.training.graphed_step(model, cross_entropy, torch.optim.SGD(model[2].parameters(), 0.1), batches()[0])
    step(*batches()[0])
    assert not torch.equal(model[2].weight, network()[2].weight)
    model.requires_grad_(False)
    before = probe.weight.clone()

    def loss(model, inputs, labels):
        return torch.nn.functional.cross_entropy(probe(model(inputs)), labels)

    cr.training.graphed_step(model, loss, torch.optim.SGD(probe.parameters(), 0.1), batches()[0])(*batches()[0])
    assert not torch.equal(before, probe.weight)


def test_example_is_not_trained_on():
    model = network()
    before = [parameter.clone() for parameter in model.parameters()]
    cr.training.graphed_step(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=1.0), batches()[0])
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_collected_during_a_recording(monkeypatch, fails):
    """A recording that was let go is a cycle; collected inside another one, it is that one's error."""

    @contextlib.contextmanager
    def recording(*_, **__):
        yield

    for name, stand_in in {"graph": recording, "CUDAGraph": object, "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    collected = []

    def run(_):
        collected.append(gc.isenabled())
        if fails:
            raise RuntimeError("not recorded")
        return torch.zeros(())

    graphed = GraphedPass(run, lambda: None)
    with pytest.raises(RuntimeError, match="not recorded") if fails else contextlib.nullcontext():
        graphed._record(None)
    assert collected == [False]
    assert gc.isenabled()
    assert graphed.recorded is not fails


def test_recordable_optimiser_and_back():
    """What a recording reads stays in one place on the device; without recordings they are plain numbers again."""
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimiser.step()
    capturable(optimiser, True)
    rate = optimiser.param_groups[0]["lr"]
    set_learning_rate(optimiser, 0.3)
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate == torch.tensor(0.3)
    assert optimiser.param_groups[0]["capturable"]
    capturable(optimiser, False)
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.3)
    assert not isinstance(optimiser.param_groups[0]["lr"], torch.Tensor)
    set_learning_rate(optimiser, 0.5)
    assert optimiser.param_groups[0]["lr"] == 0.5
    optimiser.step()
