"""What only a GPU has: low precisions with loss scaling, compiled models, CUDA graphs, memory that runs out."""

import pytest
import torch

import capsroute as cr
from capsroute.training import OutOfMemory
from tests.training.tiny import spoilt_model, train

pytestmark = pytest.mark.gpu
CUDA = {"training.device": "cuda", "training.epochs": 6, "optimiser.learning_rate": 0.03}


def losses(folder, **changes):
    run = train(folder, **{**CUDA, **changes})
    return [row["train_loss"] for row in run.history]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_precision_learns(tmp_path, precision):
    found = losses(tmp_path, **{"training.precision": precision, "training.epochs": 20})
    assert found[-1] < 0.7 * found[0]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_gpu_learns_what_a_cpu_learns(tmp_path, precision):
    one = losses(tmp_path / "gpu", **{"training.precision": precision})
    two = losses(tmp_path / "cpu", **{"training.device": "cpu"})
    assert two[-1] < 0.8 * two[0]
    assert one == pytest.approx(two, rel=0.02)


@pytest.mark.parametrize("graphs", [False, True])
def test_compiled_model_learns_the_same(tmp_path, graphs):
    plain = losses(tmp_path / "plain")
    compiled = losses(tmp_path / "compiled", **{"training.compile": True, "training.cuda_graphs": graphs})
    assert compiled == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_margin_of_the_spread_loss_rises_under_replayed_steps(tmp_path, routing):
    spread = {"loss.name": "spread", "loss.reconstruction": 0.0, "model.arguments.routing": routing}
    plain = losses(tmp_path / "plain", **spread)
    assert losses(tmp_path / "replayed", **spread, **{"training.cuda_graphs": True}) == pytest.approx(plain, rel=0.02)
    # The margin grows more than fourfold, its square twentyfold: a recording that kept the first would differ by far.
    kept = losses(tmp_path / "kept", **spread, **{"loss.margin_end": 0.2})
    assert kept[-1] < 0.5 * plain[-1]


def test_resumed_run_goes_on(tmp_path):
    whole = losses(tmp_path / "whole")
    losses(tmp_path / "parts", **{"training.max_steps": 18})
    run = train(tmp_path / "parts", resume=True, **CUDA)
    assert [row["train_loss"] for row in run.history] == pytest.approx(whole, rel=0.02)


def test_memory_that_runs_out_is_explained(tmp_path):
    model = spoilt_model(1, lambda values: torch.empty(2**50, device="cuda"))
    with pytest.raises(OutOfMemory, match=r"on cuda:0 with batches of 200 .* GiB"):
        train(tmp_path, model, **CUDA)


def own_loop(kind, step_of, rates, autocast=None):
    """Losses of a loop of one's own, with a rate that changes, and a last batch that is smaller."""
    torch.manual_seed(0)
    model = cr.create_model("capsnet_small", image_size=8, decoder=None).cuda()
    optimiser = kind(model.parameters(), lr=rates[0])
    batches = list(cr.data.Batches(cr.data.load("digits"), 100, device="cuda"))

    def loss(model, images, labels):
        return cr.losses.margin(model(images).scores, labels)

    step = step_of(model, loss, optimiser, batches[0], autocast)
    found = []
    for rate in rates:
        optimiser.param_groups[0]["lr"] = rate
        found += [step(*batch).item() for batch in batches]
    return found, step, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class PlainStep:
    def __init__(self, model, loss, optimiser, example, autocast):
        self.model, self.loss, self.optimiser, self.autocast = model, loss, optimiser, autocast

    def __call__(self, *batch):
        self.optimiser.zero_grad()
        with torch.autocast("cuda", self.autocast, enabled=self.autocast is not None):
            loss = self.loss(self.model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimiser.step()
        return loss


def graphed(model, loss, optimiser, example, autocast):
    return cr.training.graphed_step(model, loss, optimiser, example, autocast=autocast, clip=0.5)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam, torch.optim.SGD])
def test_replayed_step_in_a_loop_of_ones_own_learns_what_a_plain_one_learns(kind, autocast):
    rates = [1.0, 0.5, 2.0] if kind is torch.optim.SGD else [0.01, 0.001, 0.003]
    plain, _, expected = own_loop(kind, PlainStep, rates, autocast)
    found, step, weights = own_loop(kind, graphed, rates, autocast)
    assert step.reason is None
    assert step.graphed.recorded
    assert found == pytest.approx(plain, rel=0.02)
    _, _, others = own_loop(kind, graphed, [rates[0]] * 3, autocast)
    assert (weights - others).norm() > 3 * (weights - expected).norm()  # the rates were heeded


def test_step_that_cannot_be_recorded_says_why_and_goes_on():
    model = torch.nn.Linear(3, 1).cuda()

    def loss(model, inputs):
        value = model(inputs).square().mean()
        return value * 2 if value.item() > 0 else value

    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    step = cr.training.graphed_step(model, loss, optimiser, [torch.ones(2, 3, device="cuda")])
    with pytest.warns(UserWarning, match="recording failed"):
        found = [step(torch.ones(2, 3, device="cuda")).item() for _ in range(6)]
    assert step.reason.startswith("recording failed")
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


@pytest.mark.parametrize("graphs", [(True, False), (False, True)])
def test_run_goes_on_with_and_without_replayed_steps(tmp_path, graphs):
    whole = losses(tmp_path / "whole")
    losses(tmp_path / "parts", **{"training.max_steps": 18, "training.cuda_graphs": graphs[0]})
    run = train(tmp_path / "parts", resume=True, **CUDA, **{"training.cuda_graphs": graphs[1]})
    assert [row["train_loss"] for row in run.history] == pytest.approx(whole, rel=0.02)
