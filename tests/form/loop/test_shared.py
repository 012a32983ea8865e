"""The loop over shared transforms, against float64: under the interpreter or on a GPU."""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from tests.form.kernels import DEVICE, ROUNDING, Sizes, error, needs_kernels
from tests.form.loop.cases import NORMALISE, budget, operands, route, values

SMALL = [
    Sizes("one sample, vectors", 1, 6, 3, 1, 4, 5),
    Sizes("matrices, prime numbers of children", 2, 37, 10, 2, 3, 2),
    Sizes("more parents than rows of a product", 2, 5, 19, 3, 3, 3),
]
LOOP = ["shared_loop", "shared_loop_backward"]


def shared(s: Sizes, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    drawn = operands(s, dtype)
    return drawn["u"], drawn["W"][:1]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_equal_to_float64_in_two_launches(normalise, s, launched):
    u, W = shared(s)
    exact = values(normalise, u.double(), W.double())
    assert not launched
    for ours, wanted in zip(values(normalise, u, W), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert launched == LOOP


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option)
)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched):
    u, W = shared(SMALL[0])
    exact = values(normalise, u.double(), W.double(), True, **option)
    for ours, wanted in zip(values(normalise, u, W, True, **option), exact):
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert launched == LOOP


@needs_kernels
@pytest.mark.parametrize("stop_gradient", [False, True])
def test_no_gradient_of_the_poses_alone(stop_gradient):
    u, W = shared(SMALL[0])

    def gradients(u: Tensor, W: Tensor) -> tuple[Tensor, ...]:
        u, W = (t.detach().clone().requires_grad_() for t in (u, W))
        found = route("softmax", u, W, stop_gradient=stop_gradient).coefficients
        return torch.autograd.grad(found[0, 0, 0], (u, W))

    for ours, wanted in zip(gradients(u, W), gradients(u.double(), W.double())):
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit():
    u, W = shared(SMALL[1])
    for first, second in zip(*(values("max-min", u, W) for _ in range(2))):
        assert torch.equal(first, second)


@needs_kernels
@pytest.mark.parametrize("softmax", [True, False])
def test_the_operator_keeps_its_promises(softmax):
    u, W = (t.clone().requires_grad_() for t in shared(SMALL[0]))
    cr.form.explain("routing_loop", u, W, 3)
    torch.library.opcheck(
        torch.ops.capsroute.routing_loop.default, (u, W, 3, softmax, 0.0, 1.0, 1 / 3, False, True),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )  # fmt: skip


@needs_kernels
@pytest.mark.parametrize(
    ("why", "u", "W"),
    [
        ("many children of few samples", (1, 1 << 20, 1, 16), (1, 100, 16, 16)),
        ("does not hold 1000 parents", (2, 32, 6, 6), (1, 1000, 6, 6)),
        ("does not hold 3 parents", (2, 32, 32, 32), (1, 3, 32, 32)),
    ],
)
def test_a_loop_that_does_not_apply_says_why(why, u, W):
    operands = (torch.empty(1, device=DEVICE).expand(shape) for shape in (u, W))
    reasons = cr.form.explain("routing_loop", *operands, 3)
    assert [why in reason for reason in reasons] == [True], reasons


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    "s",
    [Sizes("ten", 33, 1152, 10, 1, 8, 16), Sizes("a hundred", 3, 200, 100, 4, 4, 4), Sizes("two", 9, 512, 2, 6, 6, 6)],
    ids=lambda s: s.why,
)
def test_full_sizes(s, normalise, dtype):
    budget(normalise, dtype, s, shared=True)
