"""Dynamic and max-min routing over stored votes, with one gradient of the votes for all iterations together.

Small votes on a CPU are stored, and those too wide for kernels on a GPU (`capsroute.votes`). The derivative that
autograd would take makes a tensor as large as the votes in every contraction and adds them up; here it is one product.
With coefficients c_t, gradients s'_t of the sums, gradients b'_t of the logits and queries q_t,

    V'_ij = sum_t c_t,ij s'_t,j + b'_t,ij q_t,j
"""

import torch
from torch import Tensor

from capsroute.form.dispatch import register_kernel, takes_kernels
from capsroute.form.loop.plain import Normalise, plain_loop
from capsroute.form.operations import Operation, is_recorded, is_transformed
from capsroute.form.rows.squash import SQUASH, squash


def stored_loop(
    votes, first: float, normalise: Normalise, iterations: int, stop_gradient: bool
) -> tuple[Tensor, Tensor] | None:
    """Poses and coefficients, or None where votes are not stored or something else is to differentiate the loop."""
    V = None if stop_gradient or iterations == 1 else votes.table()
    if V is None or _is_special(V):
        return None
    poses, c = STORED.run(False, V.requires_grad, V, first, normalise, iterations, votes.backend)
    return poses.unflatten(2, (votes.rows, votes.columns)), c.mT


def _is_special(V: Tensor) -> bool:
    """Recorded, inside a torch.func transform, or dual: those take the derivative of each contraction."""
    return is_recorded(V) or torch.autograd.forward_ad._current_level >= 0 or is_transformed(V)


def _forward(V: Tensor, first: float, normalise: Normalise, iterations: int, backend: str) -> tuple[Tensor, ...]:
    """V [b,j,i,p] -> poses [b,j,p] and coefficients [b,j,i]; then sums, queries and logits of the iterations.

    p counts pose rows and columns together.
    """
    sums: list[Tensor] = [first * V.sum(2)]
    queries: list[Tensor] = []
    logits: list[Tensor] = []
    poses = squash(sums[0], 2, backend)
    for _ in range(1, iterations):
        queries.append(queries[-1] + poses if queries else poses)
        logits.append(_dot(V, queries[-1]))
        c = normalise(logits[-1], 1)
        sums.append(torch.matmul(c.unsqueeze(2), V).squeeze(2))
        poses = squash(sums[-1], 2, backend)
    return poses, c, *sums, *queries, *logits


def _backward(
    grads: tuple, tensors: tuple[Tensor], kept: tuple[Tensor, ...], first: float, normalise: Normalise, iterations: int,
    backend: str,
) -> tuple[Tensor]:  # fmt: skip
    (g_poses, g_c, *_), (V,) = grads, tensors
    sums, queries, logits = kept[:iterations], kept[iterations : 2 * iterations - 1], kept[2 * iterations - 1 :]
    g = torch.zeros_like(sums[0]) if g_poses is None else g_poses
    left: list[Tensor] = []  # [b, j, i], times
    right: list[Tensor] = []  # [b, j, p]: the votes' gradient
    total = None
    for t in range(iterations - 1, 0, -1):
        gs = squashed_gradient(sums[t], g, backend)
        gc = _dot(V, gs)
        gc = gc if g_c is None or t < iterations - 1 else gc + g_c
        c, gl = normalise.with_gradient(logits[t - 1], gc, 1)
        gq = torch.matmul(gl.unsqueeze(2), V).squeeze(2)
        g = total = gq if total is None else total + gq
        left, right = [*left, c, gl], [*right, gs, queries[t - 1]]
    gs = squashed_gradient(sums[0], g, backend) * first
    left, right = [*left, torch.ones_like(left[0])], [*right, gs]
    return (torch.matmul(torch.stack(left, 3), torch.stack(right, 2)),)


def _plain(V: Tensor, first: float, normalise: Normalise, iterations: int, backend: str) -> tuple[Tensor, Tensor]:
    """The loop question by question, for votes [b,j,i,p] whose rows are one."""
    c = V.new_full((), first).expand(V.shape[0], V.shape[2], V.shape[1])
    agreement, aggregate = lambda q: _dot(V, q.squeeze(2)).mT, lambda c: torch.matmul(c.mT.unsqueeze(2), V)
    poses, c = plain_loop(agreement, aggregate, c, normalise, iterations, False, backend)
    return poses.squeeze(2), c.mT


# Not kernels, but the same mechanism: a forward and a backward that autograd would not find by itself.
register_kernel("stored_loop", _forward, lambda V: [], _backward)
STORED = Operation("stored_loop", _plain, tensors=1, results=2, kept=slice(2, None))


def _dot(V: Tensor, q: Tensor) -> Tensor:
    """V [b,j,i,p], q [b,j,p] -> [b,j,i]. A row times a transposed matrix is faster than a matrix times a column."""
    return torch.matmul(q.unsqueeze(2), V.mT).squeeze(2)


def squashed_gradient(s: Tensor, g: Tensor, backend: str) -> Tensor:
    """What squash makes of the gradient of its result."""
    rows = s.shape[2], 1, None, 2  # as they lie in memory
    if takes_kernels("squash", backend, (s, rows[0]), falls_back=True):
        return SQUASH.backward((g,), (s,), (), *rows)[0]
    factor, norm = _factor(s)
    unit = s / norm
    slope = factor * (2 / (1 + norm.square()) - 1)  # n d/dn of n / (1 + n^2)
    return factor * g + slope * (unit * g).sum(2, keepdim=True) * unit


def _factor(s: Tensor) -> tuple[Tensor, Tensor]:
    """n / (1 + n^2) and the norm n over the last axis, which counts as one where it is zero."""
    largest = s.abs().amax(2, keepdim=True)
    zero = largest == 0
    scale = torch.where(zero, 1.0, largest)
    norm = torch.where(zero, 1.0, (s / scale).norm(dim=2, keepdim=True) * scale)
    return torch.where(zero, 0.0, 1 / (norm + 1 / norm)), norm
