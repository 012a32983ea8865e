"""Steps of inverted attention over lists of few products, and first steps of few rows, against float64."""

import pytest
import torch

import capsroute as cr
from capsroute.form.attention import calls
from capsroute.form.window import WHOLE, Window
from tests.form.attention.cases import (
    Sizes,
    budget,
    check_promises,
    coefficients_made_the_sums,
    equal_to_float64,
    first_step_equals_float64,
    one_parent_takes_all,
    operands,
    steps_of,
)
from tests.form.kernels import ROUNDING, needs_kernels

SMALL = [
    Sizes("one sample, one program", 1, 6, 3, 1, 4, 5),
    Sizes("matrices", 2, 37, 3, 2, 3, 2),
    Sizes("children in parts", 1, 67, 3, 1, 8, 16),
    Sizes("a program walks over two tiles of children", 1, 13, 3, 1, 8, 16),
    Sizes("samples, and children in parts", 3, 9, 10, 1, 8, 16),
    Sizes("one parent", 2, 5, 1, 1, 1, 1),
]
each_size = pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)


@needs_kernels
@each_size
def test_a_step_equals_float64(s, launched):
    equal_to_float64(operands(s), limit=ROUNDING[torch.float32])
    assert steps_of(launched) == ["few_step", "few_step_back"]


@needs_kernels
def test_a_window_of_one_that_steps_over_the_whole_map_is_no_list(launched):
    """It has one place and as many children as the map has capsules, but the map has more places."""
    s = Sizes("", 2, 3, 2, 1, 4, 4, 4, 4, Window(1, 4))
    equal_to_float64(operands(s), s.window)
    assert steps_of(launched) == ["attend", "parents_gradient", "children_and_transforms", "fold"]


@needs_kernels
@each_size
def test_coefficients_are_those_that_made_the_sums(s, launched):
    coefficients_made_the_sums(*operands(s)[:3])
    assert launched[0] == "few_step"


@needs_kernels
def test_half_precision_stays_within_the_error_budget(launched):
    for dtype in (torch.bfloat16, torch.float16):
        budget(SMALL[4], dtype)
    assert launched.count("few_step_back") == 2


@needs_kernels
@each_size
def test_the_first_step_has_no_parents(s, launched):
    u, W, _, g = operands(s)
    first_step_equals_float64(u, W, g, 3 * [ROUNDING[torch.float32]])
    assert steps_of(launched) == ["few_step", "few_step_back"]


@needs_kernels
@pytest.mark.parametrize("batch", [2, 5], ids=["few rows", "more rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_first_step_of_few_rows_reads_transforms_as_they_lie(dtype, batch, launched, monkeypatch):
    monkeypatch.setattr("capsroute.form.cost.MOST_FEW", 0)
    monkeypatch.setattr("capsroute.form.cost.CACHED", 0)
    u, W, _, g = operands(Sizes("", batch, 21, 37, 2, 3, 5), dtype)
    first_step_equals_float64(u, W, g, [ROUNDING[kind] for kind in (torch.float32, dtype, dtype)])
    ran = steps_of(launched)
    assert ran[0] == "uniform_pass"
    assert ran[1:] == (["both_gradients"] if batch == 2 else ["children_gradient", "transforms_gradient"])


@needs_kernels
def test_one_parent_takes_all_where_agreement_is_large(launched):
    one_parent_takes_all(SMALL[4])
    assert "few_step" in launched


@needs_kernels
@pytest.mark.parametrize("few", [True, False], ids=["few products", "few rows"])
def test_the_operators_keep_their_promises(few, request):
    if not few:
        request.getfixturevalue("many_products")
    u, W, parents, g = operands(SMALL[4])
    for q, coefficients in ((parents, True), (parents, False), (None, False)) if few else ((None, False),):
        check_promises(u, W, q, g, WHOLE, coefficients)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "s",
    [Sizes("wide", 1, 8192, 2, 1, 16, 32), Sizes("many", 1, 8192, 2, 4, 4, 4), Sizes("batch", 256, 32, 2, 6, 6, 6)],
    ids=lambda s: s.why,
)
def test_full_size_stays_within_the_error_budget(s, dtype, launched):
    budget(s, dtype)
    assert launched[0] == "few_step"


@needs_kernels
def test_the_gradients_of_two_steps_are_added_up_in_place(monkeypatch):
    """Transforms are most of what a step holds. (Memory that the interpreter has seen is never added to in place.)"""
    places = []

    def zeros(launch, g, u, W, q, scale):
        dW = W.new_zeros((1, *W.shape))[0]
        places.append(dW.data_ptr())
        return torch.zeros_like(u), dW, g.new_zeros(0) if q is None else torch.zeros_like(q)

    monkeypatch.setattr(calls, "few_backward", zeros)
    u, W, _, _ = (t.requires_grad_() for t in operands(SMALL[0]))
    votes = cr.LinearVotes(u.flatten(3), W)
    second = cr.inverted_attention_routing(votes, cr.inverted_attention_routing(votes).poses)
    (dW,) = torch.autograd.grad(second.poses.square().sum(), W)
    assert len(places) == 2
    assert dW.data_ptr() in places
