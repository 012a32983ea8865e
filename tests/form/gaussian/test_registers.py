"""Steps that make votes in registers against float64: on a GPU, or under Triton's interpreter in its own process."""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.form import cost
from capsroute.form.gaussian import operators as ops
from capsroute.form.gaussian import plain as gaussian
from tests.form.gaussian.cases import draw, equal_to_float64, no_weight_gives_zeros, outputs_and_gradients, voters
from tests.form.kernels import DEVICE, Sizes, keeps_promises, needs_kernels, says_why
from tests.form.values import Values, faults

SMALL = [
    Sizes("one child", 3, 1, 2, 1, 2, 3),
    Sizes("one parent", 2, 5, 1, 2, 3, 2),
    Sizes("primes", 2, 7, 3, 3, 2, 5),
    Sizes("4x4 poses", 2, 5, 3, 4, 4, 4),
    Sizes("two rows of a pose in each of three tiles", 2, 5, 3, 6, 1, 2),
    Sizes("more parents than a warp has lanes, not a multiple", 1, 3, 67, 1, 2, 2),
    Sizes("children that several programs share", 1, 9, 33, 1, 1, 2),
]
names = {"argvalues": SMALL, "ids": [s.why for s in SMALL]}


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch):
    """What is large enough is what there is."""
    monkeypatch.setattr(cost, "LEAST_VOTES", 0)
    monkeypatch.setattr("capsroute.form.dispatch._known", {})


def step_arguments(s: Sizes, whose: str) -> list[Tensor | None]:
    gate = draw(s.b, s.i, seed=3).sigmoid()
    gate[0, 0] = 0.0  # a child that is not there
    mean, variance = draw(s.b, s.j, s.a, s.o, seed=4), draw(s.b, s.j, s.a, s.o, seed=5).exp()
    return [*voters(s, whose), gate, mean, variance, draw(s.b, s.j, seed=6), draw(s.i, s.j, seed=7)]


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "shared+bias"])
@pytest.mark.parametrize("s", **names)
def test_a_step_and_all_its_gradients(s, whose, launched):
    if s.i == 1:
        whose = whose.replace("shared", "per child")  # one child: the same
    equal_to_float64(ops.gaussian_step, gaussian.plain_step, step_arguments(s, whose), 1e-2)
    assert launched.count("quadratic") == 2
    for name in ("weighted_moments", "merge_moments", "vote_gradients", "parents_gradient", "by_betas"):
        assert launched.count(name) == 1


@needs_kernels
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_moments_and_their_gradients(eps, alike, launched):
    s = SMALL[2]
    weights = draw(s.b, s.i, 1 if alike else s.j).exp()
    arguments = [*voters(s, "shared+bias"), weights, draw(s.i, s.j)]
    equal_to_float64(ops.first_moments, gaussian.plain_moments, arguments, eps)
    assert {"weighted_moments", "quadratic", "vote_gradients"} <= set(launched)


@needs_kernels
@pytest.mark.parametrize("sizes", [(3, 70, 3), (1, 40, 67), (9, 1, 1)], ids=str)
def test_what_betas_cost_and_its_gradients(sizes, launched, monkeypatch):
    """Over several tiles of samples, children and parents, of which the last are not full."""
    from capsroute.form.launches import gaussian_votes as plan

    monkeypatch.setattr(plan, "BETAS_HELD", 256)
    monkeypatch.setattr(plan, "CORES", 1)  # so that a program walks
    plan.betas_tile.cache_clear()
    plan.betas_walk.cache_clear()
    b, i, j = sizes
    equal_to_float64(ops.weighted_betas, gaussian.plain_sums, [draw(b, i), draw(i, j)])
    split = ["add_parts"] if plan.betas_walk(b, i, j).splits > 1 else []
    assert launched == ["sum_betas", *split, "by_gates", "by_betas"]
    plan.betas_tile.cache_clear()
    plan.betas_walk.cache_clear()


