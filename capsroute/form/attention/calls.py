"""One step of inverted attention and its derivative as sequences of kernels.

Children are a map [b,n,a,k,h,w] in any memory order and a window over it, i = (capsule, window row, window column); or
a list [b,i,a,k], which counts as a map of one place.
"""

import torch
from torch import Tensor

from capsroute.form.attention.few import few_backward, few_forward
from capsroute.form.attention.gradients import children_and_transforms, parents_gradient
from capsroute.form.attention.kernels import arrange, attend
from capsroute.form.attention.planes import planes_backward, planes_forward, uniform_backward, uniform_forward
from capsroute.form.attention.shared import shared_step_backward, shared_step_forward
from capsroute.form.contractions.kernels import grid_reasons, operand_reasons
from capsroute.form.launch import Launch, LaunchSequence, kind_of, on_device
from capsroute.form.launches.attention_steps import Arranged, attention_plan, few_launch
from capsroute.form.loop.operators import is_shared
from capsroute.form.loop.shared import OVER_MAP, shared_reasons
from capsroute.form.maps import Shape, onto_map, shape_of
from capsroute.form.rows.totals import total
from capsroute.form.sizes import Sizes, operand_dtype, precision

# Columns (parent, o) of votes and of as many accumulators that one program can hold: 256 leave its registers.
MOST_COLUMNS = 128

COEFFICIENTS = "coefficients are 2^31 or more, beyond the kernels' 32-bit offsets"


