"""One step of inverted attention (Tsai 2020, procedure 1) as one operation, `capsroute::attention_step`.

Nothing of size children x parents is kept between forward and backward. All steps of a list are another,
`attention_loop`; a recorded graph has its steps. So is self-attention, which is two steps of its own kind.
"""

import torch
from torch import Tensor

from capsroute.form.contractions.operators import CONTRACTIONS
from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.cost import few_products, few_rows
from capsroute.form.dispatch import reachable
from capsroute.form.loop.operators import is_shared, loop_kept, loses_digits
from capsroute.form.loop.plain import masked_over_parents
from capsroute.form.operations import Operation, is_recorded
from capsroute.form.rows.layer_norm import layer_norm
from capsroute.form.rows.squash import exponential_squash
from capsroute.form.sizes import sizes_of, sums_dtype
from capsroute.form.window import WHOLE, Window, cut


def attention_loop(votes, iterations: int, scale: float, coefficients: bool) -> tuple[Tensor, Tensor | None] | None:
    """Poses [b,j,a,o] after so many steps from no parents, each normalised, and the last coefficients [b,i,j] if asked.

    None where they are better made step by step: `cr.form.explain("attention_loop", u, W, iterations)` says why. So are
    those over shared transforms where float32 is multiplied in parts: of sums of children the loop keeps fewer digits.
    """
    if torch.compiler.is_compiling():  # it would look at how products are made, which a compiler cannot trace
        return None
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is None or factors[2] is not None:
        return None
    u, W, _ = factors
    if loses_digits(u, W):
        return None
    save = torch.is_grad_enabled() and (u.requires_grad or W.requires_grad)
    found = ROUTING.attempt(votes.backend, u, W, iterations, scale, coefficients, save)
    return None if found is None else (found[0], found[1] if coefficients else None)


def self_attention(votes, prior: Tensor | None, scale: float) -> tuple[Tensor, Tensor] | None:
    """Poses [b,j,a,o] and coefficients [b,i,j] of self-attention, from a prior [i,j] or [1,j] of the logits.

    None where kernels do not apply: `cr.form.explain("self_attention", u, W)` says why.
    """
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is None or factors[2] is not None:
        return None
    u, W, _ = factors
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (u, W, prior))
    return SELF_ATTENTION.attempt(votes.backend, u, W, prior, scale, save and not is_recorded(u, W))


