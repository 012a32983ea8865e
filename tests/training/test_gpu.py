"""What only a GPU has: low precisions with loss scaling, compiled models, CUDA graphs, memory that runs out."""

import pytest
import torch

from capsroute.training import OutOfMemory, SilentReporter, fit
from tests.training.test_errors import spoilt_model
from tests.training.tiny import tiny

pytestmark = pytest.mark.gpu
CUDA = {"training.device": "cuda", "training.epochs": 6, "optimiser.learning_rate": 0.03}


def losses(folder, **changes):
    run = fit(None, None, tiny(**{**CUDA, **changes}), folder, reporter=SilentReporter())
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
    run = fit(None, None, tiny(**CUDA), tmp_path / "parts", resume=True, reporter=SilentReporter())
    assert [row["train_loss"] for row in run.history] == pytest.approx(whole, rel=0.02)


def test_memory_that_runs_out_is_explained(tmp_path):
    model = spoilt_model(1, lambda values: torch.empty(2**50, device="cuda"))
    with pytest.raises(OutOfMemory, match=r"on cuda:0 with batches of 200 .* GiB"):
        fit(model, None, tiny(**CUDA), tmp_path, reporter=SilentReporter())