def attention_reasons(u: Tensor, W: Tensor, window: tuple[int, int, int]) -> list[str]:
    """Why the fused step does not apply to a map [b,n,a,k,h,w] or a list, and transforms W [i,j,k,o], if anything."""
    s, reasons = shape_of(u, W, window), operand_reasons(u, W)
    pose = s.padded
    if s.positions * s.children * s.a * s.k >= 1 << 31:
        reasons.append("the gradients of all patches have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if W.shape[0] == 1 < s.children:
        sizes = _list_sizes(s)
        if s.positions * s.children * s.j >= 1 << 31:
            reasons.append(COEFFICIENTS)
        return reasons + ([OVER_MAP] if sizes is None else shared_reasons(sizes, 1))
    if sum((size - 1) * step for size, step in zip(u.shape, u.stride())) >= 1 << 31:
        reasons.append("children lie 2^31 numbers or more apart in memory, beyond the kernels' 32-bit offsets")
    if s.positions * pose["JP"] * pose["AP"] * pose["OP"] >= 1 << 31:
        reasons.append("poses of parents, padded, have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if not _held(s):
        reasons += grid_reasons(s.j, s.positions)
        if s.positions * s.children * s.j >= 1 << 31:
            reasons.append(COEFFICIENTS)
    if pose["AP"] > 16 or pose["KP"] > 32:
        reasons.append(f"a child's pose has at most 16 rows and 32 columns, here {s.a} and {s.k}")
    return reasons


def _list_sizes(s: Shape) -> Sizes | None:
    """Of a list of children; None of a map."""
    listed = s.h == s.w == s.window.kernel == 1 and s.window.padding == 0
    return Sizes(s.b, s.n, s.j, s.a, s.k, s.o) if listed else None


def _listed(u: Tensor) -> Tensor:
    """A list, also where it came as a map."""
    return u if u.dim() == 4 else u.flatten(3)


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
        return shared_step_forward(_listed(u), W, parents, scale, coefficients)
    s, dtype, none = shape_of(u, W, window), operand_dtype(u, W), u.new_empty(0, dtype=torch.float32)
    few = _few(s)
    if few is not None:
        return *few_forward(few, _listed(u), W, parents, scale, coefficients), none
    if parents is None:
        return uniform_forward(_listed(u), W), torch.empty_like(none), none
    if not _held(s):
        return *planes_forward(u, W, parents, scale, None if u.dim() == 4 else window, coefficients), none
    plan, W, parents, strides = attention_plan(s, dtype, precision()), W.contiguous(), parents.contiguous(), _strides(u)
    kind, launch = kind_of(u, W, parents, *strides), plan.forward
    run = LaunchSequence(plan.sequences, kind, u.dtype, W.dtype, parents.dtype, coefficients)
    out = u.new_empty((launch.splits, plan.positions, s.j, s.a, s.o), dtype=torch.float32)
    c = u.new_empty((plan.positions, plan.children, s.j) if coefficients else (0,), dtype=torch.float32)
    transforms = _arranged(run, plan.transforms, W, dtype)
    q = _arranged(run, plan.poses, parents, dtype, scale)
    numbers = (plan.positions, plan.children, launch.tiles, *strides)
    run(attend, launch, u, transforms, q, out, c, *numbers, STORE=coefficients)
    sums = total(out, run=run)
    run.end()
    return sums, c, none


@on_device
def attention_backward(
    grads: tuple[Tensor, ...], tensors: tuple[Tensor, Tensor, Tensor], kept: tuple, scale: float,
    window: tuple[int, int, int], coefficients: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by the map, the transforms and the parents, from that of the sums [p,j,a,o]."""
    (g, *_), (u, W, parents) = grads, tensors
    if is_shared(u, W):
        made = shared_step_backward(g, _listed(u), W, parents, kept[0], scale)
        return _as_given(made[0], u), *made[1:]
    s, dtype = shape_of(u, W, window), operand_dtype(u, W)
    few = _few(s)
    if few is not None or parents is None:
        made = few_backward(few, g, _listed(u), W, parents, scale) if few else uniform_backward(g, _listed(u), W)
        return _as_given(made[0], u), *made[1:]
    if not _held(s):
        return planes_backward(g, u, W, parents, scale, None if u.dim() == 4 else window)
    plan, W, strides = attention_plan(s, dtype, precision()), W.contiguous(), _strides(u)
    parents, g = parents.contiguous(), g.contiguous()
    kind = kind_of(u, W, parents, g, *strides)
    # A scale of one adds no launch where nothing is to be added up.
    run = LaunchSequence(plan.sequences, kind, u.dtype, W.dtype, parents.dtype, g.dtype, scale == 1, "back")
    transforms = _arranged(run, plan.transforms, W, dtype)
    q, d = _arranged(run, plan.poses, parents, dtype, scale), _arranged(run, plan.poses, g, dtype)
    dq = u.new_empty((plan.parents.splits, plan.positions, s.j, s.a, s.o), dtype=torch.float32)
    numbers = (plan.positions, plan.children, plan.parents.tiles, *strides)
    run(parents_gradient, plan.parents, u, transforms, q, d, dq, *numbers)
    patches = u.new_empty((plan.positions, plan.children, s.a, s.k), dtype=u.dtype)
    dW = u.new_empty((plan.both.splits, *W.shape), dtype=torch.float32)
    numbers = (plan.positions, plan.children, plan.both.tiles, *strides)
    run(children_and_transforms, plan.both, u, transforms, q, d, patches, dW, *numbers)
    du = patches if u.dim() == 4 else onto_map(run, patches, s)
    made = du, total(dW, W.dtype, run=run), total(dq, parents.dtype, scale, run)
    run.end()
    return made


def _as_given(du: Tensor, u: Tensor) -> Tensor:
    """The gradient of a list, also where that came as a map."""
    return du if u.dim() == 4 else du[..., None, None]


def _strides(u: Tensor) -> tuple[int, ...]:
    """Of a map."""
    return u.stride() if u.dim() == 6 else (*u.stride(), 1, 1)


def _arranged(run: LaunchSequence, how: Arranged, x: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Transforms W [i,j,k,o] or poses x [p,j,a,o] as the kernels read them, zeros where they are padded."""
    out = x.new_empty(how.shape, dtype=dtype)
    run(arrange, how.launch, x, out, out.numel(), x.shape[0], scale)
    return out
