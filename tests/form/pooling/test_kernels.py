"""The pooling kernels against float64: on a GPU, or under Triton's interpreter in a process of its own."""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.bench.measure import capture
from tests.form.kernels import (
    DEVICE,
    ROUNDING,
    differentiable_twice,
    error,
    keeps_promises,
    needs_kernels,
    says_why,
    surrounded,
)

# Why, then batch, children, numbers of a pose.
SMALL = {
    "one child": (2, 1, 3),
    "one of everything": (1, 1, 1),
    "primes": (3, 7, 5),
    "a whole tile": (2, 8, 4),
    "children that do not fit into a tile": (2, 11, 600),
}


def children(why: str, dtype: torch.dtype = torch.float32) -> Tensor:
    b, i, d = SMALL[why]
    drawn = torch.randn(b, i, d, generator=torch.Generator().manual_seed(b * i * d)) + 0.3
    return surrounded(drawn.to(DEVICE, dtype))


def values(u: Tensor, coefficients: bool = False, **option) -> list[Tensor]:
    """Poses, coefficients, and the gradient of u for fixed gradients of the poses (and coefficients)."""
    leaf = u.detach().clone().requires_grad_() if u.dtype == torch.float64 else u.detach().requires_grad_()
    routed = cr.pooling_routing(cr.IdentityVotes(leaf), **option)
    outputs = [routed.poses, routed.coefficients] if coefficients else [routed.poses]
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(out.shape, generator=generator).to(out) for out in outputs]
    return [routed.poses, routed.coefficients, *torch.autograd.grad(outputs, leaf, gradients)]


def equal_to_float64(u: Tensor, tolerance: float, **option) -> None:
    exact = values(u.double(), **option)
    for ours, wanted in zip(values(u, **option), exact):
        assert ours.shape == wanted.shape
        assert (ours.double() - wanted).norm() / wanted.norm().clamp_min(1e-2) < tolerance


@needs_kernels
@pytest.mark.parametrize("why", SMALL)
def test_pooling_equals_float64(why, launched):
    equal_to_float64(children(why), 10 * ROUNDING[torch.float32])
    assert launched == ["pool", "pool_backward"]


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 3}, {"sharpness": 20.0}, {"sharpness": -2.0, "iterations": 2}], ids=str
)
def test_iterations_sharpness_and_gradients_of_coefficients(option, launched):
    equal_to_float64(children("primes"), 2e-5, coefficients=True, **option)
    assert launched == ["pool", "pool_backward"]


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_sums_in_float32(dtype, launched):
    u = children("primes", dtype)
    poses, c, du = values(u)
    exact = values(u.double())
    assert launched
    assert poses.dtype == c.dtype == torch.float32
    assert du.dtype == dtype
    assert error(poses, exact[0]) < 1e-6
    assert error(du, exact[2]) < ROUNDING[dtype]


@needs_kernels
def test_a_zero_child_and_all_zero_children(launched):
    u = children("primes")
    u[0, 2], u[1] = 0.0, 0.0
    equal_to_float64(u, 10 * ROUNDING[torch.float32])
    assert launched == ["pool", "pool_backward"]


@needs_kernels
def test_children_of_any_strides(launched):
    u = children("primes")
    turned = u.mT.contiguous().mT
    assert not turned.is_contiguous()
    for ours, plain in zip(values(turned, True), values(u, True)):
        assert torch.equal(ours, plain)
    assert launched


@needs_kernels
def test_the_layer_takes_its_channels_as_they_lie(launched):
    features = torch.randn(2, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    ours = cr.layers.RoutingPool2d(4)(features.to(DEVICE))
    exact = cr.layers.RoutingPool2d(4)(features.double().to(DEVICE))
    assert launched == ["pool"]
    assert error(ours, exact) < ROUNDING[torch.float32]


@needs_kernels
def test_differentiable_twice(launched):
    differentiable_twice(lambda u: cr.pooling_routing(cr.IdentityVotes(u)).poses.square().sum(), children("primes"))
    assert "pool" in launched


@needs_kernels
def test_compiled_whole(launched):
    u = children("primes").clone().requires_grad_()

    def poses(u: Tensor) -> Tensor:
        return cr.pooling_routing(cr.IdentityVotes(u)).poses

    outputs = poses(u), torch.compile(poses, fullgraph=True, backend="aot_eager")(u)
    eager, compiled = (torch.autograd.grad(out.square().sum(), u)[0] for out in outputs)
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
    assert launched.count("pool_backward") == 2


@needs_kernels
def test_the_operator_keeps_its_promises():
    u = children("primes").clone().unsqueeze(2).requires_grad_()
    cr.pooling_routing(cr.IdentityVotes(u))
    keeps_promises(torch.ops.capsroute.pooling.default, (u, 1, 2, 1.0))


@needs_kernels
@pytest.mark.parametrize(
    ("why", "u", "parents", "iterations"),
    [
        ("operands are float64", torch.ones(1, 2, 1, 3).double(), 1, 1),
        ("one parent, here 2", torch.ones(1, 2, 1, 3), 2, 1),
        ("at most 1024 numbers, here 1200", torch.ones(1, 2, 1, 1200), 1, 1),
        ("at most 4, here 5", torch.ones(1, 2, 1, 3), 1, 5),
        ("an operand is empty", torch.ones(0, 2, 1, 3), 1, 1),
        ("sums of all iterations", torch.ones(()).expand(1 << 20, 1, 1, 512), 1, 4),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_that_does_not_apply_says_why(why, u, parents, iterations, launched):
    says_why(why, "pooling", u.to(DEVICE), parents, iterations)
    with pytest.raises(ValueError, match=f"does not apply to pooling: .*{why}"):
        cr.pooling_routing(cr.IdentityVotes(u.to(DEVICE), parents, backend="triton"), iterations)
    assert not launched


@needs_kernels
def test_a_forced_torch_backend_launches_nothing(launched):
    u = children("primes")
    plain = cr.pooling_routing(cr.IdentityVotes(u, backend="torch"))
    assert not launched
    for ours, other in zip(cr.pooling_routing(cr.IdentityVotes(u))[:2], plain):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)
    assert launched == ["pool"]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(128, 64, 512), (4096, 49, 16)], ids=str)
def test_full_size_equals_float64_and_replays(shape, launched):
    u = torch.randn(shape, generator=torch.Generator().manual_seed(0)).cuda()
    equal_to_float64(u, 10 * ROUNDING[torch.float32])
    assert launched == ["pool", "pool_backward"]
    leaf = u.requires_grad_()

    def step() -> Tensor:
        return torch.autograd.grad(cr.pooling_routing(cr.IdentityVotes(leaf)).poses.square().sum(), leaf)[0]

    eager, replay = step(), capture(step)
    replay()
    assert torch.equal(replay.kept, eager)
