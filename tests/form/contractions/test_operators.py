"""The contractions as operators: derivatives of first and second order, and what torch.library asks of them."""

import pytest
import torch

import capsroute as cr
from capsroute.form.contractions.operators import CONTRACTIONS
from tests.form.contractions.cases import NAMES, ORDER, SIZES, arguments, by_loops, operands
from tests.form.kernels import DEVICE, ROUNDING, error, needs_kernels

FULL = [why for why in SIZES if why not in ("an empty batch", "no children")]


@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("why", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_public_functions_equal_the_loops(name, why, shared):
    parts = operands(SIZES[why], shared)
    ours = getattr(cr.form, name)(*arguments(name, parts, shared))
    torch.testing.assert_close(ours, by_loops(name, parts, SIZES[why], shared), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("why", FULL)
@pytest.mark.parametrize("name", NAMES)
def test_first_and_second_derivative(name, why, shared):
    *tensors, last = [*arguments(name, operands(SIZES[why], shared), shared)]
    tensors = tensors if name == "grad_transforms" else [*tensors, last]
    inputs = [tensor.requires_grad_() for tensor in tensors]
    options = (shared,) if name == "grad_transforms" else ()

    def contraction(*tensors):
        return getattr(cr.form, name)(*tensors, *options)

    assert torch.autograd.gradcheck(contraction, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(contraction, inputs, fast_mode=True)


@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("name", NAMES)
def test_each_derivative_is_one_of_the_other_contractions(name, shared):
    s = SIZES["primes: narrower on the child's side"]
    parts = operands(s, shared)
    left_out = {"agreement": "c", "aggregate": "q", "grad_children": "u", "grad_transforms": "W"}
    inputs = {letter: parts[letter].requires_grad_() for letter in ORDER[name]}
    out = getattr(cr.form, name)(*arguments(name, parts, shared))
    grads = torch.autograd.grad(out, list(inputs.values()), parts[left_out[name]].detach())  # signs of both kinds
    by_letter = {letter: other for other, letter in left_out.items()}
    for letter, grad in zip(inputs, grads):
        plain = {each: part.detach() for each, part in parts.items()}
        torch.testing.assert_close(grad, by_loops(by_letter[letter], plain, s, shared), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_one_argument_at_a_time(name):
    # What is not asked for is not made: each operand alone must still get its own derivative.
    args = arguments(name, operands(SIZES["primes: narrower on the child's side"], False), False)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    every = [tensor.requires_grad_() for tensor in tensors]
    together = torch.autograd.grad(getattr(cr.form, name)(*args).sum(), every)
    for position, tensor in enumerate(every):
        alone = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
        alone[position] = tensor
        (grad,) = torch.autograd.grad(getattr(cr.form, name)(*alone).sum(), tensor)
        torch.testing.assert_close(grad, together[position], rtol=1e-12, atol=1e-12)


@pytest.mark.kernels
@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
@pytest.mark.parametrize("name", NAMES)
def test_torch_library_is_satisfied(name, shared):
    args = arguments(name, operands(SIZES["primes: narrower on the child's side"], shared, dtype=torch.float32), shared)
    args = [arg.requires_grad_() if isinstance(arg, torch.Tensor) else arg for arg in args]
    torch.library.opcheck(CONTRACTIONS[name].operator, tuple(args))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_have_the_dtype_of_their_operand(name, dtype):
    args = arguments(name, operands(SIZES["equal sizes: swapped axes would fit"], False, dtype=dtype), False)
    tensors = [arg.requires_grad_() for arg in args if isinstance(arg, torch.Tensor)]
    out = getattr(cr.form, name)(*args)
    assert out.dtype == torch.float32
    assert [grad.dtype for grad in torch.autograd.grad(out.sum(), tensors)] == [dtype] * 3


@pytest.mark.parametrize("name", NAMES)
def test_operands_need_not_be_contiguous(name):
    parts = operands(SIZES["primes: narrower on the parent's side"], False)
    strided = {letter: part.transpose(0, -1).contiguous().transpose(0, -1) for letter, part in parts.items()}
    ours, theirs = (getattr(cr.form, name)(*arguments(name, each, False)) for each in (strided, parts))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_each_operator_has_a_decomposition_that_equals_it():
    table = cr.form.decompositions()
    for name in NAMES:
        args = arguments(name, operands(SIZES["primes: narrower on the child's side"], False), False)
        plain = table[getattr(torch.ops.capsroute, name).default](*args, "auto")
        torch.testing.assert_close(plain, getattr(cr.form, name)(*args), rtol=1e-12, atol=1e-12)


@pytest.mark.kernels
@pytest.mark.parametrize("name", list(CONTRACTIONS))
def test_a_backward_pass_can_be_rehearsed(name):
    """On a GPU the first forward pass asks for the kernels of the backward pass too."""
    shapes = {"c": (2, 6, 3), "u": (2, 6, 1, 4), "W": (6, 3, 4, 5), "q": (2, 3, 1, 5)}
    contraction = CONTRACTIONS[name]
    operands = [torch.randn(shapes[letter]) for letter in contraction.given]
    numbers = [False] if contraction.by == "W" else []
    output = contraction(*operands, *numbers)
    assert contraction._rehearse((*operands, *numbers, "auto"), output) is None


@needs_kernels
@pytest.mark.parametrize("batch", [1, 3, 5], ids=["one sample", "few rows", "more rows"])
def test_fast_routing_of_few_rows_folds_nothing(batch, launched, monkeypatch):
    monkeypatch.setattr("capsroute.form.cost.CACHED", 0)
    monkeypatch.setattr("capsroute.form.dispatch._known", {})
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, 7, 2, 4), (7, 3, 4, 5), (7, 3)
    drawn = [torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes]

    def found(backend: str, *given: torch.Tensor) -> list[torch.Tensor]:
        u, W, C = (t.detach().requires_grad_() for t in given)
        poses = cr.fast_routing(cr.LinearVotes(u, W, backend=backend), C).poses
        return [poses, *torch.autograd.grad(poses.sum(), (u, W, C))]

    exact = found("torch", *(t.double() for t in drawn))
    assert not launched
    for ours, wanted in zip(found("triton", *drawn), exact):
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    wanted = {"aggregate_plane", "agreement_plane", "children_gradient", "transforms_gradient"}
    assert wanted <= set(launched)
