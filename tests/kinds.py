"""Every kind of votes: its leaf tensors, the votes made of them, and the textbook's tensor [b,i,j,a,o]."""

from collections.abc import Callable
from typing import NamedTuple

import torch

import capsroute as cr


class Sizes(NamedTuple):
    b: int  # samples
    i: int  # children
    j: int  # parents
    a: int  # pose rows
    k: int  # child pose columns
    o: int  # parent pose columns


class NeverStored(cr.LinearVotes):
    """Small per-child votes are stored for speed; these ask the form in every pass, as large ones do."""

    def stored_if_faster(self):
        return self

    def again(self):
        return NeverStored(self.u, self.W, self.bias, self.backend)


class Kind(NamedTuple):
    shapes: Callable[[Sizes], list[tuple[int, ...]]]
    votes: Callable[..., cr.Votes]  # (parents, *leaves) -> votes

    def leaves(self, sizes: Sizes, seed: int = 0, dtype=torch.float64) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in self.shapes(sizes)]


def linear(transforms: str, bias: str | None, kind=cr.LinearVotes) -> Kind:
    """LinearVotes with transforms (and bias) per child, "i", or shared, "1"."""

    def shapes(s: Sizes) -> list[tuple[int, ...]]:
        W = (s.i if transforms == "i" else 1, s.j, s.k, s.o)
        B = (s.i if bias == "i" else 1, s.j, s.a, s.o)
        return [(s.b, s.i, s.a, s.k), W] + ([B] if bias else [])

    return Kind(shapes, lambda parents, *leaves: kind(*leaves))


KINDS = {
    "dense": Kind(lambda s: [(s.b, s.i, s.j, s.a, s.o)], lambda parents, V: cr.DenseVotes(V)),
    "per-child": linear("i", None),
    "per-child-never-stored": linear("i", None, NeverStored),
    "per-child+bias-never-stored": linear("i", "i", NeverStored),
    "per-child+shared-bias": linear("i", "1"),
    "shared": linear("1", None),
    "shared+bias": linear("1", "1"),
    "shared+per-child-bias": linear("1", "i"),
    "identity": Kind(lambda s: [(s.b, s.i, s.a, s.o)], lambda parents, u: cr.IdentityVotes(u, parents)),
}


def stored(parents: int, leaves: list[torch.Tensor]) -> torch.Tensor:
    """The votes [b,i,j,a,o] that leaves stand for, by the definition of each kind."""
    if len(leaves) == 1 and leaves[0].dim() == 5:
        return leaves[0]
    if len(leaves) == 1:
        return leaves[0].unsqueeze(2).expand(-1, -1, parents, -1, -1)
    u, W, *bias = leaves
    V = (u[:, :, None, :, :, None] * W[None, :, :, None, :, :]).sum(4)  # [b, i, j, a, k, o] summed over k
    return V + bias[0] if bias else V