def by_own_sums(agreement, aggregate, sums: Tensor, prior: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Poses and coefficients from the sums of all votes, one question at a time."""
    logits = agreement(sums * scale)
    c = logits.softmax(2) if prior is None else masked_over_parents(logits + prior)
    return exponential_squash(aggregate(c), (2, 3)), c


def first_step(votes, coefficients: bool) -> tuple[Tensor, Tensor | None]:
    """Sums of votes [b,j,a,o] for parents that are not there yet, and coefficients that are all alike, if asked for."""
    c = votes.filled(1 / votes.parents) if coefficients else None
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is not None and factors[2] is None and _reads_once(*factors[:2]):
        u, W, _ = factors
        found = STEP.attempt(votes.backend, u, W, None, 1.0, list(WHOLE), False)
        if found is not None:
            return found[0], c
    return votes.aggregate_alike(1 / votes.parents), c


def _reads_once(u: Tensor, W: Tensor) -> bool:
    """Whether kernels beat a matrix product of children and transforms. A graph must not depend on the batch size."""
    if is_shared(u, W) or torch.compiler.is_compiling():
        return is_shared(u, W)
    s = sizes_of(u, W)
    return few_products(s) or few_rows(s)


def attention_step(votes, parents: Tensor, scale: float, coefficients: bool) -> tuple[Tensor, Tensor | None]:
    """Sums of votes [b,j,a,o], and the coefficients [b,i,j]: softmax over parents of scale * (parents . votes).

    Where kernels apply (`cr.form.explain("attention_step", map, W, window)` says why not), coefficients that are not
    asked for are not stored.
    """
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is not None:
        u, W, window = factors
        found = STEP.attempt(votes.backend, u, W, parents, scale, list(window or WHOLE), coefficients)
        if found is not None:
            return found[0], found[1] if coefficients else None
    return _by_questions(votes.agreement, votes.aggregate, parents, scale)


def _by_questions(agreement, aggregate, parents: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    # Scaling the parents, not the agreement, touches [b,j,a,o] instead of [b,i,j].
    c = agreement(parents if scale == 1 else parents * scale).softmax(2)
    return aggregate(c), c


def _plain(u: Tensor, W: Tensor, parents: Tensor | None, scale: float, window: list[int], coefficients: bool):
    children = u if u.dim() == 4 else cut(u, Window(*window))
    if parents is None:
        c = torch.full((), 1 / W.shape[1], dtype=statistics_dtype(u, W), device=u.device)
        c = c.expand(*children.shape[:2], W.shape[1])
        return CONTRACTIONS["aggregate"](c, children, W), c
    return _by_questions(
        lambda q: CONTRACTIONS["agreement"](children, W, q), lambda c: CONTRACTIONS["aggregate"](c, children, W),
        parents.float(), scale,
    )  # fmt: skip


def _fake(u, W, parents, scale, window, coefficients):
    children = u.shape[1] * window[0] ** 2
    shape = (u.shape[0], W.shape[1], u.shape[2], W.shape[3]) if parents is None else parents.shape
    c = (shape[0], children, W.shape[1]) if coefficients else (0,)
    kept = ((1 if parents is None else 2), shape[0], shape[1], u.shape[2], u.shape[3]) if is_shared(u, W) else (0,)
    outputs = (u.new_empty(size, dtype=torch.float32) for size in (shape, c))
    return *outputs, u.new_empty(kept, dtype=sums_dtype(u, W) if is_shared(u, W) else torch.float32)


def _fake_backward(u, W, parents):
    from capsroute.form.maps import empty_gradient

    by_parents = u.new_empty(0, dtype=torch.float32) if parents is None else parents.new_empty(parents.shape)
    return [empty_gradient(u), W.new_empty(W.shape), by_parents]


def _plain_loop(u: Tensor, W: Tensor, iterations: int, scale: float, coefficients: bool, save: bool):
    poses = None
    for _ in range(iterations):
        sums, c = _plain(u, W, poses, scale, list(WHOLE), True)
        poses = layer_norm(sums, axes=2)
    return poses, c  # type: ignore[return-value]


def _plain_self(u: Tensor, W: Tensor, prior: Tensor | None, scale: float, save: bool):
    one = torch.ones((), dtype=statistics_dtype(u, W), device=u.device)
    sums = CONTRACTIONS["aggregate"](one.expand(*u.shape[:2], W.shape[1]), u, W)
    return by_own_sums(
        lambda q: CONTRACTIONS["agreement"](u, W, q), lambda c: CONTRACTIONS["aggregate"](c, u, W), sums,
        None if prior is None else prior.to(sums.dtype), scale,
    )  # fmt: skip


def _self_kept(u: Tensor, W: Tensor, prior: Tensor | None) -> slice:
    from capsroute.form.attention.self_attention import makes_coefficients_again

    return slice(2, None) if makes_coefficients_again(u, W) else loop_kept(u, W)


# The kernels know no gradient of the coefficients.
STEP = Operation(
    "attention_step", _plain, tensors=3, asks=(0, 1, 4), results=2, kept=slice(2, None), foreign=(1,), falls_back=True,
    fake=_fake, fake_backward=_fake_backward,
    schema="(Tensor u, Tensor W, Tensor? parents, float scale, int[] window, bool coefficients) "
    "-> (Tensor, Tensor, Tensor)",
)  # fmt: skip
ROUTING = Operation(
    "attention_loop", _plain_loop, tensors=2, asks=(0, 1, 2), results=2, kept=loop_kept, foreign=(1,), falls_back=True,
)  # fmt: skip
SELF_ATTENTION = Operation(
    "self_attention", _plain_self, tensors=3, asks=(0, 1), results=2, kept=_self_kept, foreign=(1,), falls_back=True
)
