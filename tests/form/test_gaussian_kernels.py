"""The Gaussian kernels against float64: on a GPU, or under Triton's interpreter in a process of its own.

Error budget: at most twice as far from float64 as the textbook form in plain torch of the same dtype, three times for
gradients.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute import gaussian
from capsroute import gaussian_ops as ops
from capsroute.bench.cases import Case
from capsroute.bench.measure import capture, forward_backward, peak_mebibytes
from tests import test_gaussian
from tests.form.test_triton import DEVICE, INTERPRETED, ROUNDING, Sizes, error, launched, needs_kernels, surrounded

__all__ = ["launched"]

TINY = 10 * ROUNDING[torch.float32]

SMALL = [
    Sizes("one child", 3, 1, 2, 1, 2, 3),
    Sizes("one parent", 2, 5, 1, 2, 3, 2),
    Sizes("one of everything", 1, 1, 1, 1, 1, 1),
    Sizes("primes", 2, 7, 3, 3, 2, 5),
    Sizes("4x4 poses", 2, 5, 3, 4, 4, 4),
    Sizes("more parents than a warp has lanes, not a multiple", 1, 3, 67, 1, 2, 2),
    Sizes("children that several programs share", 1, 9, 33, 1, 1, 2),
]
FEW = Sizes("whole routings: the interpreter's time goes by the product", 2, 8, 3, 1, 2, 3)
names = {"argvalues": SMALL, "ids": [s.why for s in SMALL]}
WHOSE = ("shared", "per child", "shared+bias", "per child+bias")


@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="is that process, or has a GPU instead")
def test_under_the_interpreter():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", str(Path(__file__)), "-p", "no:xdist", "-p", "no:randomly"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.fixture
def large_tiles(monkeypatch):
    """Many children in a tile: the interpreter's time goes by the tile."""
    from capsroute.form.kernels import gaussian_plan

    for name, (parents, _, programs) in gaussian_plan.TILES.items() if INTERPRETED else ():
        monkeypatch.setitem(gaussian_plan.TILES, name, (parents, 64, programs))
    gaussian_plan.gaussian_launch.cache_clear()
    yield
    gaussian_plan.gaussian_launch.cache_clear()


def large(launched: list[str]) -> list[str]:
    """The kernels that walk over children x parents, without the small ones between them."""
    return [name for name in launched if not name.startswith(("merge", "sum_", "parents_")) and "table" not in name]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def voters(s: Sizes, whose: str) -> list[Tensor | None]:
    """u, W and bias (or None)."""
    n = s.i if "per child" in whose else 1
    bias = draw(n, s.j, s.a, s.o, seed=2) if "bias" in whose else None
    return [draw(s.b, s.i, s.a, s.k), draw(n, s.j, s.k, s.o, seed=1) * s.k**-0.5, bias]


def step_arguments(s: Sizes, whose: str) -> list[Tensor | None]:
    gate = draw(s.b, s.i, seed=3).sigmoid()
    gate[0, 0] = 0.0  # a child that is not there
    mean, variance = draw(s.b, s.j, s.a, s.o, seed=4), draw(s.b, s.j, s.a, s.o, seed=5).exp()
    return [*voters(s, whose), gate, mean, variance, draw(s.b, s.j, seed=6), draw(s.i, s.j, seed=7)]


def outputs_and_gradients(function, arguments: list, dtype: torch.dtype, *numbers: float) -> list[Tensor]:
    leaves = [t if t is None else surrounded(t.to(DEVICE, dtype)).requires_grad_() for t in arguments]
    outputs = function(*leaves, *numbers)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs = [out for out in outputs if out.numel()]
    gradients = [draw(*out.shape, seed=8).to(out) for out in outputs]
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [*outputs, *torch.autograd.grad(outputs, wanted, gradients)]


def equal_to_float64(kernel, plain, arguments: list, *numbers: float) -> None:
    exact = outputs_and_gradients(plain, arguments, torch.float64, *numbers)
    ours = outputs_and_gradients(kernel, arguments, torch.float32, *numbers)
    for index, (mine, wanted) in enumerate(zip(ours, exact, strict=True)):
        assert mine.shape == wanted.shape
        # Where a softmax has one parent its gradient is zero: measured against one.
        distance = (mine.double() - wanted).norm() / wanted.norm().clamp_min(1.0)
        assert distance < TINY, f"output or gradient {index}: {distance:.1e}"


@needs_kernels
@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("s", **names)
def test_a_step_and_all_its_gradients(s, whose, launched):
    equal_to_float64(ops.gaussian_step, gaussian.plain_step, step_arguments(s, whose), 1e-2)
    assert launched.count("quadratic") == 2
    assert launched.count("power_sums") == ("per child" in whose and s.i > 1)
    for name in ("weighted_moments", "merge_moments", "vote_gradients", "beta_gradient"):
        assert launched.count(name) == 1


