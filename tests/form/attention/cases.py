"""Operands, the textbook form and the budget that tests of attention share."""

from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.attention.operators import attention_step
from capsroute.form.window import WHOLE, Window
from capsroute.patches import PatchVotes
from tests.form.kernels import DEVICE, error, surrounded

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
