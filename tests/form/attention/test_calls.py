"""The fused step of inverted attention against float64: on a GPU, or under Triton's interpreter in its own process.

Error budget: at most twice as far from float64 as the textbook form in plain torch of the same dtype, three times for
gradients.
"""

import pytest
import torch
from torch import Tensor

from capsroute.form.attention.operators import attention_step
from capsroute.form.window import WHOLE, Window
from capsroute.layers import CapsuleConv2d, CapsuleLinear
from capsroute.patches import PatchVotes
from capsroute.votes import LinearVotes
from tests.form.attention.cases import (
    SCALE,
    Sizes,
    budget,
    check_promises,
    coefficients_made_the_sums,
    equal_to_float64,
    float32_products,
    fused,
    one_parent_takes_all,
    operands,
    steps_of,
    textbook,
    values,
)
from tests.form.kernels import DEVICE, differentiable_twice, error, needs_kernels, says_why

pytestmark = pytest.mark.usefixtures("many_products")

FORWARD, BACKWARD = ["attend"], ["parents_gradient", "children_and_transforms", "fold"]


SMALL = [
    Sizes("one child", 3, 1, 2, 1, 2, 3),
    Sizes("one parent", 2, 5, 1, 1, 8, 16),
    Sizes("primes", 3, 7, 5, 1, 5, 11),
    Sizes("matrix poses, more parents than children", 2, 3, 17, 3, 3, 2),
    Sizes("a pose wider than the matrix unit", 2, 3, 2, 1, 17, 4),
    Sizes("stride 2", 2, 1, 3, 4, 4, 4, 3, 5, Window(3, 2)),
    Sizes("overlapping windows beyond the edge", 1, 2, 3, 2, 3, 4, 3, 4, Window(3, 1, 1)),
    Sizes("windows with gaps between them", 1, 3, 2, 1, 4, 4, 5, 5, Window(2, 3)),
    Sizes("as many columns as one program holds", 2, 3, 6, 1, 4, 16),
]
each_size = pytest.mark.parametrize("s", SMALL, ids=[s.why for s in SMALL])


@needs_kernels
@each_size
def test_it_equals_float64(s, launched):
    equal_to_float64(operands(s), s.window, 5e-6)
    assert steps_of(launched) == [*FORWARD, *BACKWARD[: 2 if s.window == WHOLE else 3]]


@needs_kernels
@each_size
def test_coefficients_are_those_that_made_the_sums(s, launched):
    coefficients_made_the_sums(*operands(s)[:3], s.window)
    assert steps_of(launched) == 2 * FORWARD


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("s", SMALL[5:7], ids=[s.why for s in SMALL[5:7]])
def test_half_precision_stays_within_the_error_budget(s, dtype, launched):
    budget(s, dtype)
    assert steps_of(launched) == [*FORWARD, *BACKWARD]


@needs_kernels
def test_tf32_rounds_its_operands_and_does_not_cut_them(launched):
    # Cut operands are all too small: an error that adds up, where rounding cancels.
    s = SMALL[5]
    u, W, parents, _ = operands(s)

    def rounded(t: Tensor) -> Tensor:
        return ((t.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)

    exact = textbook(rounded(u).double(), rounded(W).double(), parents.double(), s.window)[0]
    with float32_products("tf32"):
        assert error(fused(u, W, parents, s.window, False)[0], exact) < 1e-6
    assert steps_of(launched) == FORWARD


@needs_kernels
def test_a_map_may_lie_in_memory_in_any_order(launched):
    s = SMALL[5]
    u, W, parents, g = operands(s)
    plain = values(lambda *t: fused(*t, s.window, False), u, W, parents, g)
    for order in ((0, 4, 5, 1, 2, 3), (5, 4, 3, 2, 1, 0)):
        turned = u.permute(order).contiguous().permute(tuple(torch.tensor(order).argsort().tolist()))
        assert turned.stride() != u.stride()
        for mine, wanted in zip(values(lambda *t: fused(*t, s.window, False), turned, W, parents, g), plain):
            torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-6)
    assert launched.count("fold") == 3