@needs_kernels
@pytest.mark.parametrize("whose", WHOSE)
def test_log_density_and_its_gradients(whose, launched):
    *votes, _, mean, variance, _, _ = step_arguments(SMALL[3], whose)
    equal_to_float64(ops.gaussian_density, gaussian.plain_density, [*votes, mean, variance])
    expected = ["quadratic", "vote_gradients"] + (["power_sums"] if "per child" in whose else [])
    assert large(launched) == expected


@needs_kernels
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("whose", WHOSE)
def test_moments_and_their_gradients(whose, eps, launched):
    s = SMALL[3]
    weights = draw(s.b, s.i, s.j).exp()
    equal_to_float64(
        ops.gaussian_moments, gaussian.plain_moments, [*voters(s, whose), weights, draw(s.i, s.j)], eps
    )  # fmt: skip
    assert large(launched) == ["weighted_moments", "quadratic", "vote_gradients", "beta_gradient"]


@needs_kernels
def test_weights_that_all_parents_share(launched):
    s = SMALL[3]
    weights = draw(s.b, s.i, 1).exp()
    equal_to_float64(ops.gaussian_moments, gaussian.plain_moments, [*voters(s, "shared"), weights, draw(s.i, s.j)], 0.0)
    assert "quadratic" in launched


@needs_kernels
def test_no_weight_at_all_gives_zeros(launched):
    s = SMALL[3]
    arguments = [*voters(s, "shared"), torch.zeros(s.b, s.i, s.j), draw(s.i, s.j)]
    mean, variance, *rest = outputs_and_gradients(ops.gaussian_moments, arguments, torch.float32, 0.0)
    assert launched
    assert (mean == 0).all()
    assert (variance == 0).all()
    assert all(part.isfinite().all() for part in rest)


@needs_kernels
@pytest.mark.parametrize("why", test_gaussian.HARD)
def test_tight_groups_are_not_lost_in_rounding(why, launched, large_tiles):
    u, W, weights, group = (t.to(DEVICE) for t in test_gaussian.grouped(why))
    wide = cr.DenseVotes(cr.LinearVotes(u.double(), W.double()).dense())
    mean, variance = wide.moments(weights.double())
    variance = variance.clamp_min(1e-6)
    density = wide.log_density(mean.float().double(), variance.float().double())
    exact = mean, variance, density[:, torch.arange(len(group)), group]
    launched.clear()
    lazy = cr.LinearVotes(u, W)
    ours, textbook = (
        test_gaussian.errors(votes, weights, group, exact) for votes in (lazy, cr.DenseVotes(lazy.dense()))
    )
    assert large(launched) == ["weighted_moments", "quadratic"]
    for name in ours:
        assert ours[name] <= 2 * textbook[name] + 1e-7, f"{name}: {ours[name]:.1e} against {textbook[name]:.1e}"


def route(algorithm: str, votes: cr.LinearVotes, gate: Tensor, beta: Tensor, **option) -> cr.Routed:
    if algorithm == "heinsen":
        return cr.heinsen_routing(votes, gate, beta, 0.5 * beta, **option)
    return cr.em_routing(votes, gate.sigmoid(), beta[0], -beta[0], **option)


def routed_values(algorithm: str, s: Sizes, whose: str, scores: Tensor, dtype: torch.dtype, backend: str = "auto"):
    """All that routing gives, and the gradients of everything it takes, for fixed gradients of what it gives."""
    rows = 1 if algorithm == "em" or "shared" in whose else s.i

    def function(u, W, *rest):
        *bias, scores, beta = rest
        votes = cr.LinearVotes(u, W, *bias, backend=backend)
        return tuple(route(algorithm, votes, scores, beta))

    arguments = [t for t in voters(s, whose) if t is not None]
    return outputs_and_gradients(function, [*arguments, scores, draw(rows, s.j, seed=9)], dtype)


SCORES = {
    "ordinary": lambda s: draw(s.b, s.i),
    "masked": lambda s: torch.where(torch.arange(s.i) % 3 == 1, -torch.inf, draw(s.b, s.i)),
    "one sample wholly masked": lambda s: torch.where(torch.arange(s.b)[:, None] == 0, -torch.inf, draw(s.b, s.i)),
    "certain": lambda s: torch.full((s.b, s.i), torch.inf),
}


@needs_kernels
@pytest.mark.parametrize("why", SCORES)
@pytest.mark.parametrize("whose", ["shared+bias", "per child"])
@pytest.mark.parametrize("algorithm", ["heinsen", "em"])
def test_routing_equals_float64(algorithm, whose, why, launched):
    s = FEW
    scores = SCORES[why](s)
    exact = routed_values(algorithm, s, whose, scores, torch.float64)
    assert not launched
    for ours, wanted in zip(routed_values(algorithm, s, whose, scores, torch.float32), exact, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours.double() - wanted).norm() / wanted.norm().clamp_min(1e-2) < 2 * TINY
    assert launched.count("vote_gradients") == 3
    assert launched.count("quadratic") == 5


