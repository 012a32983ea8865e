"""Every model on a GPU gives what it gives on a CPU, and its gradients are finite in bfloat16 too."""

import pytest
import torch

from tests.models.inputs import NAMES, inputs, settled, small

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def _whole_float32(monkeypatch):
    """TensorFloat-32 convolutions are a thousandth off before any routing begins."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_cpu(name):
    model = settled(small(name))
    images = inputs(model)
    with torch.no_grad():
        expected = model(images).scores
        given = model.cuda()(images.cuda()).scores
    torch.testing.assert_close(given.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_under_autocast(name):
    model = small(name).cuda()
    labels = torch.tensor([0, 2, 1], device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        output = model(inputs(model).cuda(), labels)
    loss = torch.nn.functional.cross_entropy(output.scores.float(), labels)
    (loss + (0 if output.reconstruction is None else output.reconstruction.float().square().mean())).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", ["capsnet_small", "tsai_simple_cifar10", "heinsen_smallnorb", "tsai_em_simple"])
def test_compiled_by_inductor_it_is_the_same(name):
    torch.compiler.reset()
    model = settled(small(name)).cuda()
    images = inputs(model).cuda()
    with torch.no_grad():
        given = torch.compile(model, fullgraph=True)(images).scores
        torch.testing.assert_close(given, model(images).scores, rtol=1e-3, atol=1e-4)
