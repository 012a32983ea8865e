"""The fused routing loop over maps under a window: on a GPU, or under Triton's interpreter in a process of its own.

Error budget: at most twice as far from float64 as the textbook form in plain torch of the same dtype, three times for
gradients.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import capsroute as cr
from capsroute.bench import textbook
from capsroute.form.window import Window
from capsroute.layers import CapsuleConv2d
from capsroute.patches import PatchVotes, patches
from tests.form.attention.cases import Sizes, float32_products
from tests.form.kernels import (
    DEVICE,
    HALF,
    ROUNDING,
    assert_within_budget,
    differentiable_twice,
    error,
    keeps_promises,
    needs_kernels,
    says_why,
    surrounded,
)
from tests.form.loop.cases import NORMALISE

SMALL = [
    Sizes("one child", 2, 1, 2, 1, 2, 3, 2, 3, Window(1)),
    Sizes("one parent", 2, 2, 1, 1, 8, 16, 2, 3, Window(2)),
    Sizes("primes", 2, 3, 3, 1, 5, 11, 5, 3, Window(3)),
    Sizes("matrix poses, stride 2", 2, 2, 2, 3, 3, 2, 5, 3, Window(3, 2)),
    Sizes("more parents than children, windows beyond the edge", 1, 1, 5, 1, 4, 4, 2, 3, Window(2, 1, 1)),
    Sizes("matrix poses, stride 2, two beyond the edge", 1, 1, 2, 2, 3, 4, 4, 3, Window(3, 2, 2)),
    Sizes("windows with gaps between them", 1, 3, 2, 1, 4, 4, 5, 4, Window(2, 3)),
    Sizes("so many pose rows that sums over them are split", 1, 1, 2, 16, 2, 3, 5, 5, Window(2)),
    Sizes("a window over the whole map", 3, 2, 2, 1, 4, 4, 2, 2, Window(2)),
]
each_way = pytest.mark.parametrize("normalise", NORMALISE)
PRIMES, PADDED, WHOLE_MAP = SMALL[2], SMALL[5], SMALL[8]
ROUTE = {"softmax": cr.dynamic_routing, "max-min": cr.max_min_routing}
TEXTBOOK = {"softmax": textbook.dynamic, "max-min": textbook.max_min}


@pytest.fixture
def no_patches(monkeypatch):
    """Whoever cuts a patch out fails."""

    def refuse(*_):
        raise AssertionError("patches were cut out of the map")

    monkeypatch.setattr("capsroute.patches.patches", refuse)


def operands(s: Sizes, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A map in the memory order that kernels read, between NaNs, and transforms."""
    generator = torch.Generator().manual_seed(0)
    shapes = (s.b, s.n, s.h, s.w, s.a, s.k), (s.n * s.window.kernel**2, s.j, s.k, s.o)
    u, W = (torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)
    return surrounded(u.to(dtype)).permute(0, 1, 4, 5, 2, 3), surrounded((W * s.k**-0.5).to(dtype))


def route(normalise: str, u: Tensor, W: Tensor, window: Window, backend: str = "auto", **option) -> cr.Routed:
    return ROUTE[normalise](PatchVotes(u, W, window, backend), **option)


def values(normalise: str, u: Tensor, W: Tensor, window: Window, coefficients: bool = False, **option) -> list[Tensor]:
    """Poses, coefficients, and the gradients of the map and W for fixed gradients of the poses (and coefficients)."""
    u, W = (t.detach().requires_grad_() for t in (u, W))
    routed = route(normalise, u, W, window, **option)
    outputs = [routed.poses, routed.coefficients] if coefficients else [routed.poses]
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(out.shape, generator=generator).to(out) for out in outputs]
    return [routed.poses, routed.coefficients, *torch.autograd.grad(outputs, (u, W), gradients)]


def exactly(normalise: str, u: Tensor, W: Tensor, *args, **option) -> list[Tensor]:
    return values(normalise, u.double(), W.double(), *args, backend="torch", **option)


def in_turn(name: str, others: Sequence) -> pytest.MarkDecorator:
    """Softmax and max-min for each of them; one of the two, in turn, where there is little time."""
    pairs = [
        pytest.param(each, one, marks=[] if NORMALISE[n % 2] == each else pytest.mark.slow)
        for n, one in enumerate(others)
        for each in NORMALISE
    ]
    return pytest.mark.parametrize(("normalise", name), pairs, ids=lambda x: getattr(x, "why", str(x)))


