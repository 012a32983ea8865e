"""Random cases of values, not of sizes: zeros, tiny, vast and mixed numbers, and every way in which scores saturate.

A case is an algorithm and what its operands are like, drawn from one seed. It is computed three times: by the kernels,
in plain float32 over stored votes, and in plain float64.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

import capsroute as cr
from capsroute.form.rows.layer_norm import layer_norm
from capsroute.form.window import Window
from capsroute.patches import PatchVotes
from capsroute.routing.normalise import over_parents

ROUNDING = 2.0**-23
NUDGE = 4  # roundings: three TF32 products read 21 of the 23 digits of an operand
NEIGHBOURS = 24  # one in six shows what a parent of one child does to plain float32


class Values(NamedTuple):
    """An algorithm, what children and transforms are like, and the seed they are drawn from."""

    algorithm: str
    children: str
    transforms: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.algorithm}, children {self.children}, transforms {self.transforms}, seed {self.seed}"


def _per_number(x: Tensor, generator: torch.Generator) -> Tensor:
    return x * 10 ** (torch.rand(x.shape, generator=generator) * 12 - 8)


def _per_capsule(x: Tensor, generator: torch.Generator) -> Tensor:
    return x * 10 ** (torch.rand((*x.shape[:2], *[1] * (x.dim() - 2)), generator=generator) * 20 - 12)


def _some_zero(x: Tensor, generator: torch.Generator) -> Tensor:
    return x * (torch.rand((*x.shape[:2], *[1] * (x.dim() - 2)), generator=generator) > 0.5)


def _alike(x: Tensor, generator: torch.Generator) -> Tensor:
    return x[:, :1].expand_as(x) * (1 + 1e-6 * torch.randn(x.shape, generator=generator))


LIKE: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "plain": lambda x, _: x,
    "zero": lambda x, _: x * 0,
    "tiny": lambda x, _: x * 1e-20,
    "small": lambda x, _: x * 1e-9,
    "large": lambda x, _: x * 10,
    "huge": lambda x, _: x * 1e4,
    "vast": lambda x, _: x * 1e15,
    "mixed numbers": _per_number,
    "mixed capsules": _per_capsule,
    "some zero": _some_zero,
    "all but alike": _alike,
}

EXTREME = ("tiny", "vast", "mixed capsules")
# b, i, j, a, k, o: vector poses, matrix poses, more parents than a program holds (of which the interpreter has none).
SIZES = ((3, 4, 3, 1, 4, 4), (2, 4, 3, 2, 2, 2))
MANY = (2, 4, 20, 1, 4, 16)
# Lists whose steps of attention are not those of a small layer.
ATTENTION = {
    "attention, many parents": (1, 4, 70, 1, 4, 33), "attention, many children": (1, 1200, 2, 1, 2, 8),
    "attention, in passes": (2, 36, 3, 9, 4, 8), "attention, in planes": (1, 4, 33, 2, 4, 33),
}  # fmt: skip


def cases(algorithm: str, count: int) -> Iterator[Values]:
    """So many, always the same, whether in columns or not. Children or transforms are extreme, not both, which leaves
    float32 where votes do."""
    draw = random.Random(algorithm.removesuffix(", in columns"))
    for seed in range(count):
        children, transforms = draw.choice(list(LIKE)), draw.choice(list(LIKE))
        yield Values(algorithm, "plain" if transforms in EXTREME else children, transforms, seed)


def operands(case: Values) -> list[Tensor]:
    """Children, transforms and what else the algorithm wants, in float32."""
    generator = torch.Generator().manual_seed(case.seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    b, i, j, a, k, o = ATTENTION.get(case.algorithm, MANY if case.seed % 5 == 4 else SIZES[case.seed % 2])
    if case.algorithm in ("squash", "layer norm"):
        return [LIKE[case.children](draw(b, i, a * k), generator)]
    if case.algorithm == "pooling":
        return [LIKE[case.children](draw(b, i, a, k), generator)]
    over_map = case.algorithm.startswith("conv")
    u = draw(1, 2, a, k, 3, 3) if over_map else draw(b, i, a, k)
    shared = case.algorithm.endswith("shared")
    W = draw(1 if shared else 8 if over_map else i, j, k, o) * k**-0.5
    made = [LIKE[case.children](u, generator), LIKE[case.transforms](W, generator)]
    if case.algorithm.startswith("self-attention") and case.seed % 3 == 0:
        made.append(draw(i, j))
    if case.algorithm.startswith("self-routing"):
        saturated = torch.tensor([100.0, -100.0, 1e15, -torch.inf, 0.3])
        made += [draw(b, i).sigmoid(), saturated[torch.randint(5, (b, i, j), generator=generator)]]
    if case.algorithm.startswith(("EM", "VB")):
        saturated = torch.tensor([0.0, 1.0, 1e-30, 0.5])[torch.randint(4, (b, i), generator=generator)]
        made += [saturated if case.seed % 3 else draw(b, i).sigmoid(), draw(j), draw(j)]
    if case.algorithm.startswith("Heinsen"):
        limits = torch.tensor([torch.inf, -torch.inf, 80.0, -80.0, 0.3])
        saturated = limits[torch.randint(5, (b, i), generator=generator)]
        betas = (1, j) if shared else (i, j)
        made += [saturated if case.seed % 3 else 3 * draw(b, i), draw(*betas), draw(*betas)]
    return made


def _norm(backend: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) if backend == "torch" else layer_norm(x)


def _attention(votes: cr.LinearVotes | cr.DenseVotes) -> cr.Routed:
    backend = "torch" if isinstance(votes, cr.DenseVotes) else votes.backend

    def norm(poses: Tensor) -> Tensor:
        return _norm(backend, poses.flatten(2)).view_as(poses)

    first = cr.inverted_attention_routing(votes, norm=norm)
    return cr.inverted_attention_routing(votes, first.poses, norm=norm)


def _all_steps(votes: cr.LinearVotes | cr.DenseVotes) -> cr.Routed:
    plain = isinstance(votes, cr.DenseVotes)
    return _attention(votes) if plain else cr.inverted_attention_routing(votes, iterations=2)


def _listed(route: Callable[..., cr.Routed]) -> Callable[..., cr.Routed]:
    return lambda backend, u, W, *rest: route(_votes(cr.LinearVotes(u, W, backend=backend)), *rest)


def _by_kernels(route: Callable[..., cr.Routed]) -> Callable[..., cr.Routed]:
    """Of votes that are asked twice: a CPU, and so the interpreter, stores what is as small as here."""
    listed = _listed(route)
    return lambda backend, *tensors: listed("triton" if backend == "auto" else backend, *tensors)


def _over_map(route: Callable[..., cr.Routed]) -> Callable[..., cr.Routed]:
    return lambda backend, u, W: route(_votes(PatchVotes(u, W, Window(2), backend)))


def _votes(votes: cr.LinearVotes) -> cr.LinearVotes | cr.DenseVotes:
    """The plain form stores its votes."""
    return cr.DenseVotes(votes.dense()) if votes.backend == "torch" else votes


ROUTES: dict[str, Callable] = {
    "dynamic": _listed(cr.dynamic_routing),
    "dynamic, in passes": _listed(cr.dynamic_routing),
    "dynamic, votes kept": _listed(cr.dynamic_routing),
    "dynamic, shared": _listed(cr.dynamic_routing),
    "max-min": _listed(cr.max_min_routing),
    "max-min, in passes": _listed(cr.max_min_routing),
    "max-min, votes kept": _listed(cr.max_min_routing),
    "max-min, shared": _listed(cr.max_min_routing),
    "max-min, stopped": _listed(lambda votes: cr.max_min_routing(votes, stop_gradient=True)),
    "attention": _listed(_attention),
    "attention, shared": _listed(_attention),
    "attention, all steps": _listed(_all_steps),
    "attention, many parents": _listed(_all_steps),
    "attention, many children": _listed(_all_steps),
    "attention, in passes": _listed(_all_steps),
    "attention, in planes": _listed(_all_steps),
    "EM": _listed(cr.em_routing),
    "EM, in columns": _listed(cr.em_routing),
    "EM, shared": _listed(cr.em_routing),
    "Heinsen": _listed(cr.heinsen_routing),
    "Heinsen, in columns": _listed(cr.heinsen_routing),
    "Heinsen, shared": _listed(cr.heinsen_routing),
    "VB": _listed(cr.vb_routing),
    "VB, in columns": _listed(cr.vb_routing),
    "VB, in walks": _listed(cr.vb_routing),
    "VB, shared": _listed(cr.vb_routing),
    "self-attention": _by_kernels(cr.self_attention_routing),
    "self-attention, in passes": _by_kernels(cr.self_attention_routing),
    "self-attention, votes kept": _by_kernels(cr.self_attention_routing),
    "self-routing": _listed(cr.self_routing),
    "self-routing, shared": _listed(cr.self_routing),
    "conv dynamic": _over_map(cr.dynamic_routing),
    "conv max-min": _over_map(cr.max_min_routing),
    "conv attention": _over_map(_attention),
    "pooling": lambda backend, u: cr.pooling_routing(cr.IdentityVotes(u, backend=backend), 2),
    "squash": lambda backend, x: cr.squash(x, backend=backend),
    "layer norm": _norm,
}


def results(case: Values, tensors: list[Tensor], backend: str) -> list[Tensor]:
    """Poses (scores and variances too, where there are any), then the gradient of every operand."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    with on_path(case.algorithm):
        return _results(case, leaves, backend)


