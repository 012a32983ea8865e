"""Routing by Gaussians as one operator over stored votes, against float64: under the interpreter or on a GPU."""

import dataclasses
import math

import pytest
import torch
import torch.utils._python_dispatch
from torch import Tensor

import capsroute as cr
from capsroute.form.gaussian import loop
from capsroute.form.gaussian.iterations import believe
from capsroute.form.gaussian.operators import gaussian_loop
from capsroute.form.gaussian.plain import BAYES, EM, HEINSEN, plain_loop
from capsroute.form.launch import LaunchSequence, kind_of
from capsroute.form.launches import gaussian_votes as plan
from capsroute.form.sizes import Sizes as Plain
from tests.form.gaussian.cases import TINY, draw, outputs_and_gradients, voters
from tests.form.kernels import DEVICE, Sizes, keeps_promises, needs_kernels, says_why
from tests.form.values import Values, distance, faults, operands, results

ORDINARY = Sizes("vector poses", 2, 9, 3, 1, 4, 4)
SMALL = [
    ("heinsen", ORDINARY, "per child+bias", 3),
    ("em", Sizes("matrix poses of odd sizes", 2, 7, 5, 3, 2, 2), "shared+bias", 3),
    ("heinsen", Sizes("one of everything", 1, 1, 1, 1, 1, 1), "shared", 2),
    ("em", Sizes("one iteration", 2, 4, 3, 1, 2, 3), "per child", 1),
    ("em", Sizes("four iterations", 1, 3, 2, 1, 2, 2), "shared", 4),
    ("bayes", ORDINARY, "per child+bias", 3),
    ("bayes", Sizes("one of everything", 1, 1, 1, 1, 1, 1), "shared", 2),
    ("bayes", Sizes("matrix poses, one iteration", 2, 4, 3, 2, 2, 3), "shared", 1),
    ("bayes", Sizes("five parents, four iterations", 1, 3, 5, 1, 2, 3), "per child", 4),
]
KIND = {"em": EM, "heinsen": HEINSEN, "bayes": BAYES}


def arguments(algorithm: str, s: Sizes, whose: str) -> list[Tensor | None]:
    scores = draw(s.b, s.i, seed=3)
    scores[0, 0] = -torch.inf  # a child that is not there
    scores = scores if algorithm == "heinsen" else scores.sigmoid()
    rows = s.i if algorithm == "heinsen" and "per child" in whose else 1
    scale = 0.5 + torch.rand(s.b, 1, generator=torch.Generator().manual_seed(0)) if whose == "shared" else None
    scale = scale if algorithm == "heinsen" else None
    return [*voters(s, whose), scores, draw(rows, s.j, seed=4), draw(rows, s.j, seed=5), scale]


def equal_to_float64(algorithm: str, s: Sizes, whose: str, iterations: int = 3) -> None:
    numbers = ([0.1, 0.2, 0.3, 0.5][:iterations], 1e-2, KIND[algorithm])
    given = arguments(algorithm, s, whose)
    exact = outputs_and_gradients(plain_loop, given, torch.float64, *numbers)
    ours = outputs_and_gradients(gaussian_loop, given, torch.float32, *numbers)
    for index, (mine, wanted) in enumerate(zip(ours, exact, strict=True)):
        assert mine.shape == wanted.shape
        assert (mine.double() - wanted).norm() / wanted.norm().clamp_min(1.0) < TINY, f"output or gradient {index}"


@needs_kernels
@pytest.mark.parametrize(("algorithm", "s", "whose", "iterations"), SMALL, ids=str)
def test_outputs_and_all_gradients(algorithm, s, whose, iterations, launched):
    equal_to_float64(algorithm, s, whose, iterations)
    names = ["make_votes", "whole_forward", "make_votes", "whole_backward", "by_children", "by_transforms"]
    assert launched == [*names, "beta_sums" if algorithm == "heinsen" else "cost_sums"]