@needs_kernels
def test_a_gradient_by_weights_that_overflows_where_they_are_next_to_nothing():
    """Votes of 1e15, and children whose weights are e^-80: times that the gradient is finite, as in the plain form."""
    assert [str(fault) for fault in faults(Values("Heinsen, shared", "plain", "vast", 62), DEVICE)] == []


@needs_kernels
def test_a_child_that_is_no_number_shows_where_it_does_over_stored_votes(monkeypatch):
    """Shares of other children are numbers; the plain form of shared transforms has none, since it moves all children
    by their mean before it sums them."""
    monkeypatch.setattr(gaussian, "_by_moments", lambda u, W: False)
    arguments = step_arguments(SMALL[2], "shared+bias")
    arguments[0][1, 3, 0, 0] = torch.nan
    ours, stored = (
        outputs_and_gradients(step, arguments, torch.float32, 1e-2) for step in (ops.gaussian_step, gaussian.plain_step)
    )
    for mine, wanted in zip(ours, stored, strict=True):
        assert torch.equal(mine.isnan(), wanted.isnan())


@needs_kernels
def test_a_grid_has_room_for_a_million_children(monkeypatch):
    """A tile holds no fewer than 16 children of four samples and 64 parents; here one, of 70,000."""
    from capsroute.form.gaussian.registers import betas
    from capsroute.form.launches import gaussian_votes as plan

    monkeypatch.setattr(plan, "BETAS_HELD", 256)
    plan.betas_tile.cache_clear()
    grids = []
    for name in ("by_gates", "by_betas"):
        monkeypatch.setattr(betas, name, lambda launch, *_, **__: grids.append(launch.grid))
    given = [torch.zeros(shape, device=DEVICE) for shape in ((5, 70_000), (70_000, 64))]
    betas.sums_backward((torch.zeros(5, 64, device=DEVICE),), tuple(given), ())
    assert grids[0] == (2 * 70_000, 1, 1)
    assert max(size for found in grids for size in found[1:]) <= 65_535
    plan.betas_tile.cache_clear()
    one = torch.ones((), device=DEVICE)
    says_why("more parents by 64 than 65,535", "weighted_betas", one.expand(1, 2), one.expand(2, 64 * 65_535 + 1))


@needs_kernels
def test_samples_of_a_gradient_by_betas_are_those_of_the_plane(launched):
    """A plane of any strides, weighed by gates, over more samples than a program takes at once."""
    from capsroute.form.gaussian.registers.betas import betas_gradient

    plane, gate, dots = draw(11, 6, 5).transpose(1, 2).to(DEVICE), draw(11, 5).to(DEVICE), draw(11, 6).to(DEVICE)
    found = betas_gradient(plane, gate, draw(5, 6).to(DEVICE), dots)
    wanted = torch.einsum("bij,bi,bj->ij", *(t.double() for t in (plane, gate, dots)))
    assert launched == ["by_betas"]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)


@needs_kernels
def test_no_weight_at_all_gives_zeros(launched):
    no_weight_gives_zeros(ops.first_moments, SMALL[2])
    assert launched


@needs_kernels
@pytest.mark.parametrize("routing", ["em", "heinsen"])
def test_routing_takes_them_where_layers_are_large(routing, launched):
    u, W = draw(2, 6, 4, 4).to(DEVICE), draw(1, 3, 4, 4, seed=1).to(DEVICE)
    scores, betas = draw(2, 6, seed=2).sigmoid().to(DEVICE), draw(2, 3, seed=3).to(DEVICE)

    def routed(votes):
        beta = betas if routing == "em" else betas.unsqueeze(1)
        return getattr(cr, f"{routing}_routing")(votes, scores, *beta.unbind(0)).poses

    leaves = [t.clone().requires_grad_() for t in (u, W)]
    ours = torch.autograd.grad(routed(cr.LinearVotes(*leaves)).square().sum(), leaves)
    assert launched.count("quadratic") == 2 + 3  # two steps; back through them and the first moments
    assert not {"route", "whole_forward"} & set(launched)
    wide = [t.double().requires_grad_() for t in (u, W)]
    scores, betas = scores.double(), betas.double()
    exact = torch.autograd.grad(routed(cr.LinearVotes(*wide, backend="torch")).square().sum(), wide)
    for mine, wanted in zip(ours, exact):
        assert (mine.double() - wanted).norm() / wanted.norm() < 1e-4


