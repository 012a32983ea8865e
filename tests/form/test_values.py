"""Kernels on values that training meets and tests of sizes do not: 1e-20, 1e15, zeros, saturated scores.

A few cases of each algorithm under Triton's interpreter, hundreds of each on a GPU.
"""

import functools

import pytest
import torch

import capsroute as cr
from tests.form.fused import fused_products
from tests.form.kernels import DEVICE, INTERPRETED, error, needs_kernels
from tests.form.values import ROUTES, Fault, Values, cases, faults

# Under the interpreter, which is slow for Gaussians most of all.
SOME = (Values("", "vast", "large", 3), Values("", "some zero", "tiny", 10), Values("", "mixed capsules", "plain", 6))
MANY_CASES = 200


@needs_kernels
@pytest.mark.parametrize("algorithm", ROUTES)
def test_kernels_are_finite_and_close_wherever_plain_float32_is(algorithm):
    some = [case._replace(algorithm=algorithm) for case in SOME[: 1 if algorithm.startswith(("EM", "Heinsen")) else 3]]
    assert [str(fault) for case in some for fault in faults(case, DEVICE)] == []


@needs_kernels
def test_a_gradient_by_weights_that_overflows_where_they_are_next_to_nothing():
    """Huge votes, all but alike: times a weight of 1e-30 the gradient is finite again, as in the plain form."""
    assert [str(fault) for fault in faults(Values("EM, shared", "huge", "all but alike", 94), DEVICE)] == []


@needs_kernels
@pytest.mark.parametrize("algorithm", ["EM", "EM, in columns"])
def test_log_densities_are_rounded_where_they_are_least(algorithm):
    """One parent's is 40 beside its square, another's -40: taken from the highest, 80 would lose a digit of shares."""
    assert [str(fault) for fault in faults(Values(algorithm, "plain", "mixed capsules", 98), DEVICE)] == []


@needs_kernels
def test_sums_of_logarithms_are_not_rounded_before_parents_are_compared():
    """Spreads of 1e25 make sums of 200: rounded as they are, a constant is off by 4e-6 for all children of a parent."""
    assert [str(fault) for fault in faults(Values("Heinsen, shared", "vast", "mixed numbers", 195), DEVICE)] == []


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 shows what a GPU's compiler does; a GPU has it anyway")
@pytest.mark.parametrize(
    ("algorithm", "children", "transforms", "seed"),
    [
        ("Heinsen", "mixed numbers", "mixed numbers", 163),
        ("Heinsen, shared", "some zero", "huge", 104),
        ("Heinsen, shared", "large", "some zero", 121),
    ],
)
def test_a_product_that_is_fused_into_a_difference_from_itself(algorithm, children, transforms, seed):
    """Where one parent has all of a child, what a softmax passes back is a number less itself."""
    with fused_products():
        assert [str(fault) for fault in faults(Values(algorithm, children, transforms, seed), DEVICE)] == []


@functools.cache
def many_faults(algorithm: str) -> list[Fault]:
    return [fault for case in cases(algorithm, MANY_CASES) for fault in faults(case, "cuda")]


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ROUTES)
def test_many_values_are_finite(algorithm):
    assert [str(fault) for fault in many_faults(algorithm) if fault.mistake == float("inf")] == []


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ROUTES)
def test_many_values_are_close(algorithm):
    assert not many_faults(algorithm), "\n".join(map(str, many_faults(algorithm)))


@needs_kernels
def test_a_parent_whose_coefficients_underflow():
    """Scores so far apart that one parent's share of the only child is 1e-30: its sum is short, but not zero."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(12, 1, 1, 8, generator=generator).to(DEVICE)
    W = 3 * torch.randn(1, 3, 8, 16, generator=generator).to(DEVICE)

    def gradients(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [t.clone().requires_grad_() for t in operands]
        poses = cr.dynamic_routing(cr.LinearVotes(*leaves), 3).poses
        return torch.autograd.grad(poses.sum(), leaves)

    for ours, exact in zip(gradients(u, W), gradients(u.double(), W.double())):
        assert error(ours, exact) < (1e-5 if INTERPRETED else 2e-5)  # a chip multiplies in parts: 1.4e-5 on an H200