@needs_kernels
@pytest.mark.parametrize(("algorithm", "s", "whose", "iterations"), SMALL, ids=str)
def test_iterations_one_after_the_other(algorithm, s, whose, iterations, planned, launched):
    planned(WHOLE=0)
    equal_to_float64(algorithm, s, whose, iterations)
    names = ["make_votes", "begin", "believe", *["route", "believe"] * (iterations - 1)]
    names += ["make_votes", *["blame", "slopes"] * (iterations - 1), "blame", "last_gradients"]
    names += ["by_children", "by_transforms"]
    assert launched == [*names, "beta_sums" if algorithm == "heinsen" else "cost_sums"]


@needs_kernels
def test_shares_of_few_children_are_no_more_than_their_votes():
    s = Sizes("many parents", 1, 8, 32, 1, 2, 32)
    assert plan.LEFT * plan.walk(Plain(*s[1:])).splits <= s.i
    equal_to_float64("heinsen", s, "shared")


@needs_kernels
@pytest.mark.parametrize("numbers", [{}, {"WHOLE": 0}, {"WHOLE": 0, "LAST_HELD": 8}], ids=str)
@pytest.mark.parametrize("algorithm", KIND)
def test_scores_and_betas_are_read_and_answered_in_their_own_dtype(algorithm, numbers, planned):
    planned(**numbers)
    s = ORDINARY._replace(i=4)
    given = [t if t is None else t.to(DEVICE) for t in arguments(algorithm, s, "per child")]
    narrow = [t if t is None or n < 3 else t.bfloat16() for n, t in enumerate(given)]
    found = []
    for function, tensors in ((gaussian_loop, narrow), (plain_loop, [t if t is None else t.double() for t in narrow])):
        leaves = [t if t is None else t.detach().clone().requires_grad_() for t in tensors]
        poses, _, logits, _ = function(*leaves, [0.1, 0.2, 0.3], 1e-2, KIND[algorithm])
        wanted = [t for t in leaves if t is not None]
        found.append((poses, *torch.autograd.grad(poses.square().sum() + logits.sum(), wanted)))
    for mine, exact, kind in zip(*found, ["poses", *(t for t in narrow if t is not None)], strict=True):
        own = torch.float32 if isinstance(kind, str) else kind.dtype
        assert mine.dtype == own
        limit = TINY if own == torch.float32 else 2**-7  # the interpreter cuts digits off
        assert (mine.double() - exact).norm() / exact.norm() < limit


