"""LayerNorm over short rows by kernels: on a GPU, or under Triton's interpreter in a process of its own."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.form.rows.layer_norm import layer_norm
from tests.form.kernels import DEVICE, differentiable_twice, error, needs_kernels, says_why, surrounded

ROWS = [(1, 16), (3, 5, 16), (2, 7), (300, 3), (2, 256)]


def operands(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, g = (torch.randn(s, generator=generator) for s in (shape, shape[-1:], shape[-1:], shape))
    return [surrounded(t.to(DEVICE, dtype)) for t in (3 * x + 1, weight, bias, g)]


def values(function, x: Tensor, *rest: Tensor) -> list[Tensor]:
    *parameters, g = rest
    leaves = [t.detach().requires_grad_() for t in (x, *parameters)]
    y = function(*leaves)
    return [y, *torch.autograd.grad(y, leaves, g.to(y.dtype))]


def plain(x: Tensor, *parameters: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *parameters)


@needs_kernels
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_values_and_gradients_equal_float64(shape, affine, launched):
    given = operands(shape) if affine else operands(shape)[::3]
    for ours, wanted in zip(values(layer_norm, *given), values(plain, *(t.double() for t in given))):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 2e-6
    assert launched == ["normalise_rows", "normalise_rows_backward"]


@needs_kernels
@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_several_axes(turned, launched):
    """One node of the graph, where the rows are in the order of memory: views around it would each be one."""
    x, weight, bias, g = operands((5, 3, 12))
    x, weight, bias, g = (t.unflatten(-1, (4, 3)) for t in (x, weight, bias, g))
    x = x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) if turned else x
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = layer_norm(*leaves, axes=2)
    ours = [y, *torch.autograd.grad(y, leaves, g)]
    exact = values(lambda x, *more: F.layer_norm(x, (4, 3), *more), *(t.double() for t in (x, weight, bias, g)))
    for mine, wanted in zip(ours, exact):
        assert mine.shape == wanted.shape
        assert error(mine, wanted) < 2e-6
    nodes = [node for node, _ in y.grad_fn.next_functions]
    assert [getattr(node, "variable", None) is leaf for node, leaf in zip(nodes, leaves)] == [not turned, True, True]
    assert launched == ["normalise_rows", "normalise_rows_backward"]


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_within_the_error_budget(dtype, launched):
    given = operands((50, 16), dtype)
    exact, theirs = values(plain, *(t.double() for t in given)), values(plain, *given)
    for ours, wanted, other, times in zip(values(layer_norm, *given), exact, theirs, (2, 3, 3, 3)):
        assert ours.dtype == dtype
        assert error(ours, wanted) <= times * error(other, wanted)
    assert launched


@needs_kernels
def test_autocast_gives_float32_as_torch_does(launched):
    x, weight, bias, _ = operands((5, 16))
    with torch.autocast(DEVICE, torch.bfloat16):
        ours = layer_norm(x.bfloat16(), weight, bias)
    assert launched
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, F.layer_norm(x.bfloat16().float(), (16,), weight, bias), rtol=1e-5, atol=1e-5)


@needs_kernels
def test_rows_that_are_not_contiguous_and_equal_numbers(launched):
    x, weight, bias, _ = operands((6, 4, 8))
    turned = x.transpose(0, 1)
    torch.testing.assert_close(layer_norm(turned, weight, bias), plain(turned, weight, bias), rtol=1e-5, atol=1e-5)
    assert (layer_norm(torch.ones_like(x)) == 0).all()
    assert launched.count("normalise_rows") == 2


@needs_kernels
def test_second_derivatives(launched):
    given = operands((5, 7))[:3]
    differentiable_twice(lambda *t: layer_norm(*t).pow(3).sum(), *given, exact=lambda *t: plain(*t).pow(3).sum())
    # The first derivative is torch's; what it owes to the values comes back through the kernel.
    assert launched == ["normalise_rows", "normalise_rows_backward"]


@needs_kernels
@pytest.mark.parametrize(
    ("why", "make"),
    [
        ("operands are float64", lambda x: x.double()),
        ("at most 256 long, here 300", lambda x: x[:1].repeat(1, 100)),
        ("here 0", lambda x: x[:0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_where_it_does_not_apply(why, make, launched):
    x = make(operands((2, 3))[0])
    says_why(why, "layer_norm", x)
    torch.testing.assert_close(layer_norm(x), plain(x))
    assert not launched


def test_a_compiler_sees_torchs_own(launched):
    x = operands((4, 16))[0]
    compiled = torch.compile(layer_norm, fullgraph=True, backend="eager")(x)
    assert not launched
    torch.testing.assert_close(compiled, plain(x))