@needs_kernels
def test_betas_of_each_child_go_back_without_a_product_of_torch(launched):
    u, W = draw(2, 6, 4, 4).to(DEVICE), draw(1, 3, 4, 4, seed=1).to(DEVICE)
    scores, betas = draw(2, 6, seed=2).to(DEVICE), draw(2, 6, 3, seed=3).to(DEVICE)

    def gradients(dtype, backend):
        leaves = [t.to(dtype).requires_grad_() for t in (u, W, scores, *betas)]
        routed = cr.heinsen_routing(cr.LinearVotes(*leaves[:2], backend=backend), *leaves[2:])
        return torch.autograd.grad(routed.poses.square().sum() + routed.scores.square().sum(), leaves)

    ours = gradients(torch.float32, "auto")
    assert launched.count("sum_betas") == launched.count("by_gates") == 1
    assert launched.count("by_betas") == 4  # of three iterations, and of what ignoring all costs
    for mine, wanted in zip(ours, gradients(torch.float64, "torch")):
        assert (mine.double() - wanted).norm() / wanted.norm() < 1e-4


@pytest.mark.parametrize(
    ("sizes", "made"),
    [
        ((20, 5184, 64, 4, 4, 4), True),
        ((20, 512, 64, 4, 4, 4), False),
        ((64, 9000, 64, 1, 16, 32), False),
        ((256, 8192, 10, 1, 8, 16), False),
    ],
)
def test_large_layers_of_small_poses_make_votes_in_registers(monkeypatch, sizes, made):
    from capsroute.form.sizes import Sizes as Letters

    monkeypatch.undo()
    assert cost.makes_votes(Letters(*sizes), shared=True) == made
    assert not cost.makes_votes(Letters(*sizes), shared=False)


@needs_kernels
@pytest.mark.parametrize("whose", ["shared", "shared+bias"])
def test_the_operators_keep_their_promises(whose):
    """A compiler lays out what is around them by the strides of the fakes, forward and back."""
    given = [t if t is None else t.to(DEVICE) for t in step_arguments(SMALL[2], whose)]
    for beta in (None, given[-1]):
        weights = given[3].unsqueeze(2)
        for name, operands in (("first_moments", [*given[:3], weights, beta]), ("gaussian_step", [*given[:7], beta])):
            leaves = [t if t is None else t.clone().requires_grad_() for t in operands]
            keeps_promises(getattr(torch.ops.capsroute, name).default, (*leaves, 1e-2))
            found = list(getattr(torch.ops.capsroute, name)(*operands, 1e-2))
            grads = [torch.ones_like(t) if t.numel() else None for t in found]
            backward = getattr(torch.ops.capsroute, f"{name}_backward").default
            keeps_promises(backward, (grads, *operands, found[: getattr(ops, name).kept.stop], 1e-2))


@needs_kernels
@pytest.mark.parametrize(
    ("u", "W"),
    [((65536, 31, 4, 4), (1, 1024, 4, 4)), ((65536, 992, 4, 8), (1, 33, 8, 1))],
    ids=["tables of parents", "gradients of children, of two tiles of parents"],
)
def test_what_32_bit_offsets_do_not_reach_is_refused(monkeypatch, u, W):
    monkeypatch.undo()
    one = torch.ones((), device=DEVICE)
    says_why("2^31 numbers or more", "gaussian_step", one.expand(u), one.expand(W))


@needs_kernels
def test_who_insists_on_kernels_gets_those_of_steps_where_the_loop_has_none(launched):
    u, W, _ = (t if t is None else t.to(DEVICE) for t in voters(SMALL[2], "shared"))
    zeros = torch.zeros(SMALL[2].j, device=DEVICE)
    cr.em_routing(cr.LinearVotes(u, W, backend="triton"), torch.ones(u.shape[:2], device=DEVICE), zeros, zeros)
    assert "quadratic" in launched
