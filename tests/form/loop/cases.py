"""Operands, the textbook form and the budget that tests of the fused loop share."""

import torch
from torch import Tensor

import capsroute as cr
from capsroute.bench import textbook
from tests.form.kernels import DEVICE, ROUNDING, Sizes, assert_within_budget, error, surrounded


def operands(s: Sizes, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"c": (s.b, s.i, s.j), "u": (s.b, s.i, s.a, s.k), "W": (s.i, s.j, s.k, s.o), "q": (s.b, s.j, s.a, s.o)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    drawn["W"] *= s.k**-0.5
    return {name: surrounded(tensor.to(DEVICE, dtype)) for name, tensor in drawn.items()}


def route(normalise: str, u: Tensor, W: Tensor, backend: str = "auto", **option) -> cr.Routed:
    function = {"softmax": cr.dynamic_routing, "max-min": cr.max_min_routing}[normalise]
    return function(cr.LinearVotes(u, W, backend=backend), **option)


def values(normalise: str, u: Tensor, W: Tensor, coefficients: bool = False, **option) -> list[Tensor]:
    """Poses, coefficients, and the gradients of u and W for fixed gradients of the poses (and coefficients)."""
    u, W = (t.detach().clone().requires_grad_() for t in (u, W))
    routed = route(normalise, u, W, **option)
    outputs = [routed.poses, routed.coefficients] if coefficients else [routed.poses]
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(out.shape, generator=generator).to(out) for out in outputs]
    return [routed.poses, routed.coefficients, *torch.autograd.grad(outputs, (u, W), gradients)]


def equal_to_float64(normalise: str, s: Sizes, shared: bool = False, coefficients: bool = False, **option) -> None:
    """Poses, coefficients and gradients; what is float64 launches nothing."""
    drawn = operands(s)
    u, W = drawn["u"], drawn["W"][:1] if shared else drawn["W"]
    exact = values(normalise, u.double(), W.double(), coefficients, **option)
    for ours, wanted in zip(values(normalise, u, W, coefficients, **option), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]


NORMALISE = ("softmax", "max-min")


def budget(normalise: str, dtype: torch.dtype, s: Sizes, shared: bool = False) -> None:
    drawn = operands(s, dtype)
    u, W = drawn["u"], drawn["W"][:1] if shared else drawn["W"]
    exact = values(normalise, u.double(), W.double())
    ours = values(normalise, u, W)
    assert all(part.dtype == torch.float32 for part in ours[:2])
    assert all(part.dtype == dtype for part in ours[2:])
    plain = {"softmax": textbook.dynamic, "max-min": textbook.max_min}[normalise]
    u, W = (t.detach().clone().requires_grad_() for t in (u, W))
    poses = plain(u, W)
    gradient = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
    theirs = [poses, None, *torch.autograd.grad(poses, (u, W), gradient)]
    assert_within_budget(ours, theirs, exact, dtype)
