"""The loop over shared transforms, against float64: under the interpreter or on a GPU."""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from tests.form.kernels import DEVICE, INTERPRETED, ROUNDING, Sizes, error, keeps_promises, needs_kernels, says_why
from tests.form.loop.cases import NORMALISE, budget, equal_to_float64, operands, route, values
from tests.form.test_values import SOME
from tests.form.values import faults

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
from capsroute.form.launches.shared_transforms import shared_plan  # noqa: E402
from capsroute.form.loop.walks import add_raised  # noqa: E402
from capsroute.form.sizes import Sizes as Letters  # noqa: E402

SMALL = [
    Sizes("one sample, vectors", 1, 6, 3, 1, 4, 5),
    Sizes("matrices, prime numbers of children", 2, 37, 10, 2, 3, 2),
    Sizes("more parents than rows of a product", 2, 5, 19, 3, 3, 3),
]
LOOP = ["shared_loop", "shared_loop_backward"]
WALKS = 3 * ["shared_walk", "shared_parents"] + 3 * ["shared_parents_backward", "shared_walk_backward"]
FEW_WALKS = WALKS[1:]  # the first iteration of few children needs none


def shared(s: Sizes, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    drawn = operands(s, dtype)
    return drawn["u"], drawn["W"][:1]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_equal_to_float64_in_two_launches(normalise, s, launched):
    equal_to_float64(normalise, s, shared=True)
    assert launched == LOOP + ["add_parts"] * (s.b > 1)


@needs_kernels
@pytest.mark.parametrize(("most", "expected"), [(0, WALKS), (1 << 12, FEW_WALKS)], ids=["many", "few"])
@pytest.mark.parametrize("normalise", NORMALISE)
def test_children_shared_out_are_equal_to_float64(
    normalise, most, expected, launched, children_shared_out, monkeypatch
):
    monkeypatch.setattr("capsroute.form.launches.shared_transforms.MOST_FIRST", most)
    equal_to_float64(normalise, Sizes("two shares", 1, 37, 5, 2, 3, 2), shared=True)
    assert launched == expected


@needs_kernels
@pytest.mark.parametrize("option", [{"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option))
@pytest.mark.parametrize("normalise", NORMALISE)
def test_children_shared_out_with_every_gradient(normalise, option, children_shared_out):
    equal_to_float64(normalise, Sizes("two shares", 1, 37, 3, 1, 4, 5), shared=True, coefficients=True, **option)


ALONE = [
    Sizes("two shares of each sample, the last one smaller", 2, 7, 5, 2, 3, 2),
    Sizes("four shares, three on the way back", 1, 7, 5, 2, 3, 2),
]


@pytest.fixture
def alone(monkeypatch, children_shared_out):
    """One child after the other, as in layers of a thousand parents and few children."""
    for module in ("cost", "loop.shared"):
        monkeypatch.setattr(f"capsroute.form.{module}.walks_alone", lambda sizes: True)


@pytest.mark.parametrize(("children", "each"), [(16, 1), (32, 2), (512, 4)])
def test_of_a_thousand_parents_sixteen_programs_have_children_before_any_has_four(children, each):
    plan = shared_plan(Letters(1, children, 1000, 4, 4, 4), torch.bfloat16, "tf32")
    assert plan.walk.options["IC"] == 1
    for walk, share in ((plan.walk, each), (plan.back, min(4, each + 1))):
        assert (walk.tiles, walk.splits) == (share, -(-children // share))


@needs_kernels
@pytest.mark.parametrize(
    "option", [{}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option) or "three"
)
@pytest.mark.parametrize("s", ALONE, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_one_child_after_the_other_is_equal_to_float64(normalise, option, s, launched, alone):
    for coefficients in (False, True):
        equal_to_float64(normalise, s, True, coefficients, **option)
    assert "shared_walk_backward" in launched


@needs_kernels
@pytest.mark.parametrize("algorithm", ["dynamic, shared", "max-min, shared"])
def test_values_of_one_child_after_the_other(algorithm, launched, alone):
    for case in SOME:
        assert [str(fault) for fault in faults(case._replace(algorithm=algorithm), DEVICE)] == []
    assert "shared_walk_backward" in launched


@triton.jit
def product(x, y, out):
    r, k, c = tl.arange(0, 16), tl.arange(0, 512), tl.arange(0, 16)
    X, Y = tl.load(x + r[:, None] * 512 + k[None, :]), tl.load(y + k[:, None] * 16 + c[None, :])
    at = out + r[:, None] * 16 + c[None, :]
    tl.store(at, add_raised(tl.load(at), X, Y, 1.0, tl.bfloat16, "ieee"))


@needs_kernels
def test_a_product_of_long_rows_in_parts():
    x, y = torch.randn(16, 512, device=DEVICE), torch.randn(512, 16, device=DEVICE)
    out = torch.ones(16, 16, device=DEVICE)
    product[(1,)](x, y, out)
    assert error(out, x.double() @ y.double() + 1) < ROUNDING[torch.float32]


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option)
)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched):
    equal_to_float64(normalise, SMALL[0], shared=True, coefficients=True, **option)
    assert launched == LOOP


@pytest.mark.skipif(not INTERPRETED, reason="the matrix unit rounds operands to bfloat16 too: TRITON_INTERPRET=1")
@pytest.mark.parametrize("way", ["loop", "children_shared_out", "alone"])
def test_the_gradient_of_children_in_bfloat16_is_rounded_once(way, request):
    """It is added to in every iteration; what is cut off on the way is kept."""
    if way != "loop":
        request.getfixturevalue(way)
    u, W = shared(Sizes("two shares", 1, 37, 5, 2, 3, 2), torch.bfloat16)
    exact = values("softmax", u.double(), W.double(), iterations=5)[2]
    found = values("softmax", u, W, iterations=5)[2]
    assert found.dtype == torch.bfloat16
    once = (exact.float().view(torch.int32) & -(1 << 16)).view(torch.float32)  # the interpreter cuts off
    assert error(found, exact) < 1.02 * error(once, exact)


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
def test_vast_logits_that_are_all_equal():
    """A range of zero is stretched by nothing: places of a tile where there is no parent would overflow."""
    u, W = shared(SMALL[0])
    for ours in values("max-min", 1e15 * u, W[:, :1].expand_as(W)):
        assert torch.isfinite(ours).all()


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
    keeps_promises(torch.ops.capsroute.routing_loop.default, (u, W, 3, softmax, 0.0, 1.0, 1 / 3, False, True))


@needs_kernels
@pytest.mark.parametrize(
    ("why", "u", "W"),
    [
        ("does not hold 1000 parents", (2, 32, 6, 6), (1, 1000, 6, 6)),
        ("does not hold 3 parents", (2, 32, 32, 32), (1, 3, 32, 32)),
    ],
)
def test_a_loop_that_does_not_apply_says_why(why, u, W):
    operands = (torch.empty(1, device=DEVICE).expand(shape) for shape in (u, W))
    says_why(why, "routing_loop", *operands, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    "s",
    [
        Sizes("ten", 33, 1152, 10, 1, 8, 16),
        Sizes("a hundred", 3, 200, 100, 4, 4, 4),
        Sizes("two", 9, 512, 2, 6, 6, 6),
        Sizes("one sample", 1, 8192, 10, 4, 4, 4),
        Sizes("a thousand, one sample", 1, 40, 1000, 4, 4, 4),
        Sizes("a thousand, more children than programs", 1, 512, 1000, 1, 16, 32),
    ],
    ids=lambda s: s.why,
)
def test_full_sizes(s, normalise, dtype):
    budget(normalise, dtype, s, shared=True)
