"""Dynamic and max-min routing as a sequence of kernels: one pass and one small reduction an iteration, and back.

More parents than one program holds take a pass in three parts (`planes`). All steps of inverted attention over a list
are the same kernels: the reduction normalises, and its poses are the next query (`Schedule`).

Children are a list [b,i,a,k], or a map [b,n,a,k,h,w] and a window over it, whose places then count as samples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.contractions.gradients import children_gradient, transforms_gradient
from capsroute.form.contractions.kernels import aggregate_plane, agreement_plane, grid_reasons, operand_reasons
from capsroute.form.launch import Launch, LaunchSequence, kind_of, on_device
from capsroute.form.launches.lists import LoopPlan, loop_plan
from capsroute.form.launches.stored_votes import KeptPlan, ResidentPlan, kept_plan, resident_plan
from capsroute.form.loop.kept import kept_backward, kept_forward
from capsroute.form.loop.operators import is_shared
from capsroute.form.loop.passes import backward_pass, forward_pass, uniform_pass
from capsroute.form.loop.plain import Prior, Schedule, no_prior
from capsroute.form.loop.planes import normalise_plane, normalise_plane_backward
from capsroute.form.loop.reductions import sum_and_squash, sum_and_squash_backward
from capsroute.form.loop.shared import OVER_MAP, shared_backward, shared_forward, walk_reasons
from capsroute.form.loop.split import votes_backward, votes_forward
from capsroute.form.maps import Shape, onto_map, shape_of
from capsroute.form.sizes import MOST_CHILD, MOST_COLUMNS, Sizes, loop_precision, operand_dtype, padded, sizes_of


class Operands(NamedTuple):
    """Children and transforms as the kernels read them, their sizes, and the map that the children are, if one."""

    u: Tensor
    W: Tensor
    sizes: Sizes
    map: Shape | None

    def plan(self, planes: bool = False, softmax: bool = True) -> LoopPlan:
        gathered = None if self.map is None or self.map.covered else tuple(self.map.geometry.values())
        return loop_plan(self.sizes, operand_dtype(self.u, self.W), loop_precision(), gathered, planes, softmax)


def operands_of(u: Tensor, W: Tensor, window: tuple[int, int, int] | None) -> Operands:
    """A map is laid out as [b,n,h,w,a,k]: a copy where it lies otherwise, a ninth of the patches of a 3 x 3 window."""
    if window is None:
        return Operands(u.contiguous(), W.contiguous(), sizes_of(u, W), None)
    s = shape_of(u, W, window)
    return Operands(u.permute(0, 1, 4, 5, 2, 3).contiguous(), W.contiguous(), _patch_sizes(s), s)


def _patch_sizes(s: Shape) -> Sizes:
    return Sizes(s.positions, s.children, s.j, s.a, s.k, s.o)


def loop_reasons(u: Tensor, W: Tensor, iterations: int, window: tuple[int, int, int] | None = None) -> list[str]:
    """Why the fused loop does not apply to a list, or to a map under a window, if anything."""
    s = sizes_of(u, W) if window is None else _patch_sizes(shape_of(u, W, window))
    reasons = operand_reasons(u, W, (iterations * s.b * s.j, s.a, s.o))
    pose = padded(s)
    if iterations < 2:
        reasons.append("one iteration has no agreement to fuse")
    if s.b * s.i * s.j * iterations >= 1 << 31:
        reasons.append("coefficients of all iterations have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if window is not None and s.b * s.i * s.a * s.k >= 1 << 31:
        reasons.append("the gradients of all patches have 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if W.shape[0] == 1 < s.i:
        return reasons + (walk_reasons(s, iterations, operand_dtype(u, W)) if window is None else [OVER_MAP])
    held = s.j * pose["OP"] <= MOST_COLUMNS
    reasons += grid_reasons(s.j, 0 if held else s.b)
    if max(s.a, s.k) > MOST_CHILD:
        reasons.append(f"a child's pose has at most {MOST_CHILD} rows and {MOST_CHILD} columns, here {s.a} and {s.k}")
    return reasons


@on_device
def loop_forward(
    u: Tensor, W: Tensor, iterations: int, softmax: bool, lower: float, upper: float, first: float, stop_gradient: bool,
    save: bool, window: tuple[int, int, int] | None = None, keep: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """poses [b,j,a,o] and coefficients [b,i,j]; then what the backward pass needs: sums, queries, earlier coefficients,
    and votes, if there are any to keep.

    Coefficients lie in memory as [i,j,b], in which order the kernels read them.
    """
    how = Schedule(iterations, softmax, first, lower, upper, stop_gradient)
    if window is None and is_shared(u, W):
        return *shared_forward(u, W, how), _none(u)
    operands = operands_of(u, W, window)
    return per_child_forward(operands, stored_plan(operands), how, save, keep)


def stored_plan(operands: Operands) -> ResidentPlan | KeptPlan | None:
    """How the loop over a list stores its votes, if it does."""
    if operands.map is not None:
        return None
    s = operands.sizes
    return resident_plan(s, operand_dtype(operands.u, operands.W), loop_precision()) or kept_plan(s)


def per_child_forward(
    operands: Operands, stored: ResidentPlan | KeptPlan | None, how: Schedule, save: bool, keep: bool = False,
    prior: Prior | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `loop_forward`, by the passes, or by votes that are stored. Coefficients are empty where nobody wants them."""
    u, W, s, _ = operands
    prior = prior or no_prior(W)
    T, dtype, plan = how.iterations, operand_dtype(u, W), operands.plan(softmax=bool(how.softmax))
    pose = (s.b, s.j, s.a, s.o)
    keeps_c = save and bool(how.softmax) and not how.stop_gradient
    store_last = how.coefficients or save
    holds_last = store_last or (plan.normalise is not None and stored is None)  # logits lie there too
    poses = u.new_empty(pose, dtype=torch.float32)
    last = torch.empty_strided(
        (s.b, s.i, s.j) if holds_last else (0, 0, 0), (1, s.j * s.b, s.b), dtype=torch.float32, device=u.device
    )
    sums = u.new_empty((T, *pose), dtype=torch.float32)
    queries = u.new_empty((T - 1, *pose), dtype=dtype)
    earlier = u.new_empty((T - 2 if keeps_c else 0, s.i, s.j, s.b), dtype=dtype)

    kind, dtypes = kind_of(u, W, prior.given, prior.stride), (u.dtype, W.dtype, prior.given.dtype)
    run = LaunchSequence((stored or plan).sequences, kind, *dtypes, how, save)
    if isinstance(stored, ResidentPlan):
        votes_forward(run, stored, u, W, s, dtype, (poses, last, sums, queries), how, prior)
        run.end()
        return poses, last, sums, queries, earlier, _none(u)
    if stored is not None:
        results = poses, last, sums, queries, earlier
        votes = kept_forward(run, stored, u, W, s, dtype, results, how, keeps_c, prior)
        run.end()
        return *results, votes if keep and not how.stop_gradient else _none(u)
    # Behind the partial sums of the passes: the query, accumulated.
    part = u.new_empty((plan.splits + 1, *pose), dtype=torch.float32)
    run(uniform_pass, plan.uniform, u, W, part, s.b, s.i, plan.uniform.tiles, how.first)
    _reduce(run, plan, plan.uniform.splits, part, sums, queries, poses, s.b, 0, how)
    for t in range(1, T):
        c, plane, store = (last, 0, store_last) if t == T - 1 else (earlier, t - 1, keeps_c)
        if plan.normalise is None:
            run(
                forward_pass, plan.forward, u, W, queries, c, part, prior.given, s.b, s.i, plan.forward.tiles, t - 1,
                plane, how.lower, how.upper, prior.stride, SOFTMAX=how.softmax, STORE=store,
            )  # fmt: skip
        else:
            kept, plane = (c, plane) if store else (last, 0)
            agreement_of(run, plan.agreement, operands, queries, last, t - 1, _of_logits(prior, how))
            bounds = (s.b, s.i, s.j, plane, how.lower, how.upper)
            run(normalise_plane, plan.normalise, last, kept, *bounds, SOFTMAX=how.softmax)
            run(aggregate_plane, plan.forward, u, W, kept, part, s.b, s.i, s.j, plan.forward.tiles, plane)
        _reduce(run, plan, plan.forward.splits, part, sums, queries, poses, s.b, t, how)
    run.end()
    return poses, last, sums, queries, earlier, _none(u)


