"""Children split over programs, against float64."""

import pytest
import torch

import capsroute as cr
from tests.form.kernels import DEVICE, ROUNDING, error, needs_kernels, surrounded


@needs_kernels
@pytest.mark.parametrize(("iterations", "coefficients"), [(1, False), (3, True)])
def test_equal_to_float64(iterations, coefficients, launched, monkeypatch):
    from capsroute.form.launches.pooled import split_pooling_launch

    monkeypatch.setattr("capsroute.form.cost.CORES", 4)  # a program walks over three tiles
    split_pooling_launch.cache_clear()
    assert split_pooling_launch(2, 1100, 36, iterations).tiles == 3
    generator = torch.Generator().manual_seed(0)
    u = surrounded(torch.randn(2, 1100, 6, 6, generator=generator).to(DEVICE))
    weights = [torch.randn(shape, generator=generator).to(DEVICE) for shape in ((2, 1, 6, 6), (2, 1100, 1))]

    def values(u: torch.Tensor, backend: str) -> list[torch.Tensor]:
        leaf = u.detach().clone().requires_grad_()
        routed = cr.pooling_routing(cr.IdentityVotes(leaf, backend=backend), iterations, 2.0)
        outputs = [routed.poses, routed.coefficients][: 1 + coefficients]
        given = [w.to(out) for w, out in zip(weights, outputs)]
        return [routed.poses, routed.coefficients, *torch.autograd.grad(outputs, leaf, given)]

    for ours, exact in zip(values(u, "auto"), values(u.double(), "torch")):
        assert error(ours, exact) < 10 * ROUNDING[torch.float32]
    rounds = ["pool_round"] * (iterations + 1) + ["pool_end"]
    assert launched == [*rounds, *["pool_round_backward"] * iterations, "pool_end_backward"]
    split_pooling_launch.cache_clear()
