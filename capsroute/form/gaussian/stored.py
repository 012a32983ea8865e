"""Votes that are stored for a pass over them, a group of samples at a time, and what goes back through them."""

import functools
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

from capsroute.form.gaussian.products import LOGITS, NO_GATES, WEIGHTS, by_children, by_transforms, make_votes
from capsroute.form.launch import LaunchSequence, kind_of
from capsroute.form.launches.gaussian_votes import grid, product_launches, samples_at_once
from capsroute.form.rows.totals import add_parts
from capsroute.form.sizes import Sizes, power_of_2, sizes_of

PRECISION = "tf32x3" if torch.version.hip is None else "ieee"


class StoredVotes:
    """Votes [b,i,j,a*o] in float32 of u [b,i,a,k], W [i or 1,j,k,o] and bias [i or 1,j,a,o] or None.

    And `gate` [b,i] in float32, there once the votes are, of `scores`: weights or (logits) what they are logistic of.
    Launches are one sequence, kept for calls of the same `key`: what they depend on but these tensors and `given`.
    """

    def __init__(
        self, u: Tensor, W: Tensor, bias: Tensor | None, given: Sequence[Tensor | int], *key: Hashable,
        scores: Tensor | None = None, logits: bool = False,
    ):  # fmt: skip
        self.u, self.W, self.bias = u.contiguous(), W.contiguous(), None if bias is None else bias.contiguous()
        self.sizes = sizes_of(u, W)
        self.shared = W.shape[0] == 1
        self._biases = self.W if self.bias is None else self.bias
        self._scores = self.gate = self.u if scores is None else scores.contiguous()
        self._gates = NO_GATES
        if scores is not None and (logits or scores.dtype != torch.float32):
            self._gates = LOGITS if logits else WEIGHTS
            self.gate = scores.new_empty(scores.shape, dtype=torch.float32)
        kind = kind_of(self.u, self.W, self._biases, self._scores, *given)
        dtypes = (u.dtype, W.dtype, self._biases.dtype, self._scores.dtype)
        self.run = LaunchSequence(_sequences(self.sizes), kind, *dtypes, self.shared, bias is None, *key)
        self._by_u: Tensor | None = None
        self._by_W: list[Tensor] = []  # of all groups so far
        self._by_bias: list[Tensor] = []

    def groups(self) -> Iterator[tuple[int, Sizes, Tensor]]:
        """The first sample of each group, its sizes and its votes."""
        s, samples = self.sizes, samples_at_once(self.sizes, self.shared)
        place = self.u.new_empty((samples, s.i, s.j, s.a * s.o), dtype=torch.float32)
        for first in range(0, s.b, samples):
            part = s._replace(b=min(samples, s.b - first))
            yield first, part, self._make(first, part, place[: part.b])

    def _make(self, first: int, s: Sizes, votes: Tensor) -> Tensor:
        launch, u = product_launches(s, self.shared)[0], self.u[first : first + s.b]
        self.run(
            make_votes, launch, u, self.W, self._biases, votes, self._scores, self.gate, self._rows(s)[0] // s.a,
            *self._rows(s)[1:], first * s.i, BIAS=self.bias is not None, GATES=self._gates,
        )  # fmt: skip
        return votes

    def _rows(self, s: Sizes) -> tuple[int, int, int]:
        """Of a product; parents; and how far apart its rows are among samples and children."""
        return (s.b * s.i * s.a, s.j, 1) if self.shared else (s.b * s.a, s.j, s.i)

    def go_back(self, first: int, s: Sizes, g: Tensor) -> None:
        """Through the votes of a group, from their gradient g."""
        if self._by_u is None:
            self._by_u = torch.empty_like(self.u)
        u, by_u = self.u[first : first + s.b], self._by_u[first : first + s.b]
        _, children, transforms = product_launches(s, self.shared)
        whole = transforms.splits == 1 and s.b == self.sizes.b
        by_W = torch.empty_like(self.W) if whole else g.new_empty((transforms.splits, *self.W.shape))
        rows = self._rows(s)
        parts = by_u if children.splits == 1 else g.new_empty((children.splits, *by_u.shape))
        self.run(by_children, children, g, self.W, parts, *rows, children.tiles, by_u.numel(), PRECISION=PRECISION)
        if children.splits > 1 and s.b == self.sizes.b:
            self._sum(parts, by_u)
        elif children.splits > 1:
            by_u.copy_(parts.sum(0))
        self.run(by_transforms, transforms, g, u, by_W, *rows, transforms.tiles, PRECISION=PRECISION)
        if transforms.splits > 1:
            alone = torch.empty_like(self.W) if s.b == self.sizes.b else g.new_empty(self.W.shape)
            _add(self._by_W, self._sum(by_W, alone))
        else:
            _add(self._by_W, by_W if whole else by_W[0])
        if self.bias is not None:
            _add(self._by_bias, g.sum((0, 1) if self.shared else 0))

    def _sum(self, parts: Tensor, out: Tensor) -> Tensor:
        """Over the first axis, in the dtype of what is filled."""
        splits, n = parts.shape[0], out.numel()
        deep = min(32, power_of_2(splits))
        self.run(add_parts, grid((n, 1024 // deep), SP=deep, C=1024 // deep, num_warps=4), parts, out, n, splits, 1.0)
        return out

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """By u, W and bias (without elements where there is none)."""
        assert self._by_u is not None
        by_bias = self.u.new_empty(0)
        if self.bias is not None:
            by_bias = self._by_bias[0].view(self.bias.shape).to(self.bias.dtype)
        return self._by_u, self._by_W[0].to(self.W.dtype), by_bias


@functools.lru_cache(maxsize=256)
def _sequences(s: Sizes) -> dict[tuple, list]:
    """Of compiled launches, see `launch.LaunchSequence`."""
    return {}


def _add(total: list[Tensor], more: Tensor) -> None:
    if total:
        total[0] += more
    else:
        total.append(more)