def _none(like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32)


def _of_logits(prior: Prior, how: Schedule) -> tuple[Tensor, tuple[int, int, int]] | None:
    """A prior as `agreement_of` is given it."""
    return (prior.given, (0, prior.stride, 1)) if how.softmax == 2 else None


def agreement_of(
    run: LaunchSequence, launch: Launch, operands: Operands, q, out, t: int,
    given: tuple[Tensor, tuple[int, ...]] | None = None, alone: bool = False,
) -> None:  # fmt: skip
    """The plane [i,j,b] of agreement with q[t], plus what is given for it [b,i,j], with its strides, or that alone."""
    u, W, s, _ = operands
    more, strides = (out, (0, 0, 0)) if given is None else given
    run(
        agreement_plane, launch, u, W, q, more, out, s.b, s.i, s.j, launch.tiles, t, *strides,
        GIVEN=given is not None, ALONE=alone,
    )  # fmt: skip


def _reduce(
    run: LaunchSequence, plan: LoopPlan, splits: int, part, sums, queries, poses, b: int, t: int, how: Schedule
) -> None:
    numbers = (b, splits, t, how.factor)
    run(sum_and_squash, plan.reduce, part, sums, queries, poses, *numbers, T=how.iterations, NORM=how.norm)


@on_device
def loop_backward(
    grads: tuple[Tensor | None, ...], tensors: tuple[Tensor, Tensor], kept: tuple[Tensor, ...], iterations: int,
    softmax: bool, lower: float, upper: float, first: float, stop_gradient: bool, save: bool,
    window: tuple[int, int, int] | None = None, keep: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by u and W, from those of the poses and of the coefficients (None: zero)."""
    g_poses, g_c, *_ = grads
    how = Schedule(iterations, softmax, first, lower, upper, stop_gradient)
    if window is None and is_shared(*tensors):
        return shared_backward(g_poses, g_c, *tensors, kept[:2], how)
    operands = operands_of(*tensors, window)
    return per_child_backward(g_poses, g_c, operands, kept, stored_plan(operands), how)


def per_child_backward(
    g_poses: Tensor | None, g_c: Tensor | None, operands: Operands, kept: tuple[Tensor, ...],
    stored: ResidentPlan | KeptPlan | None, how: Schedule, prior: Prior | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `loop_backward`, from what `per_child_forward` kept."""
    prior = prior or no_prior(operands.W)
    (u, W, s, _), (c, sums, queries, earlier, votes) = operands, kept
    T, dtype, plan = how.iterations, operand_dtype(u, W), operands.plan(softmax=bool(how.softmax))
    if not isinstance(stored, ResidentPlan) and c.stride() != (1, s.j * s.b, s.b):
        c = c.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # as it was born, [i, j, b] in memory
    g_poses = torch.zeros_like(sums[0]) if g_poses is None else g_poses.contiguous()
    marks: tuple[Tensor | int, ...] = () if g_c is None else (g_c, *g_c.stride())
    kind, dtypes = kind_of(u, W, g_poses, c, prior.given, prior.stride, *marks), (u.dtype, W.dtype, prior.given.dtype)
    run = LaunchSequence((stored or plan).sequences, kind, *dtypes, how, "back", votes.numel() > 0)
    if isinstance(stored, ResidentPlan):
        gradients = votes_backward(run, stored, u, W, s, dtype, g_poses, g_c, (sums, queries), how, prior)
        run.end()
        return gradients
    if stored is not None:
        saved = c, sums, queries, earlier, votes
        gradients = kept_backward(run, stored, u, W, s, dtype, g_poses, g_c, saved, how, prior)
        run.end()
        return gradients
    if how.stop_gradient:
        return _backward_of_last(run, g_poses, g_c, operands, c, sums, queries, plan, dtype, how)
    if not how.softmax:
        earlier = u.new_empty((T - 2, s.i, s.j, s.b), dtype=dtype)
    logits = u.new_empty((T - 1, s.i, s.j, s.b), dtype=dtype)  # their gradients
    if how.softmax == 2:
        logits = prior.gradient[None]
    x = u.new_empty((T, s.b, s.j, s.a, s.o), dtype=dtype)  # gradients of the sums, the first iteration's last
    part = u.new_empty((plan.splits + 1, *sums.shape[1:]), dtype=torch.float32)
    for t in range(T - 1, 0, -1):
        # A query is a pose times the factor, and so is its gradient.
        _squash_backward(run, plan, part, sums, g_poses, x, t, t - 1, how, 1.0 if t == T - 1 else how.factor)
        now, plane, given = (c, 0, g_c) if t == T - 1 else (earlier, t - 1, None)
        _pass_backward(
            run, plan, operands, queries, x, now, plane, given, logits, part, how, prior, t - 1, store=t < T - 1
        )
    _squash_backward(run, plan, part, sums, g_poses, x, 0, T - 1, how, how.factor * how.first)
    del part  # before the gradients are allocated
    terms = (c, earlier, logits, x, queries)
    return term_gradients(run, terms, operands, plan, {"T": T, "FIRST": True, "LOGITS": True})


def _backward_of_last(
    run: LaunchSequence, g_poses, g_c, operands: Operands, c, sums, queries, plan: LoopPlan, dtype, how: Schedule
) -> tuple[Tensor, Tensor]:
    """Gradients of the last iteration alone: its coefficients and its query count as constants of the poses."""
    s = operands.sizes
    x = torch.empty_like(g_poses, dtype=dtype)
    _squash_backward(run, plan, sums, sums[-1], g_poses, x, 0, 0, how._replace(iterations=1), 1.0)
    logits = x.new_empty((1 if g_c is not None else 0, s.i, s.j, s.b))
    if g_c is not None:
        part = x.new_empty((plan.backward.splits, *g_poses.shape), dtype=torch.float32)
        none = no_prior(operands.W)
        _pass_backward(run, plan, operands, queries[-1], x, c, 0, g_c, logits, part, how, none, 0, False, stop=True)
    terms = (c, logits, logits, x, queries[-1])
    return term_gradients(run, terms, operands, plan, {"T": 2, "FIRST": False, "LOGITS": g_c is not None})


def _squash_backward(run, plan, part, sums, g_poses, x, t: int, n: int, how: Schedule, scale: float) -> None:
    """The gradient of the sums of iteration t, times scale, to x[n]."""
    run(
        sum_and_squash_backward, plan.reduce, part, sums, g_poses, x, g_poses.shape[0], plan.backward.splits, t, n,
        scale, T=how.iterations, NORM=how.norm,
    )  # fmt: skip


def _pass_backward(
    run: LaunchSequence, plan: LoopPlan, operands: Operands, queries, x, c, plane: int, g_c, logits, part,
    how: Schedule, prior: Prior, t: int, store: bool, stop: bool = False,
) -> None:  # fmt: skip
    u, W, s, _ = operands
    if plan.normalise is not None:
        g = u.new_empty((s.i, s.j, s.b), dtype=torch.float32)
        agreement_of(run, plan.agreement, operands, x, g, t, None if g_c is None else (g_c, g_c.stride()), stop)
        again = g
        if not how.softmax:
            again = torch.empty_like(g)
            agreement_of(run, plan.agreement, operands, queries, again, t)
        bounds = (s.b, s.i, s.j, t, plane, how.lower, how.upper, prior.stride)
        which = {"SOFTMAX": how.softmax, "STORE": store and not how.softmax}
        run(normalise_plane_backward, plan.normalise, again, c, g, logits, prior.given, *bounds, **which)
        run(aggregate_plane, plan.backward, u, W, logits, part, s.b, s.i, s.j, plan.backward.tiles, t)
        return
    given, strides = (c, (0, 0, 0)) if g_c is None else (g_c, g_c.stride())
    run(
        backward_pass, plan.backward, u, W, queries, x, c, given, logits, part, prior.given, s.b, s.i,
        plan.backward.tiles, t, plane, how.lower, how.upper, prior.stride, *strides,
        SOFTMAX=how.softmax, STORE=store and not how.softmax, HAS_GC=g_c is not None, STOP=stop,
    )  # fmt: skip


def term_gradients(
    run: LaunchSequence, terms, operands: Operands, plan: LoopPlan, which: dict
) -> tuple[Tensor, Tensor]:
    """By u (by its patches first, where it is a map) and by W; in parts first, where they are split over programs."""
    u, W, s, shape = operands
    strides = terms[0].stride()
    du, dW = _parts((s.b, s.i, s.a, s.k), u, plan.children), _parts(W.shape, W, plan.transforms)
    run(children_gradient, plan.children, *terms, W, du, s.b, s.i, s.j, plan.children.tiles, *strides, **which)
    run(transforms_gradient, plan.transforms, *terms, u, dW, s.b, s.i, s.j, plan.transforms.tiles, *strides, **which)
    du = du if plan.children.splits == 1 else du.sum(0).to(u.dtype)
    if shape is not None:
        du = onto_map(run, du, shape)
    run.end()
    return du, dW if plan.transforms.splits == 1 else dW.sum(0).to(W.dtype)


def _parts(shape: Sequence[int], like: Tensor, launch: Launch) -> Tensor:
    """A gradient as a launch leaves it: itself, or its partial sums."""
    return like.new_empty(shape) if launch.splits == 1 else like.new_empty((launch.splits, *shape), dtype=torch.float32)
