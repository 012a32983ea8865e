"""The table of cases that every routing algorithm is held to; each row says why it is there."""

from typing import NamedTuple

import torch

from tests.kinds import Sizes


class Case(NamedTuple):
    why: str
    sizes: Sizes
    votes: str = "random"

    def stored_votes(self) -> torch.Tensor:
        """V [b,i,j,a,o] in float64."""
        s = self.sizes
        generator = torch.Generator().manual_seed(sum(s))
        V = torch.randn(s.b, s.i, s.j, s.a, s.o, generator=generator, dtype=torch.float64)
        if self.votes == "zero":
            return V * 0
        if self.votes == "one child silent":
            return V * (torch.arange(s.i) > 0)[:, None, None, None]
        if self.votes == "children agree":
            return V[:, :1].expand_as(V).contiguous()
        if self.votes == "parents alike":
            return V[:, :, :1].expand_as(V).contiguous()
        if self.votes == "children opposed":
            return torch.cat([V[:, :1], -V[:, :1]], 1)
        return V * {"random": 1.0, "small": 1e-3, "large": 30.0}[self.votes]


CASES = [
    Case("one of everything: no axis is left to sum or to normalise over", Sizes(1, 1, 1, 1, 1, 1)),
    Case("one child: variances are zero, softmax over children is one", Sizes(2, 1, 5, 2, 3, 3)),
    Case("one parent: softmax over parents is one, max-min is 0/0", Sizes(2, 7, 1, 2, 3, 3)),
    Case("a batch of one: a bare squeeze() would drop it", Sizes(1, 5, 3, 1, 4, 2)),
    Case("primes, all different: any two axes swapped would not fit", Sizes(2, 11, 5, 3, 7, 13)),
    Case("equal sizes: swapped axes would fit, and must still be wrong", Sizes(3, 3, 3, 3, 3, 3)),
    Case("more parents than children", Sizes(2, 2, 19, 2, 3, 3)),
    Case("vector poses: one row", Sizes(3, 6, 4, 1, 8, 5)),
    Case("matrix poses, 4x4 as in EM", Sizes(2, 6, 3, 4, 4, 4)),
    Case("scalar poses: LayerNorm of one number is zero", Sizes(2, 6, 3, 1, 4, 1)),
    Case("wide children, narrow parents: the form contracts from the other side", Sizes(2, 5, 3, 1, 17, 2)),
    Case("a large batch", Sizes(67, 3, 2, 1, 2, 2)),
    Case("all votes zero: squash, unit and max-min at their singular point", Sizes(2, 5, 3, 2, 3, 3), "zero"),
    Case("one child's votes zero: it agrees with nobody", Sizes(2, 5, 3, 2, 3, 3), "one child silent"),
    Case("children agree exactly: variance is zero", Sizes(2, 5, 3, 2, 3, 3), "children agree"),
    Case("parents get the same votes: all logits of a child are equal", Sizes(2, 5, 3, 2, 3, 3), "parents alike"),
    Case("two children opposed: their sum is zero", Sizes(2, 2, 3, 2, 3, 3), "children opposed"),
    Case("small votes, as at initialisation", Sizes(2, 5, 3, 1, 4, 4), "small"),
    Case("large votes: softmax saturates", Sizes(2, 5, 3, 1, 4, 4), "large"),
]


MAGNITUDES = (0.0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-10, 1e-3, 0.999, 1.0, 1.001, 300.0, 1e4, 1e18, 1e25, 1e36)
