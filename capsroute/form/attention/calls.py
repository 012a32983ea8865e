"""One step of inverted attention and its derivative as sequences of kernels.

Children are a map [b,n,a,k,h,w] in any memory order and a window over it; i = (capsule, window row, window column).
"""

import torch
from torch import Tensor

from capsroute.form.attention.few import few_backward, few_forward
from capsroute.form.attention.gradients import children_and_transforms, parents_gradient
from capsroute.form.attention.kernels import arrange, attend
from capsroute.form.attention.planes import planes_backward, planes_forward, uniform_backward, uniform_forward
from capsroute.form.attention.shared import shared_step_backward, shared_step_forward
from capsroute.form.contractions.kernels import grid_reasons, operand_reasons
from capsroute.form.launch import Launch, kind_of, on_device
from capsroute.form.launches.attention_steps import AttentionPlan, arranged_launch, attention_plan, few_launch
from capsroute.form.loop.operators import is_shared
from capsroute.form.loop.shared import OVER_MAP, shared_reasons
from capsroute.form.maps import Shape, fold, shape_of
from capsroute.form.plan import Sizes, cdiv, operand_dtype, precision
from capsroute.form.rows.totals import total

__all__ = ["attention_backward", "attention_forward", "attention_reasons"]

# Columns (parent, o) of votes and of as many accumulators that one program can hold: 256 leave its registers.
MOST_COLUMNS = 128