@needs_kernels
@pytest.mark.parametrize("s", [s for s in SMALL if s.window == WHOLE], ids=lambda s: s.why)
def test_a_list_is_read_as_it_is(s, launched):
    """The same as a map of one place, and one node of the graph: views around it would each be one, there and back."""
    u, W, parents, g = operands(s)
    map = values(lambda *t: fused(*t, WHOLE, False), u, W, parents, g)
    launches = launched.copy()
    launched.clear()
    leaves = [t.detach().requires_grad_() for t in (u[..., 0, 0], W, parents)]
    sums = attention_step(LinearVotes(*leaves[:2]), leaves[2], SCALE, False)[0]
    nodes = [node for node, _ in sums.grad_fn.next_functions]
    assert all(getattr(node, "variable", None) is leaf for node, leaf in zip(nodes, leaves))
    found = [sums, *torch.autograd.grad(sums, leaves, g)]
    assert launched == launches
    for mine, wanted in zip(found, map):
        assert torch.equal(mine, wanted.view(mine.shape))


@needs_kernels
@pytest.mark.parametrize("zero", [0, 1], ids=["children", "transforms"])
def test_zero_votes(zero, launched):
    s = SMALL[5]
    given = operands(s)
    given[zero] = torch.zeros_like(given[zero])
    sums, c = fused(*given[:3], s.window, True)
    assert steps_of(launched) == FORWARD
    assert (sums == 0).all()
    torch.testing.assert_close(c, torch.full_like(c, 1 / s.j))
    assert (values(lambda *t: fused(*t, s.window, False), *given)[3] == 0).all()


@needs_kernels
def test_one_parent_takes_all_where_agreement_is_large(launched):
    one_parent_takes_all(SMALL[3])
    assert launched


@needs_kernels
def test_gradients_of_coefficients_and_second_derivatives(launched):
    s = SMALL[5]

    def ours(*tensors: Tensor) -> Tensor:
        return sum(part.square().sum() for part in fused(*tensors, s.window, True))

    def plain(*tensors: Tensor) -> Tensor:
        return sum(part.square().sum() for part in textbook(*tensors, s.window))

    differentiable_twice(ours, *operands(s)[:3], exact=plain)
    assert "attend" in launched


@needs_kernels
def test_gradients_of_coefficients_alone(launched):
    s = SMALL[2]
    given = operands(s)[:3]

    def gradients(step, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        return torch.autograd.grad(step(*leaves)[1].square().sum(), leaves)

    exact = gradients(lambda *t: textbook(*t, WHOLE), *(t.double() for t in given))
    for mine, wanted in zip(gradients(lambda *t: fused(*t, WHOLE, True), *given), exact):
        assert error(mine, wanted) < 1e-5
    assert "attend" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(launched):
    s = SMALL[6]
    runs = [values(lambda *t: fused(*t, s.window, False), *operands(s)) for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*runs))
    assert launched


LAYERS = {
    "conv": lambda backend: CapsuleConv2d(2, 3, (2, 2), (2, 2), 3, 2, backend=backend),
    "linear": lambda backend: CapsuleLinear(50, 3, (2, 2), (2, 2), "inverted_attention", backend=backend),
}


