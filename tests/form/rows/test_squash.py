"""Squash over short rows by kernels: on a GPU, or under Triton's interpreter in a process of its own."""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.routing import lengths
from tests.form.kernels import DEVICE, differentiable_twice, error, needs_kernels, surrounded
from tests.routing.cases import MAGNITUDES

POSES = [(1, 1, 1, 16), (3, 5, 4, 4), (2, 7, 1, 1), (40, 5, 3, 7), (2, 1, 16, 16)]


def operands(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [surrounded(torch.randn(shape, generator=generator).to(DEVICE, dtype)) for _ in range(2)]


def values(x: Tensor, g: Tensor) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    y = cr.squash(leaf, (-2, -1))
    return [y, *torch.autograd.grad(y, leaf, g)]


@needs_kernels
@pytest.mark.parametrize("shape", POSES, ids=str)
def test_values_and_gradients_equal_float64(shape, launched):
    x, g = operands(shape)
    exact = values(x.double(), g.double())
    assert not launched
    for ours, wanted in zip(values(x, g), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 1e-6
    assert launched == ["squash_rows", "squash_rows_backward"]


@needs_kernels
def test_every_magnitude(launched):
    x, g = operands((len(MAGNITUDES), 3, 2, 2))
    x *= torch.tensor(MAGNITUDES, dtype=torch.float64).to(DEVICE)[:, None, None, None] / x.norm(
        dim=(2, 3), keepdim=True
    )
    tiny = torch.finfo(torch.float32).smallest_normal
    for ours, wanted in zip(values(x, g), values(x.double(), g.double())):
        torch.testing.assert_close(ours.double(), wanted, rtol=2e-5, atol=tiny)
    assert launched


@needs_kernels
def test_zero_among_others_is_zero_with_gradient_zero(launched):
    x, g = operands((3, 5, 4, 4))
    x[1, 2] = 0
    y, dx = values(x, g)
    assert launched
    assert (y[1, 2] == 0).all()
    assert (dx[1, 2] == 0).all()
    assert torch.isfinite(dx).all()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_off_in_the_last_digit_only(dtype, launched):
    x, g = operands((50, 3, 1, 16), dtype)
    for ours, wanted in zip(values(x, g), values(x.double(), g.double())):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert launched


@needs_kernels
def test_poses_of_any_strides_and_one_axis(launched):
    x = operands((6, 4, 8, 2))[0]
    turned = x.permute(3, 1, 0, 2)
    assert torch.equal(cr.squash(turned, (-2, -1)), cr.squash(turned.contiguous(), (2, 3)))
    assert torch.equal(cr.squash(x), cr.squash(x.flatten(0, 2), 1).view(x.shape))
    assert launched.count("squash_rows") == 4


@needs_kernels
@pytest.mark.parametrize("layout", [(0, 1, 2, 3, 4, 5), (0, 4, 5, 1, 2, 3), (5, 4, 0, 1, 2, 3)], ids=str)
def test_maps_in_any_order_of_memory(layout, launched):
    """Poses [a,k] of a map [b,n,a,k,h,w] as convolutions leave it, channels before or after places: not copied."""
    x, g = operands((2, 3, 2, 4, 3, 5))
    back = [layout.index(n) for n in range(6)]
    x, g = (t.permute(layout).contiguous().permute(back) for t in (x, g))

    def both(x: Tensor, g: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = cr.squash(leaf, (2, 3))
        return [y, *torch.autograd.grad(y, leaf, g)]

    exact = both(x.double(), g.double())
    for ours, wanted in zip(both(x, g), exact):
        assert ours.stride() == x.stride()
        assert error(ours, wanted) < 1e-6
    assert launched == ["squash_rows", "squash_rows_backward"]
    # What is kept for the gradient may come back in another order, as from `torch.autograd.graph.save_on_cpu`.
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        again = both(x, g)
    assert error(again[1], exact[1]) < 1e-6


@needs_kernels
@pytest.mark.parametrize("function", [lambda x: cr.squash(x, (2, 3)), lengths], ids=["squash", "lengths"])
def test_it_is_one_node_of_the_graph(function, launched):
    """Views around it would each be one, there and back."""
    x = operands((2, 3, 2, 4))[0].requires_grad_()
    y = function(x)  # kept: in torch 2.11 a node forgets what is behind it when its tensor goes
    [(node, _)] = y.grad_fn.next_functions
    assert node.variable is x
    assert launched


@needs_kernels
def test_lengths(launched):
    x, _ = operands((4, 5, 2, 3))
    x[1, 2] = 0
    g = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def both(x: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = lengths(leaf)
        return [y, *torch.autograd.grad(y, leaf, g.to(x))]

    exact = both(x.double())
    assert not launched
    for ours, wanted in zip(both(x), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 1e-6
    assert launched == ["row_lengths", "row_lengths_backward"]


@needs_kernels
def test_second_derivatives(launched):
    differentiable_twice(lambda x: cr.squash(x, (-2, -1)).pow(3).sum(), operands((5, 3, 2, 2))[0])
    # The first derivative is torch's; what it owes to the values comes back through the kernel.
    assert launched == ["squash_rows", "squash_rows_backward"]


@needs_kernels
@pytest.mark.parametrize(
    ("x", "dims"),
    [
        (torch.ones(2, 3).double(), -1),
        (torch.ones(2, 300), -1),
        (torch.ones(0, 3), -1),
        (torch.ones(2, 3, 4), (0, 2)),
    ],
    ids=["float64", "long rows", "empty", "axes apart"],
)
def test_where_it_does_not_apply(x, dims, launched):
    out = cr.squash(x.to(DEVICE), dims)
    assert out.shape == x.shape
    assert not launched


@needs_kernels
def test_a_forced_torch_backend_launches_nothing(launched):
    x = operands((4, 2, 1, 16))[0]
    plain = cr.squash(x, (-2, -1), backend="torch")
    assert not launched
    torch.testing.assert_close(cr.squash(x, (-2, -1)), plain, rtol=1e-5, atol=1e-6)
    assert launched == ["squash_rows"]


def test_a_compiler_sees_torchs_own(launched):
    x = operands((4, 2, 1, 16))[0]
    compiled = torch.compile(cr.squash, fullgraph=True, backend="eager")(x)
    assert not launched
    torch.testing.assert_close(compiled.double(), cr.squash(x.double()), rtol=1e-5, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("function", [cr.squash, lengths])
def test_what_is_no_number_leaves_none_in_its_row(function, value, launched):
    """Beside an infinite entry others became zero, and lengths had gradients."""
    x, _ = operands((3, 2, 2))
    x[1, 0, 1] = value
    leaf = x.clone().requires_grad_()
    y = function(leaf, (-2, -1)) if function is cr.squash else function(leaf)
    y.sum().backward()
    assert launched
    for found in (y, leaf.grad):
        assert found[1].isnan().all()
        assert found[[0, 2]].isfinite().all()