def attention_reasons(u: Tensor, W: Tensor, window: tuple[int, int, int]) -> list[str]:
    """Why the fused step does not apply to a map u [b,n,a,k,h,w] and transforms W [i,j,k,o], if anything."""
    s, reasons = shape_of(u, W, window), operand_reasons(u, W)
    pose = s.padded
    if s.positions * s.children * s.a * s.k >= 1 << 31:
        reasons.append("the gradients of all patches have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if W.shape[0] == 1 < s.children:
        sizes = _list_sizes(s)
        return reasons + ([OVER_MAP] if sizes is None else shared_reasons(sizes, 1))
    if not _held(s):
        reasons += grid_reasons(s.j, s.children)
        if s.positions * s.children * s.j >= 1 << 31:
            reasons.append("coefficients are 2^31 or more, beyond the kernels' 32-bit offsets")
    if pose["AP"] > 16 or pose["KP"] > 32:
        reasons.append(f"a child's pose has at most 16 rows and 32 columns, here {s.a} and {s.k}")
    return reasons


def _list_sizes(s: Shape) -> Sizes | None:
    """Of a list of children; None of a map."""
    listed = s.h == s.w == s.window.kernel == 1 and s.window.padding == 0
    return Sizes(s.b, s.n, s.j, s.a, s.k, s.o) if listed else None


def _few(s: Shape) -> Launch | None:
    sizes = _list_sizes(s)
    return None if sizes is None else few_launch(sizes)


def _held(s: Shape) -> bool:
    """Whether one program holds the poses of all parents; else coefficients pass between kernels (`planes`)."""
    return s.padded["JP"] * s.padded["OP"] <= MOST_COLUMNS


@on_device
def attention_forward(
    u: Tensor, W: Tensor, parents: Tensor | None, scale: float, window: tuple[int, int, int], coefficients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of votes [p,j,a,o] before any norm, and the coefficients [p,i,j] if asked for, else none; p = (b, y, x).

    Then what backward needs, where transforms are shared. No parents, which only a list may have: a first step.
    """
    if is_shared(u, W):
        return shared_step_forward(u.flatten(3), W, parents, scale, coefficients)
    s, dtype, none = shape_of(u, W, window), operand_dtype(u, W), u.new_empty(0, dtype=torch.float32)
    few = _few(s)
    if few is not None:
        return *few_forward(few, u.flatten(3), W, parents, scale, coefficients), none
    if parents is None:
        return uniform_forward(u.flatten(3), W), torch.empty_like(none), none
    if not _held(s):
        return *planes_forward(u, W, parents, scale, window, coefficients), none
    launch = attention_plan(s, dtype, precision()).forward
    out = u.new_empty((launch.splits, s.positions, s.j, s.a, s.o), dtype=torch.float32)
    c = u.new_empty((s.positions, s.children, s.j) if coefficients else (0,), dtype=torch.float32)
    transforms, q = _transforms(W, s, dtype), _poses(parents, s, dtype, scale)
    kind = kind_of(u, transforms, q, *u.stride())
    numbers = (s.positions, s.children, launch.tiles, *u.stride())
    attend(launch, kind, u, transforms, q, out, c, *numbers, STORE=coefficients)
    return total(out), c, none


@on_device
def attention_backward(
    grads: tuple[Tensor, ...], tensors: tuple[Tensor, Tensor, Tensor], kept: tuple, scale: float,
    window: tuple[int, int, int], coefficients: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by the map, the transforms and the parents, from that of the sums [p,j,a,o]."""
    (g, *_), (u, W, parents) = grads, tensors
    if is_shared(u, W):
        du, dW, dq = shared_step_backward(g, u.flatten(3), W, parents, kept[0], scale)
        return du[..., None, None], dW, dq
    s, dtype = shape_of(u, W, window), operand_dtype(u, W)
    few = _few(s)
    if few is not None or parents is None:
        children = u.flatten(3)
        made = few_backward(few, g, children, W, parents, scale) if few else uniform_backward(g, children, W)
        return made[0][..., None, None], *made[1:]
    if not _held(s):
        return planes_backward(g, u, W, parents, scale, window)
    plan = attention_plan(s, dtype, precision())
    transforms, q, d = _transforms(W, s, dtype), _poses(parents, s, dtype, scale), _poses(g, s, dtype)
    kind = kind_of(u, transforms, q, d, *u.stride())
    dq = u.new_empty((plan.parents.splits, s.positions, s.j, s.a, s.o), dtype=torch.float32)
    numbers = (s.positions, s.children, plan.parents.tiles, *u.stride())
    parents_gradient(plan.parents, kind, u, transforms, q, d, dq, *numbers)
    patches = u.new_empty((s.positions, s.children, s.a, s.k), dtype=u.dtype)
    dW = u.new_empty((plan.both.splits, *W.shape), dtype=torch.float32)
    numbers = (s.positions, s.children, plan.both.tiles, *u.stride())
    children_and_transforms(plan.both, kind, u, transforms, q, d, patches, dW, *numbers)
    return _fold(patches, s, plan), total(dW, W.dtype), total(dq, parents.dtype, scale)


def _fold(patches: Tensor, s: Shape, plan: AttentionPlan) -> Tensor:
    size = (s.b, s.n, s.h, s.w, s.a, s.k)
    if s.covered:
        return patches.view(size).permute(0, 1, 4, 5, 2, 3)
    out = patches.new_empty(size)
    fold(plan.fold, kind_of(out), patches, out, out.numel(), s.n)
    return out.permute(0, 1, 4, 5, 2, 3)


def _transforms(W: Tensor, s: Shape, dtype: torch.dtype) -> Tensor:
    """W [i,j,k,o] as the kernels read it, [group, (child, k), column], zeros where it is padded."""
    to = s.padded
    return _arranged(W, cdiv(s.children, to["G"]) * to["G"], to["JP"], to["KP"], to["OP"], dtype, 1.0)


def _poses(x: Tensor, s: Shape, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Poses x [p,j,a,o] as the kernels read them, [p, a, column], zeros where they are padded."""
    to = s.padded
    return _arranged(x, s.positions, to["JP"], to["AP"], to["OP"], dtype, scale)


def _arranged(x: Tensor, entries: int, jp: int, mp: int, op: int, dtype: torch.dtype, scale: float) -> Tensor:
    x, (count, j, m, o) = x.contiguous(), x.shape
    out = x.new_empty((entries, mp, jp // 4, op // 2, 4, 2), dtype=dtype)
    arrange(arranged_launch(entries, j, m, o, jp, mp, op), kind_of(x), x, out, out.numel(), count, scale)
    return out
