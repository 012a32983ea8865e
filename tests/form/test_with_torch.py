"""Kernels inside what torch makes of a layer: exported programs, autocast, data-parallel training.

On a GPU, or under Triton's interpreter in a process of its own. Compiled and captured graphs: beside each kernel.
"""

import sys

import pytest
import torch
from torch import Tensor, nn

import capsroute as cr
from tests.form.kernels import DEVICE, needs_kernels

# A kernel that a layer runs, the operator that a recorded graph of it must hold, and the kernel that this runs.
LAYERS = {
    "dynamic": ("resident_loop", "routing_loop", "resident_loop"),
    "max_min": ("resident_loop", "routing_loop", "resident_loop"),
    "inverted_attention": ("resident_loop", "attention_step", "few_step"),
    "heinsen": ("whole_forward", "gaussian_loop", "whole_forward"),
    "pooling": ("pool", "pooling", "pool"),
}
# The interpreter takes a minute for what a Gaussian layer does in no time.
SLOW = {"heinsen": pytest.mark.gpu}
each_layer = pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in LAYERS])


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if name == "pooling":
        return cr.layers.RoutingPool2d(4), torch.randn(2, 8, 3, 3, device=DEVICE)
    return cr.layers.CapsuleLinear(6, 3, 4, 5, name).to(DEVICE), torch.randn(2, 6, 4, device=DEVICE)


def poses(output) -> Tensor:
    return output if isinstance(output, Tensor) else output.poses


@needs_kernels
@each_layer
def test_an_exported_program_holds_the_operator_and_runs_the_kernel(name, launched):
    layer, given = made(name)
    program = torch.export.export(layer, (given,))
    operators = [str(node.target) for node in program.graph.nodes if "capsroute" in str(node.target)]
    assert any(LAYERS[name][1] in operator for operator in operators), operators
    launched.clear()
    ours = poses(program.module()(given))
    assert LAYERS[name][2] in launched
    torch.testing.assert_close(ours, poses(layer(given)), rtol=1e-5, atol=1e-5)


@needs_kernels
@each_layer
def test_autocast_gives_the_kernels_half_precision_and_keeps_float32_statistics(name, launched):
    layer, given = made(name)
    exact = poses(layer(given))
    launched.clear()
    with torch.autocast(DEVICE, torch.bfloat16):
        ours = poses(layer(given))
    assert LAYERS[name][0] in launched
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.05)


@needs_kernels
@each_layer
def test_data_parallel_training_gives_the_gradients_of_a_plain_layer(name, launched, tmp_path):
    layer, given = made(name)
    given.requires_grad_()
    plain = gradients(layer, layer, given)
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(layer) if list(layer.parameters()) else layer
        launched.clear()
        ours = gradients(parallel, layer, given)
    finally:
        torch.distributed.destroy_process_group()
    assert LAYERS[name][0] in launched
    for mine, wanted in zip(ours, plain):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-6)


def gradients(run: nn.Module, layer: nn.Module, given: Tensor) -> list[Tensor]:
    layer.zero_grad()
    given.grad = None
    poses(run(given)).pow(3).sum().backward()
    return [given.grad, *[parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]]


@needs_kernels
def test_a_compiler_that_comes_before_any_call_finds_the_kernels(monkeypatch):
    """Kernels are imported when they are first asked for, which may be inside a trace."""
    import capsroute.form
    from capsroute.form import dispatch, kernels

    monkeypatch.setattr(dispatch, "_kernels", {})
    monkeypatch.delitem(sys.modules, kernels.__name__)
    monkeypatch.delattr(capsroute.form, "kernels")
    found: list[str] = []

    def note(graph: torch.fx.GraphModule, _):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    u, W, q = (torch.randn(shape, device=DEVICE) for shape in ((2, 5, 2, 2), (5, 3, 2, 2), (2, 3, 2, 2)))
    torch.compile(lambda u: cr.inverted_attention_routing(cr.LinearVotes(u, W), q).poses, backend=note)(u)
    assert "capsroute.attention_step.default" in found


@needs_kernels
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("learned", [False, True])
def test_tangents_of_dual_tensors_are_those_of_torch_func(name, learned):
    """Kernels know nothing of tangents: without gradients those of a result were lost, with them it was an error."""
    layer, given = made(name)
    layer.requires_grad_(learned)
    tangent = torch.randn_like(given)
    _, wanted = torch.func.jvp(lambda x: poses(layer(x)), (given,), (tangent,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given, tangent)
        found = torch.autograd.forward_ad.unpack_dual(poses(layer(dual))).tangent
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
