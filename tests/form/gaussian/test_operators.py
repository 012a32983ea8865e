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
from capsroute.form.launches import gaussian_votes as plan
from capsroute.form.sizes import Sizes as Plain
from tests.form.gaussian.cases import HARD, draw, equal_to_float64, errors, grouped, no_weight_gives_zeros, voters
from tests.form.kernels import DEVICE, Sizes, keeps_promises, needs_kernels, says_why

BACK = ["by_children", "by_transforms"]
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


def density_arguments(s: Sizes, whose: str) -> list[Tensor | None]:
    return [*voters(s, whose), draw(s.b, s.j, s.a, s.o, seed=4), draw(s.b, s.j, s.a, s.o, seed=5).exp()]


def moments_arguments(s: Sizes, whose: str) -> list[Tensor | None]:
    weights = draw(s.b, s.i, s.j).exp()
    weights[0, 0] = 0.0  # a child that is not there
    return [*voters(s, whose), weights, draw(s.i, s.j)]


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "per child+bias"])
@pytest.mark.parametrize("s", **names)
def test_log_density_and_its_gradients(s, whose, launched):
    equal_to_float64(ops.gaussian_density, gaussian.plain_density, density_arguments(s, whose))
    assert launched == ["make_votes", "density", "make_votes", "density_gradients", *BACK]


@needs_kernels
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("whose", ["shared+bias", "per child"])
@pytest.mark.parametrize("s", **names)
def test_moments_and_their_gradients(s, whose, eps, launched):
    equal_to_float64(ops.gaussian_moments, gaussian.plain_moments, moments_arguments(s, whose), eps)
    assert launched == ["make_votes", "weigh", "believe", "blame", "make_votes", "weights_gradients", *BACK, "by_betas"]


@needs_kernels
def test_tiles_of_parents_and_groups_of_samples(monkeypatch, launched):
    s = SMALL[3]
    held: dict = {"LAST_HELD": 32, "NUMBERS": 1, "LEAST_CHILDREN": 3, "SPREAD": (0, 0)}
    held["MOST_STORED"] = s.i * s.j * s.a * s.o * 4
    for name, number in held.items():
        monkeypatch.setattr(plan, name, number)
    plan.walk.cache_clear()
    assert plan.walk(Plain(*s[1:]), True).grid == (2, 2, 2)
    equal_to_float64(ops.gaussian_density, gaussian.plain_density, density_arguments(s, "shared"))
    equal_to_float64(ops.gaussian_moments, gaussian.plain_moments, moments_arguments(s, "shared"), 0.1)
    assert launched.count("make_votes") == 8
    plan.walk.cache_clear()


@needs_kernels
def test_weights_that_all_parents_share(launched):
    s = SMALL[3]
    weights = draw(s.b, s.i, 1).exp()
    equal_to_float64(ops.gaussian_moments, gaussian.plain_moments, [*voters(s, "shared"), weights, draw(s.i, s.j)], 0.0)
    assert "weights_gradients" in launched


@needs_kernels
def test_no_weight_at_all_gives_zeros(launched):
    no_weight_gives_zeros(ops.gaussian_moments, SMALL[3])
    assert launched


@needs_kernels
@pytest.mark.parametrize("why", HARD)
def test_tight_groups_are_not_lost_in_rounding(why, launched):
    u, W, weights, group = (t.to(DEVICE) for t in grouped(why))
    wide = cr.DenseVotes(cr.LinearVotes(u.double(), W.double()).dense())
    mean, variance = wide.moments(weights.double())
    variance = variance.clamp_min(1e-6)
    density = wide.log_density(mean.float().double(), variance.float().double())
    exact = mean, variance, density[:, torch.arange(len(group)), group]
    launched.clear()
    lazy = cr.LinearVotes(u, W)
    ours, textbook = (errors(votes, weights, group, exact) for votes in (lazy, cr.DenseVotes(lazy.dense())))
    assert launched == ["make_votes", "weigh", "believe", "make_votes", "density"]
    for name in ours:
        assert ours[name] <= 2 * textbook[name] + 1e-7, f"{name}: {ours[name]:.1e} against {textbook[name]:.1e}"


@needs_kernels
def test_operands_of_any_strides(launched):
    def turned(t):
        return t if t is None else t.transpose(0, -1).contiguous().transpose(0, -1)

    for operation, given in (
        (ops.gaussian_density, density_arguments(SMALL[3], "per child+bias")),
        (lambda *t: torch.cat([x.flatten() for x in ops.gaussian_moments(*t, 1e-2)]),
         moments_arguments(SMALL[3], "per child+bias")),
    ):  # fmt: skip
        plain, ours = (
            operation(*[t if t is None else how(t.to(DEVICE)) for t in given]) for how in (lambda t: t, turned)
        )
        assert torch.equal(ours, plain)
    assert launched


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "per child+bias"])
def test_the_operators_keep_their_promises(whose):
    s = SMALL[0]
    given = [t if t is None else t.to(DEVICE).requires_grad_() for t in density_arguments(s, whose)]
    keeps_promises(torch.ops.capsroute.gaussian_density.default, tuple(given))
    *given, beta = [t if t is None else t.to(DEVICE).requires_grad_() for t in moments_arguments(s, whose)]
    for betas in (None, beta):
        keeps_promises(torch.ops.capsroute.gaussian_moments.default, (*given, betas, 0.0))
    *given, beta = [t if t is None else t.to(DEVICE) for t in moments_arguments(SMALL[3], whose)]
    given.append(beta.mT.contiguous().mT)  # of which nobody asks the gradient; its strides are no promise
    *found, statistics, brief = torch.ops.capsroute.gaussian_moments(*given, 0.0)
    grads = [torch.ones_like(found[0]), None, None, None, None, None]
    keeps_promises(torch.ops.capsroute.gaussian_moments_backward.default, (grads, *given, [statistics, brief], 0.0))


@needs_kernels
@pytest.mark.parametrize(
    ("why", "name", "u", "W"),
    [
        ("operands are float64", "gaussian_moments", torch.ones(1, 2, 2, 2).double(), torch.ones(1, 3, 2, 2).double()),
        ("at most 1024 numbers, here 40 x 40", "gaussian_density", torch.ones(1, 2, 40, 2), torch.ones(1, 3, 2, 40)),
        ("an operand is empty", "gaussian_moments", torch.ones(0, 2, 2, 2), torch.ones(1, 3, 2, 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_kernel_that_does_not_apply_says_why(why, name, u, W, launched):
    says_why(why, name, u.to(DEVICE), W.to(DEVICE))
    votes = cr.LinearVotes(u.to(DEVICE), W.to(DEVICE), backend="triton")
    if name == "gaussian_density":
        with pytest.raises(ValueError, match=f"does not apply to gaussian_density: .*{why}"):
            votes.log_density(*[torch.ones(1, 3, 40, 40, device=DEVICE)] * 2)
    assert not launched