@needs_kernels
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_run_it_and_a_forced_backend_does_not(kind, launched):
    torch.manual_seed(0)
    poses = torch.randn(2, 2, 2, 2, 5, 5, device=DEVICE)
    layers = [LAYERS[kind](backend).to(DEVICE) for backend in ("auto", "torch")]
    layers[1].load_state_dict(layers[0].state_dict())
    outputs = []
    for layer in layers:
        routed = layer(poses.requires_grad_(), return_coefficients=True)
        # Not the squares, whose sum LayerNorm fixes.
        outputs.append([*routed[:2], *torch.autograd.grad(routed.poses.pow(3).sum(), [poses, layer.W])])
        ran = [name for name in launched if name in (*FORWARD, *BACKWARD)]
        assert ran == [*FORWARD, *BACKWARD[: 3 if kind == "conv" else 2]]
    for mine, plain in zip(*outputs):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_compiled_whole(launched):
    torch.manual_seed(0)
    layer, poses = LAYERS["conv"]("auto").to(DEVICE), torch.randn(2, 2, 2, 2, 5, 5, device=DEVICE, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    outputs = layer(poses).poses, compiled(poses).poses
    launched.clear()
    eager, whole = (torch.autograd.grad(out.pow(3).sum(), (poses, layer.W)) for out in outputs)
    torch.testing.assert_close(whole, eager, rtol=1e-4, atol=1e-5)
    assert [name for name in launched if name in BACKWARD] == BACKWARD * 2


@needs_kernels
@pytest.mark.parametrize("s", [SMALL[2], SMALL[5]], ids=lambda s: s.why)
def test_the_operators_keep_their_promises(s):
    for coefficients in (True, False):
        check_promises(*operands(s), s.window, coefficients)


def spread(like: torch.Tensor, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Tensors of these sizes in the memory of one number."""
    return [like.new_ones(()).expand(shape) for shape in shapes]


def far_apart(like: torch.Tensor) -> torch.Tensor:
    """Two samples of a map that is a part of a large one."""
    return like.new_empty(2, 1 << 31, dtype=torch.bfloat16)[:, :12].view(2, 4, 1, 3, 1, 1)


@needs_kernels
@pytest.mark.parametrize(
    ("why", "make"),
    [
        ("operands are float64", lambda u, W: (u.double(), W.double())),
        ("an operand is empty", lambda u, W: (u[:0], W)),
        ("at most 16 rows and 32 columns", lambda u, W: (u.repeat(1, 1, 1, 7, 1, 1), W.repeat(1, 1, 7, 1))),
        ("poses of parents", lambda u, W: spread(u, (1 << 24, 2, 1, 2, 1, 1), (2, 8, 2, 16))),
        ("than 65,535", lambda u, W: spread(u, (2097121, 2, 1, 2, 1, 1), (2, 17, 2, 16))),
        ("2^31 numbers or more apart", lambda u, W: (far_apart(u), W.new_ones(4, 2, 3, 2))),
        ("coefficients are 2^31", lambda u, W: spread(u, (16384, 512, 1, 2), (1, 256, 2, 2))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_kernel_that_does_not_apply_says_why(why, make):
    says_why(why, "attention_step", *make(*operands(SMALL[2])[:2]), WHOLE)


def test_the_plain_step_is_the_textbook():
    for s in SMALL[5:]:
        given = [t.double() for t in operands(s)[:3]]
        plain = attention_step(PatchVotes(*given[:2], s.window, "torch"), given[2], SCALE, True)
        for mine, wanted in zip(plain, textbook(*given, s.window)):
            torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


CIFAR10 = [
    Sizes("first convolution", 32, 32, 32, 4, 4, 4, 16, 16, Window(3, 2)),
    Sizes("second convolution", 32, 32, 32, 4, 4, 4, 7, 7, Window(3)),
    Sizes("classes", 128, 800, 10, 4, 4, 4),
    Sizes("odd", 7, 13, 11, 3, 5, 6, 9, 10, Window(3, 2, 1)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("s", CIFAR10, ids=lambda s: s.why)
def test_full_size_stays_within_the_error_budget(s, dtype, launched):
    # cuBLAS multiplies operands of odd sizes exactly, whatever it is told.
    with float32_products("ieee" if s.why == "odd" else "tf32"):
        budget(s, dtype)
    assert steps_of(launched) == [*FORWARD, *BACKWARD[: 2 if s.window == WHOLE else 3]]


def test_offsets_that_do_not_fit_into_32_bits_are_a_reason():
    kernels = pytest.importorskip("capsroute.form.kernels")
    large = torch.empty(1).expand(1 << 19, 8, 4, 4, 7, 7), torch.empty(1).expand(72, 8, 4, 4)
    reasons = kernels.attention.attention_reasons(*large, Window(3))
    assert ["2^31" in reason for reason in reasons] == [True, True]  # the map, and the gradients of its patches
    reasons = kernels.attention.attention_reasons(large[0][: 1 << 17], large[1], Window(3))
    assert ["gradients of all patches" in reason for reason in reasons] == [True]


@pytest.mark.parametrize(
    ("rows", "dtype", "warps", "stages"),
    [(6, torch.float32, 2, 2), (4, torch.float32, 1, 3), (6, torch.bfloat16, 1, 3)],
    ids=str,
)
def test_what_leaves_the_registers_of_a_warp_gets_two(rows, dtype, warps, stages):
    """Gradients by children and transforms of 6x6 poses in float32; narrower ones are slower so, as is half of them."""
    from capsroute.form.launches.attention_steps import attention_plan
    from capsroute.form.maps import Shape

    plan = attention_plan(Shape(128, 800, 10, rows, rows, rows, 1, 1, Window(1)), dtype, "tf32")
    assert (plan.both.options["num_warps"], plan.both.options["NS"]) == (warps, stages)
    assert plan.parents.options["NS"] == (1 if dtype == torch.float32 else 3)
    assert (plan.forward.options["num_warps"], plan.forward.options["NS"]) == (1, 3)
