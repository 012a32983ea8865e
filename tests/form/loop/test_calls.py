"""The Triton kernels against float64: on a GPU, or under Triton's interpreter in a process of its own.

Error budget: a kernel may be at most twice as far from float64 as the textbook form in plain torch of the same dtype,
three times for gradients.
"""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.form.contractions import plain as reference
from tests.form.kernels import (
    HALF,
    ROUNDING,
    Sizes,
    differentiable_twice,
    error,
    keeps_promises,
    needs_kernels,
    says_why,
)
from tests.form.loop.cases import NORMALISE, budget, equal_to_float64, operands, route, values

pytestmark = pytest.mark.usefixtures("in_passes")

SMALL = [
    Sizes("one child", 3, 1, 2, 1, 2, 3),
    Sizes("one parent", 2, 5, 1, 1, 8, 16),
    Sizes("primes", 3, 7, 3, 1, 5, 11),
    Sizes("matrix poses", 2, 5, 2, 3, 3, 2),
    Sizes("more parents than children", 1, 2, 5, 1, 4, 4),
]
names = {"argvalues": SMALL, "ids": [s.why for s in SMALL]}


CONTRACTIONS = {"agreement": "uWq", "aggregate": "cuW", "grad_children": "cWq", "grad_transforms": "cuq"}


def arguments(name: str, drawn: dict[str, Tensor]) -> list:
    return [drawn[letter] for letter in CONTRACTIONS[name]] + ([False] if name == "grad_transforms" else [])


@needs_kernels
@pytest.mark.parametrize("s", **names)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_equal_the_reference(name, s, launched):
    args = arguments(name, operands(s))
    exact = getattr(reference, name)(*[t.double() if isinstance(t, Tensor) else t for t in args])
    ours = getattr(cr.form, name)(*args)
    assert error(ours, exact) < ROUNDING[torch.float32]
    assert bool(launched) == (s.i > 1 or name == "grad_transforms")  # one child's transforms count as shared


@needs_kernels
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_of_half_precision_sum_in_float32(name, dtype, launched):
    args = arguments(name, operands(SMALL[2], dtype))
    exact = getattr(reference, name)(*[t.double() if isinstance(t, Tensor) else t for t in args])
    ours = getattr(cr.form, name)(*args)
    assert launched
    assert ours.dtype == torch.float32
    assert error(ours, exact) < ROUNDING[dtype]


@needs_kernels
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_take_any_strides(name, launched):
    drawn = operands(SMALL[3])
    turned = {n: t.transpose(0, -1).contiguous().transpose(0, -1) for n, t in drawn.items()}
    ours, plain = (getattr(cr.form, name)(*arguments(name, d)) for d in (turned, drawn))
    assert launched
    assert not turned["c"].is_contiguous()
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


@needs_kernels
def test_contractions_are_differentiable_twice(launched):
    drawn = operands(SMALL[2])
    given = [drawn[n] for n in "uWq"]
    differentiable_twice(lambda *t: cr.form.agreement(*t).square().sum(), *given, limit=3 * ROUNDING[torch.float32])
    assert {"agreement_plane", "aggregate_plane", "children_gradient", "transforms_gradient"} <= set(launched)


@needs_kernels
@pytest.mark.parametrize("s", **names)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_the_fused_loop_equals_float64(normalise, s, launched):
    equal_to_float64(normalise, s)
    assert launched.count("forward_pass") == launched.count("backward_pass") == 2
    assert launched.count("children_gradient") == launched.count("transforms_gradient") == 1