@needs_kernels
def test_a_bias_moves_the_poses_and_nothing_else(launched):
    # Its gradient is that of the poses alone: what goes through tight variances, five digits larger, cancels.
    s = FEW._replace(i=5)
    *_, exact, _, _ = routed_values("heinsen", s, "shared+bias", SCORES["masked"](s), torch.float64)
    *_, ours, _, _ = routed_values("heinsen", s, "shared+bias", SCORES["masked"](s), torch.float32)
    assert "vote_gradients" in launched
    assert error(ours, exact) < 2 * TINY


@needs_kernels
def test_zero_votes(launched):
    s = FEW
    u, W, _ = voters(s, "shared")
    routed = cr.heinsen_routing(
        cr.LinearVotes(u.to(DEVICE) * 0, W.to(DEVICE)), draw(s.b, s.i).to(DEVICE),
        *(torch.zeros(1, s.j, device=DEVICE) for _ in range(2)),
    )  # fmt: skip
    assert "quadratic" in launched
    assert (routed.poses == 0).all()
    torch.testing.assert_close(routed.coefficients, torch.full_like(routed.coefficients, 1 / s.j))


@needs_kernels
def test_parents_that_compete_in_another_way_use_the_parts(launched):
    s = FEW
    u, W, _ = voters(s, "per child")
    votes, scores, beta = cr.LinearVotes(u.to(DEVICE), W.to(DEVICE)), draw(s.b, s.i).to(DEVICE), draw(1, s.j).to(DEVICE)
    usual = route("em", votes, scores, beta)
    launched.clear()
    ours = route("em", votes, scores, beta, normalise=lambda logits: logits.softmax(2))
    assert large(launched) == ["weighted_moments", *["quadratic", "weighted_moments"] * 2]
    for mine, other in zip(ours, usual):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def budget(case: Case, dtype: torch.dtype) -> None:
    """Poses within twice, gradients within three times the textbook's distance from float64."""
    tensors = list(case.tensors(dtype, DEVICE).values())
    gradient = draw(case.batch, case.parents, case.rows, case.o).to(DEVICE)
    exact = forward_backward(case.textbook(), [t.double() for t in tensors], gradient.double())()
    ours, theirs = (forward_backward(route, tensors, gradient)() for route in (case.ours(), case.textbook()))
    for index, (mine, other, wanted) in enumerate(zip(ours, theirs, exact)):
        times = 3 if index else 2
        assert error(mine, wanted) <= times * error(other, wanted) + ROUNDING[torch.float32], index


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("algorithm", ["heinsen", "em"])
def test_half_precision_stays_within_the_error_budget(algorithm, dtype, launched):
    budget(Case(algorithm, "", 2, 11, 3, rows=2, k=3, o=2, shared=True), dtype)
    assert "vote_gradients" in launched


@needs_kernels
def test_operands_of_any_strides(launched):
    def turned(t):
        return t if t is None else t.transpose(0, -1).contiguous().transpose(0, -1)

    arguments = step_arguments(SMALL[3], "per child+bias")
    plain, ours = (
        ops.gaussian_step(*[t if t is None else how(t.to(DEVICE)) for t in arguments], 1e-2)
        for how in (lambda t: t, turned)
    )
    assert launched
    for mine, other in zip(ours, plain):
        assert torch.equal(mine, other)