@contextmanager
def on_path(algorithm: str) -> Iterator[None]:
    """Layers as small as these go as its name says."""
    with (
        mock.patch("capsroute.form.loop.calls.stored_plan", no_plan) if "passes" in algorithm else nullcontext(),
        votes_kept() if "kept" in algorithm else nullcontext(),
        in_columns() if "columns" in algorithm else nullcontext(),
        in_walks() if "walks" in algorithm else nullcontext(),
    ):
        yield


def no_plan(*sizes: object) -> None:
    """Layers as small as these are routed by one kernel, if there is a plan."""


@contextmanager
def votes_kept() -> Iterator[None]:
    """Votes are stored, and children shared out, of a layer that one program would route, and of any number of rows."""
    from capsroute.form.launches.stored_votes import kept_plan

    kept_plan.cache_clear()
    with (
        mock.patch("capsroute.form.loop.calls.resident_plan", no_plan),
        mock.patch("capsroute.form.cost.keeps_votes", return_value=True),
    ):
        yield
    kept_plan.cache_clear()


@contextmanager
def in_walks() -> Iterator[None]:
    """Children of Gaussian routing are more than a program walks over alone, however few."""
    from capsroute.form.gaussian.stored import _sequences

    _sequences.cache_clear()  # of other plans
    with mock.patch("capsroute.form.gaussian.loop.whole_walk", no_plan):
        yield
    _sequences.cache_clear()


