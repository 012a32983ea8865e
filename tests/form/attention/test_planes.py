"""Inverted attention to more parents than one program holds, against float64; under the interpreter or on a GPU."""

import pytest
import torch

from capsroute.form.window import Window
from tests.form.attention.cases import Sizes, budget, equal_to_float64, fused, operands, textbook
from tests.form.kernels import error, needs_kernels

pytestmark = pytest.mark.usefixtures("many_products")

LIST = Sizes("a list", 2, 2, 17, 1, 3, 9)
LOOP = Sizes("parents that a program of the loop holds, and one of attention does not", 2, 2, 10, 1, 3, 16)
MAP = Sizes("a map under a window", 1, 1, 17, 2, 2, 9, 3, 3, Window(2))


@needs_kernels
@pytest.mark.parametrize("s", [LIST, LOOP, MAP], ids=lambda s: s.why)
def test_many_parents_equal_float64(s, launched):
    equal_to_float64(operands(s), s.window)
    assert launched.count("agreement_plane") == 3
    assert "attend" not in launched


@needs_kernels
def test_coefficients_are_those_that_made_the_sums(launched):
    u, W, parents, _ = operands(LIST)
    ours = fused(u, W, parents, LIST.window, True)
    exact = textbook(u.double(), W.double(), parents.double(), LIST.window)
    assert "normalise_plane" in launched
    for mine, wanted in zip(ours, exact):
        assert error(mine, wanted) < 1e-5
        assert mine.is_contiguous()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_full_size(dtype):
    budget(Sizes("a hundred parents", 33, 200, 100, 1, 8, 16), dtype)
