"""The loop for more parents than one program holds, against float64; under the interpreter or on a GPU."""

import pytest
import torch

import capsroute as cr
from capsroute.form.launches.lists import contraction_plan, loop_plan
from capsroute.form.loop.calls import loop_reasons
from capsroute.form.sizes import Sizes as Dimensions
from tests.form.kernels import ROUNDING, Sizes, error, needs_kernels
from tests.form.loop.cases import NORMALISE, budget, equal_to_float64, operands, values

pytestmark = pytest.mark.usefixtures("in_passes")

MANY = Sizes("more parents than a program holds", 2, 2, 19, 1, 4, 3)
MATRICES = Sizes("many parents, matrix poses", 1, 2, 18, 2, 2, 2)
PLANES = ["agreement_plane", "normalise_plane", "aggregate_plane"]


@needs_kernels
@pytest.mark.parametrize("s", [MANY, MATRICES], ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_many_parents_equal_float64(normalise, s, launched):
    equal_to_float64(normalise, s)
    assert [launched.count(name) for name in PLANES] == [4 if normalise == "softmax" else 6, 2, 4]


@needs_kernels
@pytest.mark.parametrize("normalise", NORMALISE)
def test_a_walk_over_parents_equals_all_of_them_at_once(normalise, monkeypatch):
    drawn = operands(MANY)
    held = values(normalise, drawn["u"], drawn["W"])
    monkeypatch.setattr("capsroute.form.launches.lists.MOST_LOGITS", 16)  # eight parents of two samples: 8, 8 and 3
    loop_plan.cache_clear()
    for walked, wanted in zip(values(normalise, drawn["u"], drawn["W"]), held):
        assert error(walked, wanted) < 10 * ROUNDING[torch.float32]
    loop_plan.cache_clear()


@needs_kernels
@pytest.mark.parametrize("option", [{"iterations": 2}, {"stop_gradient": True}], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched):
    equal_to_float64(normalise, MANY, coefficients=True, **option)
    assert "normalise_plane_backward" in launched


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    "s",
    [Sizes("a hundred", 33, 200, 100, 1, 8, 16), Sizes("a thousand", 3, 70, 1000, 1, 16, 32)],
    ids=lambda s: s.why,
)
def test_full_sizes(s, normalise, dtype):
    budget(normalise, dtype, s)


@needs_kernels
@pytest.mark.parametrize("parents", [100, 1000])
def test_any_number_of_parents_takes_the_loop(parents):
    u, W = torch.empty(128, 1152, 1, 8, device="meta"), torch.empty(1152, parents, 8, 16, device="meta")
    assert loop_reasons(u, W, 3) == []


def test_programs_hold_one_parent_of_wide_poses_whose_operands_are_in_parts():
    """Of two they spilled 19 KB of registers, and compiled for eight seconds."""

    def tile(k, o, dtype, multiply):
        options = contraction_plan(Dimensions(128, 576, 10, 1, k, o), dtype, multiply).aggregate.options
        return options["JT"], options["num_warps"]

    assert tile(64, 64, torch.float32, "bf16x6") == tile(64, 32, torch.float32, "tf32x3") == (1, 8)
    assert tile(64, 64, torch.float32, "tf32") == tile(64, 64, torch.bfloat16, "bf16x6") == (2, 2)
    assert tile(8, 16, torch.float32, "bf16x6") == (5, 2)


@needs_kernels
def test_contractions_of_wide_poses_equal_float64(launched):
    drawn = operands(Sizes("of which a program holds one parent", 2, 3, 5, 1, 40, 33))
    for question, names in ((cr.form.agreement, "uWq"), (cr.form.aggregate, "cuW")):
        args = [drawn[name] for name in names]
        assert error(question(*args), question(*(t.double() for t in args))) < 10 * ROUNDING[torch.float32]
    assert launched == ["agreement_plane", "aggregate_plane"]


@needs_kernels
@pytest.mark.parametrize("cores", [0, 132], ids=["by one program", "by four"])
def test_sums_over_many_parents_are_made_of_sums(cores, launched, monkeypatch):
    monkeypatch.setattr("capsroute.form.cost.CORES", cores)
    contraction_plan.cache_clear()
    drawn = operands(Sizes("two spans and a rest, of which most are summed before", 3, 2, 130, 1, 2, 2))
    args = drawn["c"], drawn["W"], drawn["q"]
    assert error(cr.form.grad_children(*args), cr.form.grad_children(*(t.double() for t in args))) < 1e-6
    assert launched == ["children_gradient"]
    contraction_plan.cache_clear()


@pytest.mark.slow
@needs_kernels
def test_a_loop_whose_parents_are_split_over_programs(launched):
    equal_to_float64("softmax", Sizes("three samples, two spans of parents", 3, 2, 70, 1, 2, 2))
    assert "children_gradient" in launched