@contextmanager
def in_columns() -> Iterator[None]:
    """Parents of Gaussian routing are more than a program holds, however few."""
    from capsroute.form.gaussian.stored import _sequences

    _sequences.cache_clear()  # of other plans
    with (
        mock.patch("capsroute.form.gaussian.loop.whole_walk", no_plan),
        mock.patch("capsroute.form.gaussian.loop.parents_fit", return_value=False),
        mock.patch("capsroute.form.launches.gaussian_votes.parents_fit", return_value=False),
    ):
        yield
    _sequences.cache_clear()


def _results(case: Values, leaves: list[Tensor], backend: str) -> list[Tensor]:
    routed = ROUTES[case.algorithm](backend, *leaves)
    outputs = [routed] if isinstance(routed, Tensor) else [routed.poses, routed.scores, routed.variances]
    outputs = [out for out in outputs if out is not None]
    generator = torch.Generator().manual_seed(case.seed + 1)
    weights = [torch.randn(out.shape, generator=generator).to(out) for out in outputs]
    gradients = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    return [t.detach() for t in outputs] + [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves)]


def nudged(tensors: list[Tensor], seed: int) -> list[Tensor]:
    """The operands in float32, each number off by at most `NUDGE` roundings; certainties stay."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.device) * 2 - 1 for t in tensors]
    return [
        torch.where(t.isinf() | (t == 1), t, (t.double() * (1 + NUDGE * ROUNDING * d)).float())
        for t, d in zip(tensors, drawn)
    ]


def distance(found: Tensor, exact: Tensor) -> float:
    off = (found.double() - exact).norm()
    return 0.0 if off == 0 else (off / exact.norm().clamp_min(1e-300)).item()


class Fault(NamedTuple):
    """One result of the kernels that is wrong: how far off it is (inf: not finite), and plain float32 is."""

    case: Values
    result: int
    mistake: float
    plain: float

    def __str__(self) -> str:
        return f"{self.case.name}: result {self.result} is off by {self.mistake:.2g}, plain float32 by {self.plain:.2g}"


def faults(case: Values, device: str) -> list[Fault]:
    """What the kernels get wrong: not finite where plain float32 is, or much farther from float64 than that is.

    Much farther: three times as far, and by more than 64 roundings, which is what e^-64 is off by where its exponent is
    rounded. Plain float32 can be right by luck (the mean of one child alone, less that child, is zero or one rounding
    of it), so it is asked again with operands whose last digits differ, and so is float64, which shows how much the
    digits that products leave out matter. Where plain float32 is off by a tenth there is nothing left to compare with.
    """
    tensors = [t.to(device) for t in operands(case)]
    with torch.backends.cudnn.flags(allow_tf32=False):  # first steps over a map are its convolutions
        try:
            plain = results(case, tensors, "torch")
        except ValueError:  # a pose that is NaN is refused
            return []
        ours, exact = results(case, tensors, "auto"), results(case, [t.double() for t in tensors], "torch")
        found = []
        for place, (mine, theirs, right) in enumerate(zip(ours, plain, exact)):
            allowed = distance(theirs, right) if torch.isfinite(theirs).all() else float("inf")
            mistake = distance(mine, right) if torch.isfinite(mine).all() else float("inf")
            if mistake == float("inf") > allowed or (allowed < 0.1 and mistake > max(3 * allowed, 64 * ROUNDING)):
                found.append(Fault(case, place, mistake, allowed))
        luck = _luck(case, tensors, exact) if found else []
    return [x for x in found if x.mistake == float("inf") or 3 * luck[x.result] < min(0.3, x.mistake)]


def _luck(case: Values, tensors: list[Tensor], exact: list[Tensor]) -> list[float]:
    """How far plain float32 and float64 go from each result when last digits of operands or coefficients differ."""
    farthest = [0.0] * len(exact)
    gaussian = case.algorithm.startswith(("EM", "Heinsen", "VB"))
    for seed in range(NEIGHBOURS):
        nearby = nudged(tensors, seed)
        plain, wide = results(case, nearby, "torch"), results(case, [t.double() for t in nearby], "torch")
        for place, right in enumerate(exact):
            off = (distance(plain[place], wide[place]), distance(wide[place], right))
            farthest[place] = max(farthest[place], *(0.0 if x != x else x for x in off))
        if gaussian:
            with rounded_coefficients(seed):
                wide = results(case, [t.double() for t in tensors], "torch")
            farthest = [max(far, distance(found, right)) for far, found, right in zip(farthest, wide, exact)]
    if gaussian:
        farthest[0] = max(farthest[0], _coefficients_are_off(case, tensors))
    if case.algorithm.startswith("self-attention") and _coefficients_are_off(case, tensors) > 0.1:
        return [float("inf")] * len(farthest)  # logits of 1e38, whose last digits say who wins: another child's parent
    return farthest


@contextmanager
def rounded_coefficients(seed: int) -> Iterator[None]:
    """Coefficients of EM and Heinsen routing that are off by at most half a rounding of float32, which are all that
    float32 can tell apart: what they move in float64, no kernel has. Children that are all but alike move it most."""
    generator = torch.Generator().manual_seed(seed)

    def rounded(logits: Tensor) -> Tensor:
        off = torch.rand(logits.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return over_parents(logits) * (1 + ROUNDING / 2 * off.to(logits))

    with mock.patch("capsroute.routing.expectation.over_parents", rounded):
        yield


def _coefficients_are_off(case: Values, tensors: list[Tensor]) -> float:
    """How far plain float32's coefficients are from float64's: means are not expected to be closer than these weights.

    Rounded beside a constant of -500, which votes of 1e15 make, the logits of two children can be off by the same step.
    Their mean does not show it, nor does any neighbour's: a coarse step hides what a finer one would show.
    """
    route = ROUTES[case.algorithm]
    found, exact = (route("torch", *operands).coefficients for operands in (tensors, [t.double() for t in tensors]))
    off = distance(found, exact)
    return 0.0 if off != off else off
