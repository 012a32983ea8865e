"""The way back through credits in closed form: equal to autograd's, with every mask."""

import pytest
import torch

from capsroute.layers.vector_sums import credit_gradients, linear_credits

B, C, J = 2, 7, 3


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed), dtype=torch.float64)


MASKS = {
    "none": (None, None),
    "padding": ((draw(B, C, 1).sigmoid() * (torch.arange(C) < 5)[None, :, None]), None),
    "ignored": (None, draw(1, C, J) > 0.3),
    "a child that all ignore": (None, (draw(B, C, J) > 0.3) | (torch.arange(C) == 2)[None, :, None]),
    "both": (draw(B, C, 1).sigmoid(), draw(B, C, J) > 0.3),
}


@pytest.mark.parametrize("why", MASKS)
@pytest.mark.parametrize("groups", [1, 3], ids=["first iteration", "later ones"])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_gradient_is_autograds(groups, why, size):
    linear, d_phi = size * draw(B, C, 1 + groups * J), draw(B, C, J, seed=1)
    shared = [draw(min(groups, 2) * J, seed=2), draw(1), draw(1, J, seed=3), draw(1, J, seed=4)]
    rest = (draw(B, 1, seed=5).exp(), *MASKS[why])
    leaves = [tensor.requires_grad_() for tensor in (linear, *shared)]
    phi = linear_credits(*leaves, *rest)
    wanted = torch.autograd.grad(phi, leaves, d_phi, allow_unused=True)
    with torch.no_grad():
        front, *found = credit_gradients(linear, d_phi.clone(), *shared, *rest)
    torch.testing.assert_close(front[:, :, -J:], phi.detach(), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip([front[:, :, :-J], *found], wanted):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
