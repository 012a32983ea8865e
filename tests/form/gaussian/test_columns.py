"""Routing by Gaussians for more parents than a program holds, against float64: under the interpreter or on a GPU."""

import dataclasses

import pytest
import torch

pytest.importorskip("triton")

from capsroute.form.gaussian import loop
from capsroute.form.gaussian.operators import gaussian_loop
from capsroute.form.gaussian.plain import BAYES, EM, plain_loop
from capsroute.form.launches import gaussian_votes as plan
from capsroute.form.sizes import Sizes as Plain
from tests.form.gaussian.cases import HARD, grouped, outputs_and_gradients
from tests.form.gaussian.test_loop import ORDINARY, SMALL, arguments, equal_to_float64
from tests.form.kernels import DEVICE, Sizes, needs_kernels
from tests.form.values import Values, distance, faults, in_columns, operands, results

MANY = ORDINARY._replace(b=1, j=5)


@pytest.fixture
def tiled(planned):
    """Tiles of two parents of ORDINARY, and steps over four children: of the last there is one."""
    planned(COLUMN=8, TOGETHER=2, ROW=2)
    with in_columns():
        yield


@needs_kernels
@pytest.mark.parametrize(("algorithm", "s", "whose", "iterations"), SMALL, ids=str)
def test_outputs_and_all_gradients(algorithm, s, whose, iterations, tiled, launched):
    equal_to_float64(algorithm, s, whose, iterations)
    names = ["make_votes", *["fit_columns", "share_plane"] * (iterations - 1), "fit_columns"]
    names += ["make_votes", *["blame_columns", "slope_plane"] * (iterations - 1), "blame_columns", "last_gradients"]
    names += ["by_children", "by_transforms"]
    assert launched == [*names, "beta_sums" if algorithm == "heinsen" else "cost_sums"]


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2])
def test_several_tiles_of_parents_and_steps_over_children(rows, tiled, monkeypatch):
    """Rows of a tile keep sums of their own."""
    planned = plan.columns(Plain(*MANY[1:]))
    assert (planned.grid, planned.tiles, planned.options["C"]) == ((1, 3, 1), 2, 2)
    options = {**planned.options, "IC": 2 * rows}
    few = plan.Launch(planned.grid, -(-MANY.i // (2 * rows)), 1, options)
    monkeypatch.setattr(loop, "columns", lambda s: few)
    assert plan.over_plane(Plain(*MANY[1:])).options["JC"] == 2
    equal_to_float64("heinsen", MANY, "per child")


def test_tiles_grow_where_programs_are_many():
    """Columns a program holds, its warps, and children of a step."""

    def found(b: int, i: int, j: int, a: int, o: int) -> tuple[int, int, int]:
        options = plan.columns(Plain(b, i, j, a, 4, o)).options
        return options["JT"] * options["FP"], options["num_warps"], options["IC"]

    assert found(1, 8192, 1000, 1, 32) == (128, 8, 32)
    assert found(32, 32, 1000, 6, 6) == (512, 4, 4)
    assert found(32, 512, 100, 6, 6) == (512, 4, 4)
    assert found(1, 32, 1000, 1, 32) == (128, 4, 16)
    assert found(1, 2, 20, 32, 32) == (1024, 4, 2)
    assert plan.parents_fit(Plain(1, 8192, 100, 1, 16, 32))
    assert not plan.parents_fit(Plain(1, 9, 129, 1, 16, 32))
    assert plan.last_walk(Plain(1, 32, 1000, 1, 16, 32), 3).grid == (1, 8, 63)


@needs_kernels
def test_samples_whose_votes_do_not_fit_at_once(tiled, planned, launched):
    s = ORDINARY._replace(b=3, i=4)
    planned(MOST_STORED=2 * s.i * s.j * s.a * s.o * 4)
    equal_to_float64("heinsen", s, "shared+bias")
    assert launched.count("make_votes") == 4


@needs_kernels
@pytest.mark.parametrize("place", range(3), ids=["means", "variances", "logits"])
def test_the_gradient_of_one_output_alone(place, tiled):
    s = ORDINARY._replace(b=1, i=4)
    numbers = [0.1, 0.2], 1e-2, EM

    def gradients(function, dtype):
        given = [t if t is None else t.to(DEVICE, dtype).requires_grad_() for t in arguments("em", s, "shared")]
        output = function(*given, *numbers)[place]
        return torch.autograd.grad(output.sin().sum(), [t for t in given if t is not None])

    for ours, exact in zip(gradients(gaussian_loop, torch.float32), gradients(plain_loop, torch.float64)):
        assert distance(ours, exact) < 1e-5


@needs_kernels
@pytest.mark.parametrize("why", HARD)
def test_moments_of_tight_groups(why, planned):
    """Each row of a tile sees many children, one after the other; errors as those of programs that hold all parents."""
    u, W, weights, _ = grouped(why)
    u, W, gate = u[:1].to(DEVICE), W.to(DEVICE), weights[:1, :, 0].contiguous().to(DEVICE)
    zero = torch.zeros(1, W.shape[1], device=DEVICE)
    numbers = zero, zero, None, [1.0], 1e-6, EM
    exact = plain_loop(u.double(), W.double(), None, gate.double(), *(zero.double(),) * 2, *numbers[2:])
    planned(WHOLE=0)
    held = gaussian_loop(u, W, None, gate, *numbers)
    planned(COLUMN=64)
    assert plan.columns(Plain(*u.shape[:2], *W.shape[1:2], *u.shape[2:], W.shape[3])).tiles > 4
    with in_columns():
        ours = gaussian_loop(u, W, None, gate, *numbers)
    for mine, theirs, wanted in zip(ours[:2], held[:2], exact[:2]):
        off, allowed = (((x.double() - wanted) / wanted).abs().max().item() for x in (mine, theirs))
        assert off <= max(allowed, 2e-6)


@needs_kernels
def test_log_densities_that_all_have_a_large_constant():
    """Spreads of 1e12 in poses of 16 numbers: beside half of their logarithms, 230, squares would lose last digits."""
    case = Values("Heinsen, in columns", "mixed numbers", "huge", 99)
    tensors = [t.to(DEVICE) for t in operands(case)]
    ours, exact = results(case, tensors, "auto"), results(case, [t.double() for t in tensors], "torch")
    assert max(map(distance, ours, exact)) < 1.5e-4  # plain float32: 3e-4


@needs_kernels
@pytest.mark.parametrize("rows", [1, 4])
def test_a_child_that_has_all_but_all_the_weight(rows, monkeypatch):
    """The others weigh 1e-30 and lie 1e18 away: a rounding of the mean would be a larger variance than they make."""
    few = plan.columns(Plain(2, 4, 3, 2, 2, 2))
    few = dataclasses.replace(few, options={**few.options, "IC": 4, "C": 4 // rows})
    monkeypatch.setattr(loop, "columns", lambda s: few)
    assert [str(fault) for fault in faults(Values("EM, in columns", "vast", "mixed numbers", 137), DEVICE)] == []


@needs_kernels
def test_a_gradient_by_weights_that_overflows_where_they_are_next_to_nothing():
    """Huge votes, all but alike: times a weight of 1e-30 the gradient is finite again, as in the plain form."""
    with in_columns():
        assert [str(fault) for fault in faults(Values("EM, shared", "huge", "all but alike", 94), DEVICE)] == []


@needs_kernels
def test_a_gradient_that_all_parents_have_alike():
    """Of poses of 64 numbers it was off by 8e-7: shares sum to one but for a rounding."""
    given, numbers = arguments("bayes", Sizes("wide", 1, 6, 9, 1, 2, 64), "per child"), ([0.1, 0.2, 0.3], 0.0, BAYES)
    exact = outputs_and_gradients(plain_loop, given, torch.float64, *numbers)
    with in_columns():
        ours = outputs_and_gradients(gaussian_loop, given, torch.float32, *numbers)
    assert distance(ours[4], exact[4]) < 3e-7  # by children


@needs_kernels
def test_a_child_too_far_for_any_density_belongs_to_all_parents_alike(tiled):
    s = MANY._replace(i=4)
    u, W, bias, gate, *betas = arguments("em", s, "shared")
    u[:, 1], gate[:, 1] = 1e25, 0.0
    given = [t if t is None else t.to(DEVICE) for t in (u, W, bias, gate, *betas)]
    shares = gaussian_loop(*given, [0.1, 0.2], 1e-2, EM)[3]
    assert torch.equal(shares[0, :, 1], torch.full_like(shares[0, :, 1], 1 / s.j))
    assert shares[0].std(2)[:, 2:].min() > 0.01
