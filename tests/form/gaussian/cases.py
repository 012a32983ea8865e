"""Operands and values that tests of Gaussian passes share."""

import torch
from torch import Tensor

import capsroute as cr
from tests.form.kernels import DEVICE, ROUNDING, Sizes, surrounded

TINY = 10 * ROUNDING[torch.float32]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def voters(s: Sizes, whose: str) -> list[Tensor | None]:
    """u, W and bias (or None)."""
    n = s.i if "per child" in whose else 1
    bias = draw(n, s.j, s.a, s.o, seed=2) if "bias" in whose else None
    return [draw(s.b, s.i, s.a, s.k), draw(n, s.j, s.k, s.o, seed=1) * s.k**-0.5, bias]


def outputs_and_gradients(function, arguments: list, dtype: torch.dtype, *numbers: float) -> list[Tensor]:
    leaves = [t if t is None else surrounded(t.to(DEVICE, dtype)).requires_grad_() for t in arguments]
    outputs = function(*leaves, *numbers)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs = [out for out in outputs if out.numel()]
    gradients = [draw(*out.shape, seed=8).to(out) for out in outputs]
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [*outputs, *torch.autograd.grad(outputs, wanted, gradients)]


def route(algorithm: str, votes: cr.LinearVotes, gate: Tensor, beta: Tensor, **option) -> cr.Routed:
    if algorithm == "heinsen":
        return cr.heinsen_routing(votes, gate, beta, 0.5 * beta, **option)
    return cr.em_routing(votes, gate.sigmoid(), beta[0], -beta[0], **option)


def routed_values(algorithm: str, s: Sizes, whose: str, scores: Tensor, dtype: torch.dtype, backend: str = "auto"):
    """All that routing gives, and the gradients of everything it takes, for fixed gradients of what it gives."""
    rows = 1 if algorithm == "em" or "shared" in whose else s.i

    def function(u, W, *rest):
        *bias, scores, beta = rest
        votes = cr.LinearVotes(u, W, *bias, backend=backend)
        return tuple(route(algorithm, votes, scores, beta))

    arguments = [t for t in voters(s, whose) if t is not None]
    return outputs_and_gradients(function, [*arguments, scores, draw(rows, s.j, seed=9)], dtype)


SCORES = {
    "ordinary": lambda s: draw(s.b, s.i),
    "masked": lambda s: torch.where(torch.arange(s.i) % 3 == 1, -torch.inf, draw(s.b, s.i)),
    "one sample wholly masked": lambda s: torch.where(torch.arange(s.b)[:, None] == 0, -torch.inf, draw(s.b, s.i)),
    "certain": lambda s: torch.full((s.b, s.i), torch.inf),
}


# Each row: children of one parent lie `spread` apart, the parents' groups `distance` apart, all of them at `offset`.
HARD = {
    "ordinary children": (1.0, 1.0, 0.0),
    "a common offset: E[x^2] - E[x]^2 loses six digits": (0.0, 1.0, 1000.0),
    "a common offset and a small variance": (0.0, 1e-2, 100.0),
    "tight groups, as when routing succeeds": (1.0, 1e-1, 0.0),
    "tighter groups": (1.0, 1e-2, 0.0),
    "tight groups far apart": (10.0, 1e-1, 0.0),
    "variances at the floor": (1.0, 1e-4, 0.0),
}


PARENTS = 4


def grouped(why: str):
    """Float32 children u, shared W, and weights that give each group of children to its parent, all but 2 %."""
    distance, spread, offset = HARD[why]
    generator = torch.Generator().manual_seed(0)
    group = torch.randint(0, PARENTS, (160,), generator=generator)
    centres = distance * torch.randn(2, PARENTS, 4, 4, generator=generator)
    u = centres[:, group] + spread * torch.randn(2, 160, 4, 4, generator=generator) + offset
    W = torch.randn(1, PARENTS, 4, 4, generator=generator) / 4
    weights = torch.nn.functional.one_hot(group, PARENTS).float().expand(2, 160, PARENTS).clone()
    weights[:, :3] = 0.25  # a few that belong to all
    return u, W, weights, group


def errors(votes: cr.Votes, weights: torch.Tensor, group: torch.Tensor, exact) -> dict[str, float]:
    """Largest error of mean and log-density, largest relative error of variance, against float64."""
    mean, variance = votes.moments(weights)
    density = votes.log_density(*(part.to(votes.statistics_dtype) for part in exact[:2]))
    own = density[:, torch.arange(len(group)), group]
    return {
        "mean": (mean - exact[0]).abs().max().item(),
        "variance": (variance.clamp_min(1e-6) / exact[1] - 1).abs().max().item(),
        "log-density": (own - exact[2]).abs().max().item(),
    }


def equal_to_float64(kernel, plain, arguments: list, *numbers: float) -> None:
    exact = outputs_and_gradients(plain, arguments, torch.float64, *numbers)
    ours = outputs_and_gradients(kernel, arguments, torch.float32, *numbers)
    for index, (mine, wanted) in enumerate(zip(ours, exact, strict=True)):
        assert mine.shape == wanted.shape
        # Where a softmax has one parent its gradient is zero: measured against one.
        distance = (mine.double() - wanted).norm() / wanted.norm().clamp_min(1.0)
        assert distance < TINY, f"output or gradient {index}: {distance:.1e}"


def no_weight_gives_zeros(moments, s: Sizes) -> None:
    """Mean and variance; nothing else that comes or goes back is infinite."""
    arguments = [*voters(s, "shared"), torch.zeros(s.b, s.i, s.j), draw(s.i, s.j)]
    mean, variance, *rest = outputs_and_gradients(moments, arguments, torch.float32, 0.0)
    assert (mean == 0).all()
    assert (variance == 0).all()
    assert all(part.isfinite().all() for part in rest)