@needs_kernels
@pytest.mark.parametrize("algorithm", ["heinsen", "em"])
def test_differentiable_twice(algorithm, launched):
    s = SMALL[1]

    def second(dtype: torch.dtype) -> list[Tensor]:
        u, W, _ = (t if t is None else t.to(DEVICE, dtype).requires_grad_() for t in voters(s, "shared"))
        scores, beta = (t.to(DEVICE, dtype).requires_grad_() for t in (draw(s.b, s.i), draw(1, s.j)))
        leaves = (u, W, scores)
        poses = route(algorithm, cr.LinearVotes(u, W), scores, beta).poses
        first = torch.autograd.grad(poses.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    exact = second(torch.float64)
    for ours, wanted in zip(second(torch.float32), exact):
        assert error(ours, wanted) < 1e-4
    assert "quadratic" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(launched):
    s = FEW
    runs = (routed_values("heinsen", s, "shared+bias", draw(s.b, s.i), torch.float32) for _ in range(2))
    for first, second in zip(*runs):
        assert torch.equal(first, second)


@needs_kernels
def test_compiled_whole(launched):
    s = SMALL[1]
    u, W, _ = (t if t is None else t.to(DEVICE).requires_grad_() for t in voters(s, "shared"))
    scores, beta = draw(s.b, s.i).to(DEVICE), draw(1, s.j).to(DEVICE)

    def poses(u: Tensor, W: Tensor) -> Tensor:
        return route("heinsen", cr.LinearVotes(u, W), scores, beta).poses

    outputs = poses(u, W), torch.compile(poses, fullgraph=True, backend="aot_eager")(u, W)
    launched.clear()
    eager, compiled = (torch.autograd.grad(out.square().sum(), (u, W)) for out in outputs)
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
    assert launched.count("vote_gradients") == 6


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "per child+bias"])
def test_the_operators_keep_their_promises(whose):
    s = FEW
    arguments = [t if t is None else t.to(DEVICE).requires_grad_() for t in step_arguments(s, whose)]
    weights, beta = draw(s.b, s.i, s.j).exp().to(DEVICE).requires_grad_(), arguments[-1]
    mean, variance = arguments[4:6]
    checks = {"test_utils": ("test_schema", "test_autograd_registration", "test_faketensor")}
    torch.library.opcheck(torch.ops.capsroute.gaussian_step.default, (*arguments, 1e-2), **checks)
    torch.library.opcheck(torch.ops.capsroute.gaussian_density.default, (*arguments[:3], mean, variance), **checks)
    for betas in (None, beta):
        torch.library.opcheck(
            torch.ops.capsroute.gaussian_moments.default, (*arguments[:3], weights, betas, 0.0), **checks
        )


@needs_kernels
def test_a_forced_torch_backend_launches_nothing(launched):
    s = FEW
    scores = draw(s.b, s.i)
    plain = routed_values("heinsen", s, "shared", scores, torch.float32, "torch")
    assert not launched
    for ours, other in zip(routed_values("heinsen", s, "shared", scores, torch.float32), plain):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    assert launched


@needs_kernels
@pytest.mark.parametrize(
    ("why", "name", "u", "W"),
    [
        ("operands are float64", "gaussian_step", torch.ones(1, 2, 2, 2).double(), torch.ones(1, 3, 2, 2).double()),
        ("at most 32 numbers", "gaussian_density", torch.ones(1, 2, 1, 64), torch.ones(1, 3, 64, 2)),
        ("at most 32 numbers", "gaussian_moments", torch.ones(1, 2, 4, 8), torch.ones(1, 3, 8, 12)),
        ("256 products a vote, here 4 x 9 -> 4 x 8", "gaussian_step", torch.ones(1, 2, 4, 9), torch.ones(1, 3, 9, 8)),
        ("at most 512, here 600", "gaussian_step", torch.ones(1, 2, 1, 2), torch.ones(1, 600, 2, 2)),
        ("an operand is empty", "gaussian_moments", torch.ones(0, 2, 2, 2), torch.ones(1, 3, 2, 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_kernel_that_does_not_apply_says_why(why, name, u, W, launched):
    reasons = cr.form.explain(name, u.to(DEVICE), W.to(DEVICE))
    assert [why in reason for reason in reasons] == [True], reasons
    votes = cr.LinearVotes(u.to(DEVICE), W.to(DEVICE), backend="triton")
    if name == "gaussian_density":
        with pytest.raises(ValueError, match=f"does not apply to gaussian_density: .*{why}"):
            votes.log_density(*[torch.ones(1, 3, 1, 2, device=DEVICE)] * 2)
    assert not launched


VISION = Case("heinsen", "Heinsen 2019, smallNORB", 20, 5184, 64, rows=4, k=4, o=4, shared=True)
FULL = [
    VISION,
    Case("heinsen", "odd", 7, 613, 37, rows=3, k=5, o=2),
    Case("em", "Hinton 2018, class capsules", 64, 512, 5, rows=4, k=4, o=4),
    Case("em", "vector poses", 16, 1152, 10, rows=1, k=8, o=16),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", FULL, ids=lambda case: case.name)
def test_full_size_stays_within_the_error_budget(case, dtype, launched):
    budget(case, dtype)
    assert "vote_gradients" in launched


def step_of(case: Case, dtype: torch.dtype = torch.float32):
    tensors = list(case.tensors(dtype, "cuda").values())
    gradient = draw(case.batch, case.parents, case.rows, case.o).to("cuda")
    return forward_backward(case.ours(), tensors, gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [FULL[1], FULL[2]], ids=lambda case: case.name)
def test_a_captured_graph_replays_the_same_numbers(case):
    step = step_of(case)
    eager, replay = step(), capture(step)
    replay()
    for ours, wanted in zip(replay.kept, eager):
        assert torch.equal(ours, wanted)


@pytest.mark.gpu
def test_the_vision_layer_trains_in_little_memory():
    assert peak_mebibytes(step_of(VISION)) <= 250
