"""A step of inverted attention over shared transforms, against float64: under the interpreter or on a GPU."""

import dataclasses

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.form import sizes
from capsroute.form.window import WHOLE
from tests.form.attention.cases import (
    Sizes,
    budget,
    check_promises,
    equal_to_float64,
    first_step_equals_float64,
    fused,
    operands,
    textbook,
)
from tests.form.kernels import INTERPRETED, ROUNDING, error, needs_kernels
from tests.form.matrix_unit import products

SMALL = [
    Sizes("one sample, vectors", 1, 6, 3, 1, 4, 5),
    Sizes("matrices", 2, 37, 19, 2, 3, 2),
    Sizes("few rows of wide poses at once", 2, 3, 2, 1, 64, 33),
]


def shared(s: Sizes) -> list[Tensor]:
    u, W, parents, g = operands(s)
    return [u, W[:1], parents, g]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
def test_a_step_equals_float64_in_two_launches(s, launched):
    equal_to_float64(shared(s))
    assert launched == ["shared_step", "shared_step_back", "outer_sums"]


@pytest.mark.skipif(not INTERPRETED, reason="what the matrix unit cuts is made by the interpreter")
def test_sums_of_many_children_are_as_exact_as_those_of_votes(monkeypatch):
    from triton.runtime.interpreter import interpreter_builder as builder

    monkeypatch.setattr(sizes, "_in_parts", lambda: "bf16x6")
    options = dataclasses.replace(builder.options, allowed_dot_input_precisions=("bf16x6",))
    monkeypatch.setattr(builder, "options", options)
    u, W, parents, _ = shared(Sizes("", 2, 1152, 10, 1, 8, 16))
    exact = textbook(u.double(), W.double(), parents.double(), WHOLE)[0]
    plain = error(textbook(u, W, parents, WHOLE)[0], exact)
    with products("bf16x6"):
        assert error(fused(u, W, parents, WHOLE, False)[0], exact) < 2 * plain  # 1.2e-7 where sums are float32


@needs_kernels
def test_coefficients(launched):
    u, W, parents, _ = shared(SMALL[1])
    c = fused(u, W, parents, WHOLE, True)[1]
    assert error(c, textbook(u.double(), W.double(), parents.double(), WHOLE)[1]) < 10 * ROUNDING[torch.float32]
    assert launched == ["shared_step"]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
def test_the_first_step_has_no_parents(s, launched):
    u, W, _, g = shared(s)
    first_step_equals_float64(u, W, g, 3 * [10 * ROUNDING[torch.float32]])
    assert launched == ["shared_step", "shared_step_back", "outer_sums"]


@needs_kernels
def test_the_operators_keep_their_promises():
    u, W, parents, g = shared(SMALL[0])
    for q, coefficients in ((parents, True), (parents, False), (None, False)):
        check_promises(u, W, q, g, WHOLE, coefficients)


@needs_kernels
def test_a_map_is_left_to_matrix_products():
    u, W = operands(Sizes("", 2, 3, 3, 2, 2, 2, 4, 4))[:2]
    assert ["over a map" in reason or "of a map" in reason for reason in cr.form.explain(
        "attention_step", u, W[:1], WHOLE
    )] == [True]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "s", [Sizes("two", 32, 512, 2, 4, 4, 4), Sizes("ten", 3, 1152, 10, 1, 8, 16)], ids=lambda s: s.why
)
def test_full_size_stays_within_the_error_budget(s, dtype):
    budget(s, dtype, shared=True)
