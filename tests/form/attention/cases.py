"""Operands, the textbook form and the budget that tests of attention share."""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

import capsroute as cr
from capsroute.form.attention.operators import attention_step
from capsroute.form.window import WHOLE, Window
from capsroute.patches import PatchVotes
from tests.form.kernels import DEVICE, ROUNDING, error, keeps_promises, surrounded

SCALE = 0.7


class Sizes(NamedTuple):
    why: str
    b: int
    n: int
    j: int
    a: int
    k: int
    o: int
    h: int = 1
    w: int = 1
    window: Window = WHOLE


def operands(s: Sizes, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Map, transforms, parents, and a gradient of the sums."""
    generator = torch.Generator().manual_seed(0)
    height, width = s.window.positions(s.h, s.w)
    pose = (s.b * height * width, s.j, s.a, s.o)
    shapes = [(s.b, s.n, s.a, s.k, s.h, s.w), (s.n * s.window.kernel**2, s.j, s.k, s.o), pose, pose]
    u, W, parents, g = (torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)
    return [surrounded(u.to(dtype)), surrounded((W * s.k**-0.5).to(dtype)), surrounded(parents), surrounded(g)]


def fused(u: Tensor, W: Tensor, parents: Tensor, window: Window, coefficients: bool) -> tuple:
    return attention_step(PatchVotes(u, W, window), parents, SCALE, coefficients)


def textbook(u: Tensor, W: Tensor, parents: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Procedure 1 of Tsai 2020 with stored votes, in the dtype of the operands."""
    V = PatchVotes(u, W, window).dense()
    c = (torch.einsum("bijao,bjao->bij", V, parents.to(V.dtype)) * SCALE).softmax(2)
    return torch.einsum("bij,bijao->bjao", c, V), c


def values(step, u: Tensor, W: Tensor, parents: Tensor, g: Tensor) -> list[Tensor]:
    """Sums, and the gradients of the map, the transforms and the parents."""
    leaves = [t.detach().requires_grad_() for t in (u, W, parents)]
    sums = step(*leaves)[0]
    return [sums, *torch.autograd.grad(sums, leaves, g.to(sums.dtype))]


def equal_to_float64(given: list[Tensor], window: Window = WHOLE, limit: float = 10 * ROUNDING[torch.float32]) -> None:
    """Sums and gradients of a step; what is float64 and has votes launches nothing."""
    exact = values(lambda *t: textbook(*t, window), *(t.double() for t in given))
    for ours, wanted in zip(values(lambda *t: fused(*t, window, False), *given), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < limit or wanted.norm() < 1e-12


def first_step_equals_float64(u: Tensor, W: Tensor, g: Tensor, limits: Sequence[float]) -> None:
    """Sums of a first step over a list, which has no parents, and gradients by children and transforms."""

    def found(u: Tensor, W: Tensor) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in (u[..., 0, 0], W)]
        sums = cr.inverted_attention_routing(cr.LinearVotes(*leaves), norm=lambda sums: sums).poses
        return [sums, *torch.autograd.grad(sums, leaves, g.to(sums))]

    dtypes = torch.float32, u.dtype, W.dtype
    for ours, wanted, limit, dtype in zip(found(u, W), found(u.double(), W.double()), limits, dtypes):
        assert ours.dtype == dtype
        assert error(ours, wanted) < limit


def coefficients_made_the_sums(u: Tensor, W: Tensor, parents: Tensor, window: Window = WHOLE, limit=1e-6) -> None:
    sums, c = fused(u, W, parents, window, True)
    assert error(c, textbook(u.double(), W.double(), parents.double(), window)[1]) < limit
    assert torch.equal(sums, fused(u, W, parents, window, False)[0])


def one_parent_takes_all(s: Sizes) -> None:
    """Where agreement is large: without the largest logit taken off first, exp overflows."""
    u, W, parents, g = operands(s)
    given = u * 30, W * 30, parents * 30, g
    exact = values(lambda *t: textbook(*t, WHOLE), *(t.double() for t in given))
    for mine, wanted in zip(values(lambda *t: fused(*t, WHOLE, False), *given)[:2], exact):
        assert error(mine, wanted) < 1e-3


def check_promises(u: Tensor, W: Tensor, parents: Tensor | None, g: Tensor, window: Window, coefficients: bool) -> None:
    """Of the operator and its derivative."""
    cr.form.explain("attention_step", u, W, window)
    forward, back = torch.ops.capsroute.attention_step.default, torch.ops.capsroute.attention_step_backward.default
    leaves = [None if t is None else t.clone().requires_grad_() for t in (u, W, parents)]
    keeps_promises(forward, (*leaves, SCALE, list(window), coefficients))
    kept = [forward(u, W, parents, SCALE, list(window), coefficients)[2]] if W.shape[0] == 1 else []
    for turn in (False, True):  # parents that lie in memory in another order have a gradient that does not
        given = parents if parents is None or not turn else parents.mT.contiguous().mT
        keeps_promises(back, ([g, None, None], u, W, given, kept, SCALE, list(window), coefficients))


def budget(s: Sizes, dtype: torch.dtype, shared: bool = False) -> None:
    given = operands(s, dtype)
    given[1] = given[1][:1] if shared else given[1]
    exact = values(lambda *t: textbook(*t, s.window), *(t.double() for t in given))
    ours = values(lambda *t: fused(*t, s.window, False), *given)
    theirs = values(lambda *t: textbook(*t, s.window), *given)
    assert [t.dtype for t in ours] == [torch.float32, dtype, dtype, torch.float32]
    for mine, plain, wanted, times in zip(ours, theirs, exact, (2, 3, 3, 3)):
        assert error(mine, wanted) <= times * error(plain, wanted)


def steps_of(launched: list[str]) -> list[str]:
    """What ran but for operands that are laid out, and sums of partial results."""
    return [name for name in launched if name not in ("add_parts", "arrange")]


@contextmanager
def float32_products(how: str):
    """As TF32 ("tf32") or exactly ("ieee") for a while."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = how
    yield
    torch.backends.cuda.matmul.fp32_precision = before