@needs_kernels
@pytest.mark.parametrize("algorithm", KIND)
def test_gradients_have_the_dtype_that_a_compiled_graph_was_promised(algorithm, planned):
    """Of two tiles of parents, whose parts are added up in float32; autograd would round them, a graph does not."""
    planned(WHOLE=0, LAST_HELD=8)
    given = arguments(algorithm, ORDINARY._replace(i=4), "per child")
    given = [t if t is None else t.to(DEVICE, torch.float32 if n < 3 else torch.bfloat16) for n, t in enumerate(given)]
    numbers = [0.1, 0.2], 1e-2, KIND[algorithm]
    means, _, _, *kept = loop.loop_forward(*given, *numbers)
    found = loop.loop_backward((means, None, None, None), tuple(given), tuple(kept), *numbers)
    assert [g.dtype for g, t in zip(found, given) if t is not None] == [t.dtype for t in given if t is not None]


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """What torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@needs_kernels
@pytest.mark.parametrize("algorithm", KIND)
def test_torch_widens_nothing_on_the_way(algorithm, launched):
    s = ORDINARY._replace(i=4)
    leaves = [t.to(DEVICE).bfloat16().requires_grad_() for t in arguments(algorithm, s, "per child") if t is not None]
    with Operators() as asked:
        if algorithm != "heinsen":
            function = cr.em_routing if algorithm == "em" else cr.vb_routing
            poses = function(cr.LinearVotes(*leaves[:2]), leaves[2], leaves[3][0], leaves[4][0]).poses
        else:
            poses = cr.heinsen_routing(cr.LinearVotes(*leaves[:2]), *leaves[2:]).poses
        torch.autograd.grad(poses, leaves, torch.ones_like(poses))
    assert launched
    assert not {"_to_copy", "sigmoid_backward", "mul"} & set(asked.names), asked.names
    assert asked.names.count("sigmoid") == (algorithm == "em")  # of its parents


@needs_kernels
@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("infinite", [4, 5], ids=["use", "ignore"])
@pytest.mark.parametrize("numbers", [{}, {"WHOLE": 0}, {"WHOLE": 0, "MOST_HELD": 8}], ids=str)
def test_infinite_betas_are_no_numbers_where_they_are_none_in_torch(numbers, infinite, iterations, planned, launched):
    planned(**numbers)
    given = [t if t is None else t.to(DEVICE) for t in arguments("heinsen", ORDINARY._replace(b=1), "per child")]
    given[3] = given[3].clamp_min(-5)  # every child is there
    for value in (torch.inf, -torch.inf):
        given[infinite][2, 1] = value
        found = []
        for backend in ("auto", "torch"):
            routed = cr.heinsen_routing(cr.LinearVotes(*given[:2], backend=backend), *given[3:6], iterations)
            found.append((routed.scores, routed.poses, routed.coefficients))
        for ours, plain in zip(*found):
            assert torch.equal(ours.isnan(), plain.isnan())
        assert not found[0][0].isfinite().all()
    assert launched


@needs_kernels
@pytest.mark.parametrize("shared", [0, 1])
def test_betas_of_which_one_is_shared(shared, launched):
    s = ORDINARY._replace(i=4)
    u, W, _, scores, *betas, _ = (t if t is None else t.to(DEVICE) for t in arguments("heinsen", s, "per child"))
    betas[shared] = betas[shared][:1]

    def gradients(dtype, backend):
        leaves = [t.to(dtype).requires_grad_() for t in (u, W, scores, *betas)]
        routed = cr.heinsen_routing(cr.LinearVotes(*leaves[:2], backend=backend), *leaves[2:])
        return torch.autograd.grad(routed.poses.square().sum() + routed.scores.square().sum(), leaves)

    ours = gradients(torch.float32, "auto")
    assert "whole_forward" in launched
    for mine, wanted in zip(ours, gradients(torch.float64, "torch")):
        assert mine.shape == wanted.shape
        assert (mine.double() - wanted).norm() / wanted.norm() < 1e-4


@needs_kernels
@pytest.mark.parametrize("at_once", [True, False])
def test_several_programs_share_the_children_of_a_sample(at_once, planned, launched, monkeypatch):
    planned(WHOLE=0, SPREAD=(0, 0), NUMBERS=1, LEAST_CHILDREN=3)
    assert plan.walk(Plain(*ORDINARY[1:])).grid == (2, 3, 1)
    if not at_once:
        monkeypatch.setattr(loop, "put_together", lambda s, splits: plan.put_together(s, 2))
    equal_to_float64("heinsen", ORDINARY, "per child+bias")
    assert "whole_forward" not in launched


@needs_kernels
@pytest.mark.parametrize(("algorithm", "spread"), [("heinsen", (0, 0)), ("em", plan.SPREAD)])
def test_the_first_pass_walks_over_tiles_of_columns(algorithm, spread, planned):
    """Of which the last is not full, nor is the last tile of children."""
    planned(WHOLE=0, FIRST_HELD=8, SPREAD=spread, NUMBERS=1, LEAST_CHILDREN=6, SPREAD_NUMBERS=1, SPREAD_CHILDREN=6)
    s = Sizes("odd", 1, 13, 3, 1, 1, 3)
    splits = plan.walk(Plain(*s[1:])).splits
    first = plan.first_walk(Plain(*s[1:]), splits)
    assert first.grid == (1, splits, 2)
    assert min(splits, first.tiles) > 1
    assert first.options["IC"] * first.tiles * splits > s.i
    equal_to_float64(algorithm, s, "per child", 2)


FULL = [(25, 8192, 10, 1, 8, 16), (4, 8192, 32, 1, 16, 32), (256, 512, 10, 6, 6, 6), (1, 8192, 100, 4, 4, 4)]


@needs_kernels
@pytest.mark.parametrize("sizes", FULL, ids=str)
def test_all_programs_of_a_walk_run_at_once(planned, sizes):
    """A third of them came second, and took as long again: of 184 registers a thread, eight warps fit a core."""
    planned()
    s = Plain(*sizes)
    walks = [plan.route_walk(s), plan.slopes_walk(s), plan.last_walk(s, 3)]
    for launch in [*walks, plan.first_walk(s, walks[0].splits)]:
        warps = launch.options["num_warps"]
        programs = -(-math.prod(launch.grid) // plan.CORES)
        held = 4 * (plan.REGISTERS // (32 * launch.options.get("maxnreg", 255)))
        few = warps == 1 and programs > plan.FIRST_WARPS
        assert programs * warps <= held or few or warps >= 8
        assert warps < 8 or "maxnreg" not in launch.options  # numbers went to memory instead
    assert math.prod(walks[0].grid) * walks[0].options["num_warps"] > 0.7 * plan.CORES * plan.WARPS[0]


@needs_kernels
def test_products_are_summed_as_they_are_by_one_thread_alone(planned):
    planned()
    for parents, rows, alone in ((10, 1, True), (2, 1, False), (2, 8, True)):
        s = Plain(256, 512, parents, rows, 8, 16)
        assert plan.route_walk(s).options["EACH"] == alone
        assert plan.first_walk(s, 4).options["EACH"] == (parents * rows * 16 > 64)


@needs_kernels
def test_small_layers_are_spread_over_the_chip(planned):
    """A thread runs through code for few numbers: for 32 of them it took four times as long."""
    planned()
    small = Plain(32, 32, 10, 1, 16, 32)
    for launch in (plan.walk(small), plan.walk(small, True, T=3), plan.put_together(small, plan.walk(small).splits)):
        o = launch.options
        assert o["IC"] * o["JT"] * o["FP"] <= 8 * 32 * o["num_warps"]
        assert launch.grid[0] * launch.grid[1] > plan.CORES
    large = small._replace(b=256, i=512)
    o = plan.walk(large).options
    assert o["IC"] * o["JT"] * o["FP"] == plan.NUMBERS * 32 * o["num_warps"]


@needs_kernels
def test_all_iterations_over_several_tiles_of_children(planned, monkeypatch):
    """The last tile is not full."""
    s = ORDINARY._replace(i=5)
    few = plan.whole_walk(Plain(*s[1:]), 3)
    few = dataclasses.replace(few, tiles=3, options={**few.options, "IC": 2})
    monkeypatch.setattr(loop, "whole_walk", lambda *_: few)
    equal_to_float64("heinsen", s, "per child+bias")
    equal_to_float64("em", s, "shared")


@needs_kernels
def test_the_last_pass_walks_over_tiles_of_parents(planned, launched):
    planned(WHOLE=0, LAST_HELD=8)
    assert plan.walk(Plain(*ORDINARY[1:]), True, T=3).grid[2] == 2
    equal_to_float64("em", ORDINARY._replace(i=4), "per child")


@needs_kernels
@pytest.mark.parametrize("rows", [1, 4])
def test_several_programs_share_the_samples_of_a_sum_over_betas(rows, planned):
    planned(CORES=1)
    s, T = Plain(25, 4, 33, 1, 1, 1), 3
    launch = plan.over_betas(s, T)
    assert (launch.grid, launch.tiles) == ((1, 1, 2), 2)
    gate, shares, table = draw(s.b, s.i), draw(T - 1, s.b, s.i, s.j), draw(T, s.b, 3, s.j)
    gate, shares, table = (t.to(DEVICE) for t in (gate, shares, table))
    run = LaunchSequence({}, kind_of(gate, shares, table))
    found = loop._betas(run, s, shares, gate, table, *[gate.new_empty(rows, s.j)] * 2, T)
    R = torch.cat([torch.full_like(shares[:1], 1 / s.j), shares]).double()
    wanted = [torch.einsum("bi,tbij,tbj->ij", gate.double(), x, table[:, :, 1].double()) for x in (R, R - 1)]
    for mine, exact in zip(found, wanted):
        exact = exact if rows > 1 else exact.sum(0, keepdim=True)
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("numbers", [{}, {"WHOLE": 0}], ids=str)
def test_samples_whose_votes_do_not_fit_at_once(numbers, planned, launched):
    s = ORDINARY._replace(b=3, i=4)
    planned(MOST_STORED=2 * s.i * s.j * s.a * s.o * 4, **numbers)
    assert plan.samples_at_once(Plain(*s[1:]), shared=True) == 2
    assert plan.samples_at_once(Plain(*s[1:]), shared=False) == 3
    equal_to_float64("heinsen", s, "shared+bias")
    assert launched.count("make_votes") == 4


@needs_kernels
def test_weights_that_underflow_leave_the_mean_finite(launched):
    """A parent that explains next to nothing: one over its weight is infinite in float32, its mean is not."""
    u = torch.tensor([-1.0, 0.5, 9.6, 9.5, 9.4]).view(1, 5, 1, 1).to(DEVICE)
    W = torch.tensor([[0.1, 1.0]]).view(1, 2, 1, 1).to(DEVICE)
    gate, beta = torch.full((1, 5), 1e-30, device=DEVICE), torch.zeros(1, 2, device=DEVICE)
    found = gaussian_loop(u, W, None, gate, beta, beta, None, [1.0] * 3, 1e-4, EM)
    exact = plain_loop(*(t.double() for t in (u, W)), None, *(t.double() for t in (gate, beta, beta)), None, [1.0] * 3,
                       1e-4, EM)  # fmt: skip
    assert launched
    for mine, wanted in zip(found, exact):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-3, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("whole", [True, False])
def test_log_densities_that_all_have_a_large_constant(whole, planned, launched):
    """Spreads of 1e12 in poses of 16 numbers: beside half of their logarithms, 230, squares would lose last digits."""
    if not whole:
        planned(WHOLE=0)
    case = Values("Heinsen", "mixed numbers", "huge", 99)
    tensors = [t.to(DEVICE) for t in operands(case)]
    ours, exact = results(case, tensors, "auto"), results(case, [t.double() for t in tensors], "torch")
    assert ("whole_forward" in launched) == whole
    assert max(map(distance, ours, exact)) < 1.5e-4  # plain float32: 3e-4


@needs_kernels
def test_a_child_that_has_all_but_all_the_weight():
    """The others weigh 1e-30 and lie 1e18 away: a rounding of the mean would be a larger variance than they make."""
    assert [str(fault) for fault in faults(Values("EM", "vast", "mixed numbers", 137), DEVICE)] == []


@needs_kernels
def test_a_gradient_that_all_parents_have_alike():
    """Shares sum to one but for a rounding: of a gradient so large, twenty times what plain float32 is off by."""
    assert [str(fault) for fault in faults(Values("VB", "plain", "mixed capsules", 51), DEVICE)] == []


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "per child+bias"])
def test_the_operator_keeps_its_promises(whose):
    given = [t if t is None else t.to(DEVICE).requires_grad_() for t in arguments("heinsen", ORDINARY, whose)]
    keeps_promises(torch.ops.capsroute.gaussian_loop.default, (*given, [1.0, 1.0], 1e-2, HEINSEN))


@needs_kernels
@pytest.mark.parametrize(
    ("why", "u", "W"),
    [
        ("operands are float64", torch.ones(1, 2, 2, 2).double(), torch.ones(1, 3, 2, 2).double()),
        ("at most 1024 numbers, here 25 x 41", torch.ones(1, 2, 25, 2), torch.ones(1, 3, 2, 41)),
        ("an operand is empty", torch.ones(0, 2, 2, 2), torch.ones(1, 3, 2, 2)),
        ("a tensor has 2^31", torch.ones(1, 1, 32, 1).expand(1 << 20, 1, 32, 1), torch.ones(1, 2, 1, 32)),
        ("than 65,535", torch.ones(1).expand(1, 2, 1, 2), torch.ones(1).expand(2, 65_536, 2, 2)),
        ("than 65,535", torch.ones(1).expand(1, 1_048_561, 1, 2), torch.ones(1).expand(1, 2, 2, 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_says_why_it_does_not_apply(why, u, W):
    says_why(why, "gaussian_loop", u.to(DEVICE), W.to(DEVICE))


@pytest.mark.slow
@needs_kernels
def test_statistics_of_2_to_the_31_numbers_and_more_are_found():
    """Of four iterations of many samples; one sample is put together. Memory that nothing is written to is not used."""
    B, t, S = 1 << 28, 3, 2
    statistics, brief, rows, few = (torch.empty(n * B + 9, device=DEVICE) for n in (9 + 3, 9 + 3, 3 + 3, 2 + 2))
    for share in range(S):
        rows[3 * share * B : 3 * share * B + 3] = torch.tensor([1.0 + share, 0.0, 0.5])  # mean, rest, square
        few[2 * share * B : 2 * share * B + 2] = torch.tensor([1.0, 0.5])  # weight, benefit
    mean, variance, logit = torch.empty(3, 1, device=DEVICE)
    options = {"F": 1, "FP": 1, "IC": 2, "JT": 1, "KIND": HEINSEN, "ONCE": True, "SCALE": False, "LAST": True}
    args = (rows, rows, rows, rows, few, statistics, brief, mean, variance, logit, 0, B, 1, S, t, 1.0, 0.0)
    believe.jit[(1, 1, 1)](*args, **options)
    torch.testing.assert_close(statistics[9 * B : 9 * B + 2].tolist(), [1.5, 0.75])
    torch.testing.assert_close(brief[9 * B : 9 * B + 2].tolist(), [2.0, 1.0])


PATHS = {"one kernel": {}, "walks": {"WHOLE": 0}, "columns": {"WHOLE": 0, "MOST_HELD": 0}}


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("algorithm", KIND)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_shows_wherever_it_shows_in_the_plain_form(planned, path, algorithm, value):
    """A minimum or maximum that drops NaN gave finite scores and variances, and made up the shares of other parents."""
    planned(**PATHS[path])
    u, W, bias, scores, use, other, scale = arguments(algorithm, ORDINARY, "per child+bias")
    scores[0, 0] = 0.5
    numbers = ([0.1, 0.2, 0.3], 1e-2, KIND[algorithm])
    for broken in ((0, u), (1, W)):
        given = [u, W, bias, scores, use, other, scale]
        given[broken[0]] = broken[1].clone()
        given[broken[0]][0, 1, 0, 0] = value
        given = [None if t is None else t.to(DEVICE) for t in given]
        for mine, wanted in zip(gaussian_loop(*given, *numbers), plain_loop(*given, *numbers), strict=True):
            assert torch.equal(mine.isfinite(), wanted.isfinite())


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
def test_a_gradient_that_is_no_number_shows_in_that_of_the_scores(planned, path):
    """Cut off to the largest number there is, it was a finite gradient."""
    planned(**PATHS[path])
    given = [None if t is None else t.to(DEVICE) for t in arguments("em", ORDINARY, "per child")]
    scores = given[3].requires_grad_()
    means = gaussian_loop(*given, [0.1, 0.2, 0.3], 1e-2, EM)[0]
    means.backward(torch.full_like(means, torch.nan))
    assert scores.grad.isnan().all()
