"""What is measured: each case names an algorithm, a layer and where it comes from, and can make its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import capsroute as cr
from capsroute.bench import textbook
from capsroute.form.window import Window
from capsroute.patches import PatchVotes

LARGEST_DRAWN = 1 << 20  # numbers of a tensor that are drawn on a CPU


@dataclass(frozen=True)
class Case:
    """One layer: children i of a x k, parents j of a x o, transforms per child or shared."""

    algorithm: str
    source: str
    batch: int
    children: int
    parents: int
    rows: int = 1
    k: int = 8
    o: int = 16
    iterations: int = 3
    shared: bool = False
    dtypes: tuple[str, ...] = ("float32",)

    @property
    def name(self) -> str:
        pose = f"{self.rows}x{self.k}" if self.rows > 1 else f"{self.k}"
        shared = ", shared" if self.shared else ""
        return f"{self.algorithm} {self.children}x{pose} -> {self.parents}x{self.o}{shared}, batch {self.batch}"

    @property
    def children_shape(self) -> tuple[int, ...]:
        return self.batch, self.children, self.rows, self.k

    def votes(self, u: Tensor, W: Tensor, backend: str) -> cr.LinearVotes:
        """What the children say."""
        return cr.LinearVotes(u, W, backend=backend)

    def tensors(self, dtype: torch.dtype, device: torch.device | str, seed: int = 0) -> dict[str, Tensor]:
        """Children and parameters, drawn anew from the seed; the same numbers for every dtype and device.

        All but the largest tensors, which a CPU takes seconds to draw: they are drawn where they are needed.
        """
        generators = [torch.Generator(where).manual_seed(seed) for where in ("cpu", device)]

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            generator = generators[math.prod(shape) > LARGEST_DRAWN]
            drawn = torch.randn(shape, generator=generator, device=generator.device)
            return (drawn * scale).to(device=device, dtype=dtype)

        made = {"u": draw(*self.children_shape)}
        if self.algorithm == "pooling":
            return made
        made["W"] = draw(1 if self.shared else self.children, self.parents, self.k, self.o, scale=self.k**-0.5)
        if self.algorithm == "fast":
            made["C"] = draw(self.children, self.parents, scale=1 / self.parents)
        if self.algorithm == "self_attention":
            made["prior"] = draw(self.children, self.parents, scale=0.1)
        if self.algorithm in ("em", "self_routing", "vb"):
            made["activations"] = draw(self.batch, self.children).sigmoid()
        if self.algorithm == "self_routing":
            made["logits"] = draw(self.batch, self.children, self.parents)
        if self.algorithm in ("em", "vb"):
            made |= {"beta_use": draw(self.parents, scale=0.1), "beta_activate": draw(self.parents, scale=0.1)}
        if self.algorithm == "heinsen":
            made |= {"scores": draw(self.batch, self.children)}
            made |= {name: draw(self.children, self.parents, scale=0.1) for name in ("beta_use", "beta_ignore")}
        return made

    def ours(self, backend: str = "auto") -> Callable[..., Tensor]:
        """poses = f(u, W, ...) through the library."""
        return lambda u, *rest: _ROUTE[self.algorithm](self, backend, u, *rest)

    @property
    def ways(self) -> tuple[str, ...]:
        """How the textbook form can be written; one that sums once has no choice."""
        return textbook.WAYS[:1] if self.algorithm in ("fast", "pooling") else textbook.WAYS

    def textbook(self, way: str = "einsums") -> Callable[..., Tensor]:
        """poses = f(u, W, ...) with stored votes."""
        route = textbook.TEXTBOOK[self.algorithm]
        options: dict[str, object] = {} if len(self.ways) == 1 else {"way": way}
        if self.algorithm not in textbook.ONCE:
            options["iterations"] = self.iterations
        return lambda *tensors: route(*tensors, **options)


@dataclass(frozen=True)
class ConvCase(Case):
    """A window that moves over a map of capsules; children are those that it sees, positions count as samples."""

    side: int = 0
    kernel: int = 3

    @property
    def name(self) -> str:
        window = f"{self.kernel}x{self.kernel} over {self.side}x{self.side}"
        return super().name.replace(" ", f" {window}: ", 1)

    @property
    def children_shape(self) -> tuple[int, ...]:
        return self.batch, self.children // self.kernel**2, self.rows, self.k, self.side, self.side

    def votes(self, u: Tensor, W: Tensor, backend: str) -> cr.LinearVotes:
        return PatchVotes(u, W, Window(self.kernel), backend)

    def textbook(self, way: str = "einsums") -> Callable[..., Tensor]:
        route = super().textbook(way)
        return lambda u, *rest: route(textbook.unfolded(u, self.kernel), *rest)


def _linear(route: Callable) -> Callable:
    def run(case: Case, backend: str, u: Tensor, W: Tensor, *rest: Tensor) -> Tensor:
        return route(case, case.votes(u, W, backend), *rest).poses

    return run


_ROUTE: dict[str, Callable[..., Tensor]] = {
    "dynamic": _linear(lambda case, votes: cr.dynamic_routing(votes, case.iterations)),
    "max_min": _linear(lambda case, votes: cr.max_min_routing(votes, case.iterations)),
    "fast": _linear(lambda case, votes, C: cr.fast_routing(votes, C)),
    "pooling": lambda case, backend, u: cr.pooling_routing(cr.IdentityVotes(u)).poses,
    "inverted_attention": _linear(lambda case, votes: cr.inverted_attention_routing(votes, iterations=case.iterations)),
    "em": _linear(lambda case, votes, scores, use, act: cr.em_routing(votes, scores, use, act, case.iterations)),
    "heinsen": _linear(lambda case, votes, a, use, ign: cr.heinsen_routing(votes, a, use, ign, case.iterations)),
    "self_attention": _linear(lambda case, votes, prior: cr.self_attention_routing(votes, prior)),
    "self_routing": _linear(lambda case, votes, a, logits: cr.self_routing(votes, a, logits)),
    "vb": _linear(lambda case, votes, a, use, act: cr.vb_routing(votes, a, use, act, case.iterations)),
}

BOTH = ("float32", "bfloat16")

# The layers of the papers, at the papers' batch sizes.
PAPER_CASES = (
    Case("dynamic", "Sabour 2017, DigitCaps", 512, 1152, 10, dtypes=BOTH),
    Case("dynamic", "Sabour 2017, DigitCaps", 128, 1152, 10, dtypes=BOTH),
    Case("max_min", "Zhao 2019, DigitCaps", 512, 1152, 10, dtypes=BOTH),
    Case("max_min", "Zhao 2019, DigitCaps", 128, 1152, 10, dtypes=BOTH),
    Case("heinsen", "Heinsen 2019, smallNORB", 20, 5184, 64, rows=4, k=4, o=4, shared=True),
    Case("inverted_attention", "Tsai 2020, CIFAR-10 last layers", 128, 32 * 25, 10, rows=6, k=6, o=6, iterations=2),
    Case("em", "Hinton 2018, class capsules", 64, 32 * 16, 5, rows=4, k=4, o=4),
    Case("fast", "Zhao 2019, inference", 128, 1152, 10),
    Case("pooling", "Zhao & Huang 2019, global pool", 128, 64, 1, k=512, o=512),
)

# One step beside the papers' sizes: more parents than a program holds, vector poses for Gaussians.
SIZE_CASES = (
    Case("dynamic", "a hundred parents", 128, 1152, 100),
    Case("dynamic", "a thousand parents", 32, 1152, 1000),
    Case("max_min", "a hundred parents", 128, 1152, 100),
    Case("inverted_attention", "a hundred parents", 128, 1152, 100, iterations=2),
    Case("heinsen", "per-child transforms", 32, 512, 32, rows=4, k=4, o=4),
    Case("heinsen", "a hundred parents", 128, 1152, 100),
    Case("em", "a hundred parents", 128, 1152, 100),
)

# The same algorithms at sizes for two CPU cores.
SMALL_CASES = (
    Case("dynamic", "Sabour 2017, one image", 1, 1152, 10),
    Case("dynamic", "Sabour 2017, DigitCaps", 16, 1152, 10),
    Case("dynamic", "shared transforms", 16, 1152, 10, shared=True),
    Case("max_min", "Zhao 2019, one image", 1, 1152, 10),
    Case("max_min", "Zhao 2019, DigitCaps", 16, 1152, 10),
    Case("fast", "Zhao 2019, inference", 16, 1152, 10),
    Case("pooling", "Zhao & Huang 2019, global pool", 16, 64, 1, k=512, o=512),
    Case("inverted_attention", "Tsai 2020, CIFAR-10 last layers", 8, 32 * 25, 10, rows=6, k=6, o=6, iterations=2),
    Case("em", "Hinton 2018, class capsules", 8, 32 * 16, 5, rows=4, k=4, o=4),
    Case("heinsen", "per-child transforms", 4, 288, 10, rows=4, k=4, o=4),
    Case("heinsen", "Heinsen 2019, smallNORB", 2, 5184, 64, rows=4, k=4, o=4, shared=True),
)

# What Heinsen 2019, section 6, calls out of reach: votes of the first alone would take 7.3 GiB in float32.
LARGE_CASES = (
    Case("dynamic", "Heinsen 2019, section 6: a vocabulary", 8, 512, 30_000, k=16, shared=True),
    Case("max_min", "Heinsen 2019, section 6: a vocabulary", 8, 512, 30_000, k=16, shared=True),
)

# A convolutional layer of vector capsules: 32 kinds to 16 kinds, 14 x 14 parents of each.
CONV_CASES = tuple(
    ConvCase(algorithm, "3x3 convolution", 32, 32 * 9, 16, side=16, dtypes=BOTH) for algorithm in ("dynamic", "max_min")
)