@needs_kernels
@pytest.mark.parametrize("option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched):
    equal_to_float64(normalise, SMALL[4], coefficients=True, **option)
    assert "backward_pass" in launched


@needs_kernels
def test_max_min_bounds(launched):
    equal_to_float64("max-min", SMALL[4], coefficients=True, lower=0.1, upper=0.7)
    assert "backward_pass" in launched


@needs_kernels
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_half_precision_stays_within_the_error_budget(normalise, dtype, launched):
    budget(normalise, dtype, Sizes("", 5, 9, 3, 1, 8, 16))
    assert "forward_pass" in launched


@needs_kernels
@pytest.mark.parametrize("zero", ["u", "W"])
@pytest.mark.parametrize("normalise", NORMALISE)
def test_zero_votes(normalise, zero, launched):
    drawn = operands(SMALL[1]._replace(j=3))
    drawn[zero] = torch.zeros_like(drawn[zero])
    poses, c, du, dW = values(normalise, drawn["u"], drawn["W"], True)
    assert "forward_pass" in launched
    assert all((part == 0).all() for part in (poses, du, dW))
    torch.testing.assert_close(c, torch.full_like(c, 1 / 3 if normalise == "softmax" else 1.0))


@needs_kernels
@pytest.mark.parametrize("normalise", NORMALISE)
def test_the_fused_loop_is_differentiable_twice(normalise, launched):
    drawn = operands(SMALL[2])
    loss = lambda u, W: route(normalise, u, W).poses.square().sum()  # noqa: E731
    differentiable_twice(loss, drawn["u"], drawn["W"], limit=1e-4)
    assert "forward_pass" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(launched):
    drawn = operands(SMALL[2])
    for first, second in zip(*(values("softmax", drawn["u"], drawn["W"]) for _ in range(2))):
        assert torch.equal(first, second)


@needs_kernels
def test_nothing_is_kept_without_gradients(launched):
    drawn = operands(SMALL[2])
    with torch.no_grad():
        without = route("softmax", drawn["u"], drawn["W"])
    with_gradient = values("softmax", drawn["u"], drawn["W"])
    torch.testing.assert_close(without.poses, with_gradient[0], rtol=1e-6, atol=1e-6)
    assert without.poses.grad_fn is None
    assert "forward_pass" in launched


@needs_kernels
def test_compiled_whole(launched):
    drawn = operands(SMALL[2])
    u, W = (drawn[n].clone().requires_grad_() for n in "uW")

    def poses(u: Tensor, W: Tensor) -> Tensor:
        return route("softmax", u, W).poses

    outputs = poses(u, W), torch.compile(poses, fullgraph=True, backend="aot_eager")(u, W)
    launched.clear()
    eager, compiled = (torch.autograd.grad(out.square().sum(), (u, W)) for out in outputs)
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
    assert launched.count("backward_pass") == 4


@needs_kernels
@pytest.mark.parametrize("softmax", [True, False])
def test_the_operator_keeps_its_promises(softmax):
    drawn = operands(SMALL[2])
    u, W = (drawn[n].clone().requires_grad_() for n in "uW")
    cr.form.explain("routing_loop", u, W, 3)
    keeps_promises(torch.ops.capsroute.routing_loop.default, (u, W, 3, softmax, 0.0, 1.0, 1 / 3, False, True))


@needs_kernels
def test_a_forced_torch_backend_launches_nothing(launched):
    drawn = operands(SMALL[2])
    routed = route("softmax", drawn["u"], drawn["W"], backend="torch")
    assert not launched
    torch.testing.assert_close(routed.poses, route("softmax", drawn["u"], drawn["W"]).poses, rtol=1e-5, atol=1e-5)
    assert launched


def wide_children(drawn: dict[str, Tensor]) -> tuple:
    return drawn["u"].repeat(1, 1, 1, 8), drawn["W"].repeat(1, 1, 8, 1), 3


def spread(drawn: dict[str, Tensor], *shapes: tuple[int, ...]) -> tuple:
    """Tensors of any size without their memory."""
    return tuple(drawn["u"].new_empty(1).expand(shape) for shape in shapes)


@needs_kernels
@pytest.mark.parametrize(
    ("why", "name", "make"),
    [
        ("operands are float64", "routing_loop", lambda d: (d["u"].double(), d["W"].double(), 3)),
        ("one iteration has no agreement", "routing_loop", lambda d: (d["u"], d["W"], 1)),
        ("an operand is empty", "routing_loop", lambda d: (d["u"][:0], d["W"], 3)),
        ("at most 32 rows and 32 columns", "routing_loop", wide_children),
        ("operands are float64", "aggregate", lambda d: (d["c"].double(), d["u"], d["W"])),
        ("transforms are shared", "agreement", lambda d: (d["u"], d["W"][:1], d["q"])),
        ("all samples have the same", "aggregate", lambda d: (d["c"][:1].expand(3, -1, -1), d["u"], d["W"])),
        ("a tensor has 2^31", "agreement", lambda d: spread(d, *[(4096, size, 1, 1) for size in (4096, 128, 128)])),
        ("a tensor has 2^31", "routing_loop", lambda d: (*spread(d, (1 << 26, 2, 1, 2), (2, 2, 2, 16)), 3)),
        ("than 65,535", "agreement", lambda d: spread(d, (2, 2, 1, 2), (2, 70000, 2, 2), (2, 70000, 1, 2))),
        # 65,536 tiles of 32 samples, whose planes are normalised.
        ("than 65,535", "routing_loop", lambda d: (*spread(d, (2097121, 2, 1, 2), (2, 17, 2, 16)), 2)),
        ("more than 64 rows or columns", "grad_children", lambda d: (d["c"], d["W"].repeat(1, 1, 20, 1), d["q"])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_kernel_that_does_not_apply_says_why(why, name, make):
    says_why(why, name, *make(operands(SMALL[2])))


@needs_kernels
@pytest.mark.parametrize("k", [1, 8, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_loop_that_applies_fits_a_grid(k, dtype):
    from capsroute.form.launch import Launch
    from capsroute.form.launches.lists import loop_plan
    from capsroute.form.sizes import Sizes as Letters

    sizes = [(2, 2**20, 2, 1, k, 2), (2**20, 2, 2, 1, k, 2), (64, 2**16, 16, 1, k, 16), (1, 70000, 32, 1, k, 16)]
    for s in (Sizes("", *letters) for letters in sizes):
        u, W = spread(operands(SMALL[2]), (s.b, s.i, s.a, s.k), (s.i, s.j, s.k, s.o))
        assert not cr.form.explain("routing_loop", u, W, 3)
        found = [part for part in loop_plan(Letters(*s[1:]), dtype, "tf32") if isinstance(part, Launch)]
        assert len(found) == 7 + (s.j * max(16, s.o) > 256)  # many parents are normalised apart
        assert max(size for launch in found for size in launch.grid[1:]) <= 65_535


@pytest.fixture
def short_grid(monkeypatch):
    """A grid with one row, whose plans no other test keeps."""
    from capsroute.form.launches import lists

    plans = lists.loop_plan, lists.contraction_plan
    monkeypatch.setattr(lists, "GRID_ROWS", 1)
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()


@needs_kernels
@pytest.mark.parametrize("s", [Sizes("of few rows", 2, 37, 3, 1, 16, 16), Sizes("tiles", 70, 37, 2, 1, 4, 4)], ids=str)
def test_tiles_of_children_beyond_the_rows_of_a_grid_are_columns(s, launched, short_grid):
    """70,000 children of one sample were a grid of 70,000 rows, which no GPU launches; 524,288 were refused."""
    equal_to_float64("softmax", s)
    assert "children_gradient" in launched


DIGIT_CAPS, ODD = Sizes("DigitCaps", 128, 1152, 10, 1, 8, 16), Sizes("odd", 77, 613, 3, 3, 6, 5)


@pytest.mark.gpu
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    ("s", "dtype"),
    # Kernels take most of a minute to compile, and those of float16 differ from float32's in their loads alone.
    [(DIGIT_CAPS, torch.float32), (DIGIT_CAPS, torch.bfloat16), *((ODD, dtype) for dtype in (torch.float32, *HALF))],
    ids=lambda value: value.why if isinstance(value, Sizes) else str(value),
)
def test_full_size_stays_within_the_error_budget(s, normalise, dtype, launched, monkeypatch):
    # Libraries multiply odd sizes exactly even where TF32 is allowed, so that is what they are compared with.
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", s is DIGIT_CAPS)
    budget(normalise, dtype, s)
    assert "forward_pass" in launched


@pytest.mark.gpu
def test_as_many_parents_as_are_held_at_once_fit_the_chip(launched):
    budget("softmax", torch.float32, Sizes("", 16, 64, 16, 1, 8, 16))
    assert "forward_pass" in launched


@pytest.mark.gpu
def test_a_captured_graph_replays_the_same_numbers():
    drawn = operands(Sizes("", 64, 300, 3, 1, 8, 16))
    u, W = (drawn[n].clone().requires_grad_() for n in "uW")

    def step() -> tuple[Tensor, ...]:
        poses = route("softmax", u, W).poses
        # Detached: a graph of the autograd engine that outlives the call would tie the capture to its stream.
        return poses.detach(), *torch.autograd.grad(poses.square().sum(), (u, W))

    from capsroute.bench.measure import capture

    eager = step()
    replay = capture(step)
    replay()
    for ours, wanted in zip(replay.kept, eager):
        assert torch.equal(ours, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("option", [{"iterations": 4}, {"stop_gradient": True}], ids=str)
def test_a_second_call_launches_the_same_kernels(option, launched):
    # Coefficients of the last iteration are float32, earlier ones have the operands' dtype: one kernel, two forms.
    s = Sizes("", 32, 64, 3, 1, 8, 16)
    drawn = operands(s, torch.bfloat16)
    first, second = values("softmax", drawn["u"], drawn["W"], True, **option), len(launched)
    again = values("softmax", drawn["u"], drawn["W"], True, **option)
    for before, after in zip(first, again):
        assert torch.equal(before, after)
    assert launched[:second] == launched[second:]
