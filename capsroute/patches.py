"""Votes of convolutional capsules: the children are a map and a window that moves over it.

Patches are cut out only for questions that need them as a tensor; kernels of dynamic, max-min and inverted-attention
routing read the map itself. Coefficients that are the same everywhere (the first step of inverted attention, fast
routing) make the layer a plain convolution of the map.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute import form
from capsroute.form.checks import check_sizes
from capsroute.form.contractions.plain import any_sample, same_for_all
from capsroute.form.window import Window, patches
from capsroute.votes import LinearVotes, MapFactors, one_dtype


class PatchVotes(LinearVotes):
    """What the children of every patch say: map [b,n,a,k,h,w], W [n * kernel^2, j, k, o].

    The batch is (sample, row, column) of the parents' map; i = (capsule, window row, window column). Beyond the edge of
    a padded map children are zero.

    >>> import torch
    >>> from capsroute.form.window import Window
    >>> from capsroute.patches import PatchVotes
    >>> PatchVotes(torch.randn(2, 8, 4, 4, 16, 16), torch.randn(72, 5, 4, 6), Window(3, stride=2))
    PatchVotes([b,i,j,a,o] = [98, 72, 5, 4, 6], torch.float32, cpu)
    """

    def __init__(self, map: Tensor, W: Tensor, window: Window, backend: str = "auto"):
        self.map, self.W, self.bias = one_dtype(map, W, None)
        self.window, self.backend = window, form.check_backend(backend)
        self.places = window.positions(*map.shape[4:])
        self._describe(self.map, map.shape[1] * window.kernel**2, W.shape[1], map.shape[2], W.shape[3])
        self.batch = map.shape[0] * self.places[0] * self.places[1]
        form.check_operands(W=W)
        check_sizes(("u", (self.batch, self.children, self.rows, map.shape[3])), ("W", W.shape))
        self._kept = None

    def tensors(self) -> dict[str, Tensor | None]:
        return {"map": self.map, "W": self.W}

    def map_factors(self) -> MapFactors:
        return self.map, self.W, self.window

    @property
    def u(self) -> Tensor:  # type: ignore[override]
        """The patches [b,i,a,k]."""
        return self._keep("patches", lambda: patches(self.map.flatten(1, 3), self.window, self.map.shape[1:4]))

    def for_loop(self) -> LinearVotes:
        return self  # its kernels gather patches, which stored votes would unfold

    def again(self) -> LinearVotes:
        return PatchVotes(self.map, self.W, self.window, self.backend)

    def aggregate(self, c: Tensor) -> Tensor:
        return self.aggregate_folded(any_sample(c)) if same_for_all(c) and not self.shared else super().aggregate(c)

    def aggregate_folded(self, C: Tensor) -> Tensor:
        if self.shared:
            return super().aggregate_folded(C)
        return self._convolved(C.to(self.statistics_dtype).view(*C.shape, 1, 1) * self.W)

    def aggregate_alike(self, weight: float) -> Tensor:
        return super().aggregate_alike(weight) if self.shared else self._convolved(self.W * weight)

    def _convolved(self, W: Tensor) -> Tensor:
        """Sums of votes by the transforms W: a convolution of the map, in which rows of the pose count as samples."""
        samples, capsules, rows = self.map.shape[:3]
        channels, (parents, k, columns), side = capsules * self.map.shape[3], W.shape[1:], self.window.kernel
        # Few views and copies, not one after the other: each is a node of the graph, and ten microseconds there and
        # back. So numbers are cast as they are put in order.
        whole = torch.contiguous_format
        children = self.map.transpose(1, 2).reshape(samples * rows, channels, *self.map.shape[4:])
        kernel = W.view(capsules, side, side, parents, k, columns).permute(3, 5, 0, 4, 1, 2)
        kernel = kernel.to(self.dtype, memory_format=whole).reshape(parents * columns, channels, side, side)
        out = F.conv2d(children, kernel, stride=self.window.stride, padding=self.window.padding)
        out = out.view(samples, rows, parents, columns, *self.places).permute(0, 4, 5, 2, 1, 3)
        return out.to(self.statistics_dtype, memory_format=whole).reshape(self.batch, parents, rows, columns)
