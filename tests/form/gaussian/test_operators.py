"""The Gaussian kernels against float64: on a GPU, or under Triton's interpreter in a process of its own.

Error budget: at most twice as far from float64 as the textbook form in plain torch of the same dtype, three times for
gradients.
"""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.form.gaussian import operators as ops
from capsroute.form.gaussian import plain as gaussian
from tests.form.gaussian.cases import HARD, TINY, draw, errors, grouped, large, outputs_and_gradients, voters
from tests.form.kernels import DEVICE, INTERPRETED, Sizes, needs_kernels

SMALL = [
    Sizes("one child", 3, 1, 2, 1, 2, 3),
    Sizes("one parent", 2, 5, 1, 2, 3, 2),
    Sizes("one of everything", 1, 1, 1, 1, 1, 1),
    Sizes("primes", 2, 7, 3, 3, 2, 5),
    Sizes("4x4 poses", 2, 5, 3, 4, 4, 4),
    Sizes("more parents than a warp has lanes, not a multiple", 1, 3, 67, 1, 2, 2),
    Sizes("children that several programs share", 1, 9, 33, 1, 1, 2),
]
names = {"argvalues": SMALL, "ids": [s.why for s in SMALL]}
WHOSE = ("shared", "per child", "shared+bias", "per child+bias")


@pytest.fixture
def large_tiles(monkeypatch):
    """Many children in a tile: the interpreter's time goes by the tile."""
    from capsroute.form.gaussian import plan as gaussian_plan

    for name, (parents, _, programs) in gaussian_plan.TILES.items() if INTERPRETED else ():
        monkeypatch.setitem(gaussian_plan.TILES, name, (parents, 64, programs))
    gaussian_plan.gaussian_launch.cache_clear()
    yield
    gaussian_plan.gaussian_launch.cache_clear()


def step_arguments(s: Sizes, whose: str) -> list[Tensor | None]:
    gate = draw(s.b, s.i, seed=3).sigmoid()
    gate[0, 0] = 0.0  # a child that is not there
    mean, variance = draw(s.b, s.j, s.a, s.o, seed=4), draw(s.b, s.j, s.a, s.o, seed=5).exp()
    return [*voters(s, whose), gate, mean, variance, draw(s.b, s.j, seed=6), draw(s.i, s.j, seed=7)]


def equal_to_float64(kernel, plain, arguments: list, *numbers: float) -> None:
    exact = outputs_and_gradients(plain, arguments, torch.float64, *numbers)
    ours = outputs_and_gradients(kernel, arguments, torch.float32, *numbers)
    for index, (mine, wanted) in enumerate(zip(ours, exact, strict=True)):
        assert mine.shape == wanted.shape
        # Where a softmax has one parent its gradient is zero: measured against one.
        distance = (mine.double() - wanted).norm() / wanted.norm().clamp_min(1.0)
        assert distance < TINY, f"output or gradient {index}: {distance:.1e}"


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "per child+bias"])
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
@pytest.mark.parametrize("why", HARD)
def test_tight_groups_are_not_lost_in_rounding(why, launched, large_tiles):
    u, W, weights, group = (t.to(DEVICE) for t in grouped(why))
    wide = cr.DenseVotes(cr.LinearVotes(u.double(), W.double()).dense())
    mean, variance = wide.moments(weights.double())
    variance = variance.clamp_min(1e-6)
    density = wide.log_density(mean.float().double(), variance.float().double())
    exact = mean, variance, density[:, torch.arange(len(group)), group]
    launched.clear()
    lazy = cr.LinearVotes(u, W)
    ours, textbook = (errors(votes, weights, group, exact) for votes in (lazy, cr.DenseVotes(lazy.dense())))
    assert large(launched) == ["weighted_moments", "quadratic"]
    for name in ours:
        assert ours[name] <= 2 * textbook[name] + 1e-7, f"{name}: {ours[name]:.1e} against {textbook[name]:.1e}"


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
@pytest.mark.parametrize("whose", ["shared", "per child+bias"])
def test_the_operators_keep_their_promises(whose):
    s = SMALL[0]
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
@pytest.mark.parametrize(
    ("why", "name", "u", "W"),
    [
        ("operands are float64", "gaussian_step", torch.ones(1, 2, 2, 2).double(), torch.ones(1, 3, 2, 2).double()),
        ("or 40 numbers of votes", "gaussian_density", torch.ones(1, 2, 1, 2), torch.ones(1, 3, 2, 48)),
        ("here 4 x 8 -> 4 x 12", "gaussian_moments", torch.ones(1, 2, 4, 8), torch.ones(1, 3, 8, 12)),
        ("at most 1024, here 1200", "gaussian_step", torch.ones(1, 2, 1, 2), torch.ones(1, 1200, 2, 2)),
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
            votes.log_density(*[torch.ones(1, 3, 1, 48, device=DEVICE)] * 2)
    assert not launched