@needs_kernels
@in_turn("s", SMALL)
def test_it_equals_float64(normalise, s, launched, request):
    given = operands(s)
    exact = exactly(normalise, *given, s.window)
    request.getfixturevalue("no_patches")
    for ours, wanted in zip(values(normalise, *given, s.window), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert launched.count("forward_pass") == launched.count("backward_pass") == 2
    assert launched.count("children_gradient") == launched.count("transforms_gradient") == 1
    assert launched.count("fold") == (s is not WHOLE_MAP)


@needs_kernels
@pytest.mark.parametrize("option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=str)
@each_way
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched):
    given = operands(PADDED)
    exact = exactly(normalise, *given, PADDED.window, True, **option)
    for ours, wanted in zip(values(normalise, *given, PADDED.window, True, **option), exact):
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert launched.count("backward_pass") == (1 if "stop_gradient" in option else option["iterations"] - 1)


@needs_kernels
@each_way
def test_beyond_the_edge_children_are_zero(normalise, launched):
    # They vote for nobody, so that all parents are alike to them; poses are those of a map with zeros around it.
    u, W = operands(PADDED)
    window, around = PADDED.window, [PADDED.window.padding] * 4
    ours = values(normalise, u, W, window, True)
    wanted = values(normalise, F.pad(u, around), W, Window(window.kernel, window.stride), True)
    wanted[2] = wanted[2][..., around[0] : -around[0], around[0] : -around[0]]
    for mine, other in zip(ours, wanted):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    absent = ~patches(torch.ones_like(u[:, :, 0, 0]), window, (u.shape[1],)).bool()
    alike = 1 / PADDED.j if normalise == "softmax" else 1.0
    assert 0 < absent.sum() < absent.numel()
    torch.testing.assert_close(ours[1][absent], torch.full_like(ours[1][absent], alike))
    assert launched.count("fold") == 2


@needs_kernels
@each_way
def test_masked_children_get_gradients_and_say_nothing(normalise, launched):
    # Where a capsule is masked it is zero; what it hears back is that of float64 all the same.
    u, W = operands(PRIMES)
    u = u * (torch.arange(PRIMES.h, device=DEVICE) % 2)[:, None]
    given = (normalise, u, W, PRIMES.window, True)
    for ours, wanted in zip(values(*given), exactly(*given)):
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert launched.count("fold") == 1


@needs_kernels
@pytest.mark.parametrize("zero", [0, 1], ids=["children", "transforms"])
@each_way
def test_zero_votes(normalise, zero, launched):
    given = list(operands(PADDED))
    given[zero] = torch.zeros_like(given[zero])
    poses, c, du, dW = values(normalise, *given, PADDED.window, True)
    assert "forward_pass" in launched
    assert all((part == 0).all() for part in (poses, du, dW))
    torch.testing.assert_close(c, torch.full_like(c, 1 / PADDED.j if normalise == "softmax" else 1.0))


@needs_kernels
def test_a_map_may_lie_in_memory_in_any_order(launched):
    s = SMALL[3]
    u, W = operands(s)
    plain = values("softmax", u, W, s.window)
    for order in ((0, 1, 2, 3, 4, 5), (0, 4, 5, 1, 2, 3)):
        turned = u.permute(order).contiguous().permute(tuple(torch.tensor(order).argsort().tolist()))
        assert turned.stride() != u.stride()
        assert all(map(torch.equal, values("softmax", turned, W, s.window), plain))
    assert launched.count("fold") == 3


@needs_kernels
@each_way
def test_a_window_over_the_whole_map_is_a_list_to_the_last_bit(normalise, launched, in_passes):
    u, W = operands(WHOLE_MAP)
    ours = values(normalise, u, W, WHOLE_MAP.window)
    listed = u.permute(0, 1, 4, 5, 2, 3).flatten(1, 3).detach().requires_grad_()
    W = W.detach().requires_grad_()
    routed = ROUTE[normalise](cr.LinearVotes(listed, W))
    gradient = torch.randn(routed.poses.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    du, dW = torch.autograd.grad(routed.poses, (listed, W), gradient)
    du = du.unflatten(1, (WHOLE_MAP.n, WHOLE_MAP.h, WHOLE_MAP.w)).permute(0, 1, 4, 5, 2, 3)
    assert all(map(torch.equal, ours, (routed.poses, routed.coefficients, du, dW)))
    assert launched[: len(launched) // 2] == launched[len(launched) // 2 :]


@needs_kernels
@each_way
def test_it_is_differentiable_twice(normalise, launched):
    def loss(u: Tensor, W: Tensor) -> Tensor:
        return route(normalise, u, W, PADDED.window).poses.square().sum()

    differentiable_twice(loss, *operands(PADDED), limit=1e-4)
    assert "forward_pass" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(launched):
    runs = [values("softmax", *operands(PADDED), PADDED.window) for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*runs))
    assert launched.count("fold") == 2


def budget(normalise: str, s: Sizes, dtype: torch.dtype) -> None:
    u, W = operands(s, dtype)
    exact = exactly(normalise, u, W, s.window)
    ours = values(normalise, u, W, s.window)
    assert [part.dtype for part in ours] == [torch.float32, torch.float32, dtype, dtype]
    u, W = (t.detach().requires_grad_() for t in (u, W))
    poses = TEXTBOOK[normalise](patches(u.flatten(1, 3), s.window, u.shape[1:4]), W)
    gradient = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
    theirs = [poses, None, *torch.autograd.grad(poses, (u, W), gradient)]
    assert_within_budget(ours, theirs, exact, dtype)


@needs_kernels
@in_turn("dtype", HALF)
def test_half_precision_stays_within_the_error_budget(normalise, dtype, launched):
    budget(normalise, Sizes("", 1, 2, 3, 1, 8, 16, 4, 4, Window(3, 1, 1)), dtype)
    assert launched.count("fold") == 1


def made(routing: str) -> tuple[list[CapsuleConv2d], Tensor]:
    """A layer on either backend, and a map for it; the same numbers on every device and version of torch."""
    generator = torch.Generator().manual_seed(0)
    poses, W = (torch.randn(shape, generator=generator) for shape in ((2, 2, 1, 4, 3, 5), (18, 3, 4, 5)))
    layers = [CapsuleConv2d(2, 3, 4, 5, 3, 2, 1, routing, backend=backend) for backend in ("auto", "torch")]
    for layer in layers:
        layer.load_state_dict({**layer.state_dict(), "W": W / 2})
    return [layer.to(DEVICE) for layer in layers], poses.to(DEVICE)


ROUTINGS = ("dynamic", "max_min")


@needs_kernels
@pytest.mark.parametrize("routing", ROUTINGS)
def test_layers_run_it_and_equal_those_on_torch_in_float64(routing, launched):
    layers, poses = made(routing)
    outputs = []
    for layer, dtype in zip(layers, (torch.float32, torch.float64)):
        launched.clear()
        leaf = poses.to(dtype).requires_grad_()
        routed = layer.to(dtype)(leaf, return_coefficients=True)
        loss = routed.poses.pow(3).sum() + routed.coefficients.square().sum()
        outputs.append([*routed[:2], *torch.autograd.grad(loss, (leaf, layer.W))])
        assert launched.count("uniform_pass") == launched.count("fold") == (layer.backend == "auto")
    for ours, wanted in zip(*outputs):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]


@needs_kernels
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_layer_whose_backend_is_torch_runs_nothing_of_it(routing, launched):
    layers, poses = made(routing)
    ours, plain = (layer(poses).poses for layer in layers)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    assert launched.count("uniform_pass") == 1


@needs_kernels
@pytest.mark.parametrize("routing", ROUTINGS)
def test_compiled_whole(routing, launched):
    (layer, _), poses = made(routing)
    poses.requires_grad_()
    outputs = layer(poses).poses, torch.compile(layer, fullgraph=True, backend="aot_eager")(poses).poses
    launched.clear()
    eager, whole = (torch.autograd.grad(out.pow(3).sum(), (poses, layer.W)) for out in outputs)
    torch.testing.assert_close(whole, eager, rtol=1e-6, atol=1e-6)
    assert launched.count("fold") == 2


@needs_kernels
def test_an_exported_program_holds_the_operator_and_runs_the_kernel(launched, no_patches):
    (layer, _), poses = made("dynamic")
    program = torch.export.export(layer, (poses,))
    assert "capsroute.routing_loop" in str(program.graph)
    launched.clear()
    torch.testing.assert_close(program.module()(poses).poses, layer(poses).poses, rtol=1e-6, atol=1e-6)
    assert launched.count("uniform_pass") == 2


@needs_kernels
def test_autocast_gives_the_kernels_half_precision_and_keeps_float32_statistics(launched, no_patches):
    (layer, _), poses = made("dynamic")
    exact = layer(poses).poses
    with torch.autocast(DEVICE, torch.bfloat16):
        ours = layer(poses).poses
    assert ours.dtype == torch.float32
    assert launched.count("uniform_pass") == 2
    assert 0 < error(ours, exact) < 0.05


@needs_kernels
@pytest.mark.parametrize("softmax", [True, False])
def test_the_operators_keep_their_promises(softmax):
    u, W = (t.detach().requires_grad_() for t in operands(PADDED))
    cr.form.explain("routing_loop", u, W, 3, PADDED.window)
    how, window = (3, softmax, 0.0, 1.0, 1 / 3, False), list(PADDED.window)
    forward, backward = torch.ops.capsroute.routing_loop.default, torch.ops.capsroute.routing_loop_backward.default
    keeps_promises(forward, (u, W, *how, True, window))
    poses, *saved = (t.detach() for t in forward(u, W, *how, True, window))
    grads = [poses, None, None, None, None]
    keeps_promises(backward, (grads, u.detach(), W.detach(), saved, *how, True, window))


@needs_kernels
@pytest.mark.parametrize(
    ("why", "make"),
    [
        ("operands are float64", lambda u, W: (u.double(), W.double(), 3)),
        ("one iteration has no agreement", lambda u, W: (u, W, 1)),
        ("transforms are shared", lambda u, W: (u, W[:1], 3)),
        ("an operand is empty", lambda u, W: (u[:0], W, 3)),
        ("at most 32 rows and 32 columns", lambda u, W: (u.repeat(1, 1, 1, 8, 1, 1), W.repeat(1, 1, 8, 1), 3)),
        (
            "the gradients of all patches have 2^31",
            lambda u, W: (u.new_empty(1).expand(1 << 20, 3, 1, 16, 5, 5), W.new_empty(1).expand(27, 1, 16, 5), 2),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_that_does_not_apply_says_why(why, make):
    says_why(why, "routing_loop", *make(*operands(PRIMES)), PRIMES.window)


CONV, ODD = (
    Sizes("32 capsules of 8 to 16 of 16", 32, 32, 16, 1, 8, 16, 16, 16, Window(3)),
    Sizes("odd", 7, 13, 3, 3, 6, 5, 9, 10, Window(3, 2, 1)),
)


@pytest.mark.gpu
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("s", [CONV, ODD], ids=lambda s: s.why)
def test_full_size_stays_within_the_error_budget(s, dtype, normalise, launched):
    # Libraries multiply odd sizes exactly even where TF32 is allowed, so that is what they are compared with.
    with float32_products("tf32" if s is CONV else "ieee"):
        budget(normalise, s, dtype)
    assert launched.count("fold") == 1


@pytest.mark.gpu
def test_patches_are_never_in_memory(launched, no_patches):
    s = CONV._replace(j=2)
    u, W = operands(s)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        route("softmax", u, W, s.window)
    patches_of_all = 4 * s.b * 14 * 14 * s.n * 9 * s.k
    assert torch.cuda.max_memory_allocated() - before < patches_of_all / 2
    assert launched.count("forward_pass") == 2


@pytest.mark.gpu
@pytest.mark.parametrize("option", [{"iterations": 4}, {"stop_gradient": True}], ids=str)
def test_a_second_call_launches_the_same_kernels(option, launched):
    s = CONV._replace(j=3, b=4)
    given = operands(s, torch.bfloat16)
    first, second = values("softmax", *given, s.window, True, **option), len(launched)
    again = values("softmax", *given, s.window, True, **option)
    assert all(map(torch.equal, first, again))
    assert launched[:second] == launched[second:]
    assert launched.count("fold") == 2
