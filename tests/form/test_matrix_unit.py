"""What only a matrix unit shows: float32 in parts of fewer digits and the same range."""

import numpy as np
import pytest
import torch

from tests.form.kernels import INTERPRETED
from tests.form.matrix_unit import product, products
from tests.form.values import Values, distance, faults, operands, results

interpreted = pytest.mark.skipif(not INTERPRETED, reason="the interpreter's products are replaced: TRITON_INTERPRET=1")


@interpreted
@pytest.mark.parametrize("how", ["tf32x3", "bf16x6"])
@pytest.mark.parametrize("case", [("plain", "tiny", 5), ("tiny", "small", 132)], ids=str)
def test_gradients_of_parents_that_are_next_to_nothing(case, how):
    """Transforms of 1e-20 pass back 1e-40, of whose parts all but the highest are below the smallest number."""
    with products(how):
        assert [str(fault) for fault in faults(Values("dynamic, shared", *case), "cpu")] == []


@interpreted
def test_what_the_largest_logit_gets_is_not_lost_beside_what_it_gives():
    """All sums but one parent's are 1e8 long, and their gradients 1e-8 of its own."""
    case = Values("max-min", "mixed capsules", "some zero", 124)
    tensors = operands(case)
    exact = results(case, [t.double() for t in tensors], "torch")
    assert [distance(*pair) < 1e-6 for pair in zip(results(case, tensors, "auto"), exact)] == [True] * 3


@pytest.mark.parametrize("terms", [4, 16])
def test_three_parts_of_bfloat16_are_a_float32(terms):
    """Sums of few terms show every digit that a product lacks; two parts of TF32 lack two."""
    draw = np.random.default_rng(0).standard_normal
    a, b = draw((64, terms)).astype(np.float32), draw((terms, 64)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def off(found: np.ndarray) -> float:
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    total = np.zeros((64, 64), np.float32)
    for k in range(terms):
        total += a[:, k : k + 1] * b[k]
    assert off(product(a, b, "bf16x6")) < 1.2 * off(total)
    assert off(product(a, b, "tf32x3")) > 1.5 * off(product(a, b, "bf16x6"))


@interpreted
def test_float32_is_multiplied_in_parts_of_bfloat16_where_triton_has_them(monkeypatch):
    from triton.backends.nvidia.compiler import CUDAOptions

    from capsroute.form import sizes

    monkeypatch.setattr(sizes, "INTERPRETED", False)
    sizes._in_parts.cache_clear()
    assert (sizes.precision(), sizes.loop_precision()) == ("bf16x6", "tf32x3")
    monkeypatch.setattr(CUDAOptions, "allowed_dot_input_precisions", ("tf32", "tf32x3", "ieee"))  # as in 3.2
    sizes._in_parts.cache_clear()
    assert sizes.precision() == "tf32x3"
    sizes._in_parts.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert sizes.precision() == "ieee"
    sizes._in_parts.cache_clear()
