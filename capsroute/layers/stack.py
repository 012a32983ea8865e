"""Several routed layers and when each takes its steps (Tsai et al. 2020, procedure 2 and figure 3)."""

import warnings
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from capsroute.layers.linear import RoutedLayer
from capsroute.naming import check_one_of
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least

SCHEDULES = ("sequential", "concurrent")


class CapsuleStack(nn.Module):
    """Routed layers on top of each other.

    `schedule="sequential"`: each layer routes to the end, as often as its own router says, before the next begins.
    `schedule="concurrent"`: one pass layer by layer, then `iterations - 1` steps in which all layers step together from
    the poses of the previous iteration. `iterations=None` takes the number that the first layer's router has. Layers
    that step together are asked for `step`, so that hooks on their `forward` do not run.

    >>> import torch, capsroute as cr
    >>> conv = cr.layers.CapsuleConv2d(8, 8, (4, 4), (4, 4), kernel_size=3)
    >>> linear = cr.layers.CapsuleLinear(72, 10, (4, 4), (4, 4), routing="inverted_attention")
    >>> stack = cr.layers.CapsuleStack([conv, linear], schedule="concurrent", iterations=2)
    >>> stack(torch.randn(2, 8, 4, 4, 5, 5)).poses.shape
    torch.Size([2, 10, 4, 4])
    """

    def __init__(self, layers: Iterable[RoutedLayer], schedule: str = "sequential", iterations: int | None = None):
        super().__init__()
        layers = list(layers)
        if not layers:
            raise ValueError("layers: expected at least one routed layer, got none")
        for place, layer in enumerate(layers):
            # By what a router can do, not by its type: compiled layers and compiled routers are of another one.
            if not hasattr(getattr(layer, "routing", None), "check_steps"):
                given = f"{type(layer).__name__} as layer {place}"
                raise ValueError(f"layers: expected routed layers, such as CapsuleLinear, got {given}")
        self.layers = nn.ModuleList(layers)
        check_one_of("schedule", schedule, SCHEDULES)
        own = [getattr(layer.routing, "iterations", 1) for layer in self.routed_layers()]
        if iterations is None:
            iterations = own[0]
            if schedule == "concurrent" and set(own) != {iterations}:
                said = f"the layers' routers say {own}, and together all take {iterations}"
                warnings.warn(f"iterations: {said}; give the stack its number", stacklevel=2)
        elif schedule == "sequential" and set(own) != {iterations}:
            asked = f"the sequential schedule asks the layers' routers, which route {own} times"
            warnings.warn(f"iterations: got {iterations}, but {asked}; give the routers their number", stacklevel=2)
        check_at_least("iterations", iterations, 1)
        self._check_scores()
        for layer in self.routed_layers():
            layer.in_stack = True
        if schedule == "concurrent":
            for layer in self.routed_layers():
                layer.routing.check_steps()
        self.schedule, self.iterations = schedule, iterations

    def forward(self, poses: Tensor, scores: Tensor | None = None, return_coefficients: bool = False) -> Routed:
        """The last layer's parents; steps of other layers that can no longer reach them are not taken."""
        if self.schedule == "sequential":
            return self._sequential(poses, scores, return_coefficients)[-1]
        return self._concurrent(poses, scores, return_coefficients, last_only=True)[-1]

    def route(self, poses: Tensor, scores: Tensor | None = None, return_coefficients: bool = False) -> list[Routed]:
        """The parents of every layer, first to last."""
        if self.schedule == "sequential":
            return self._sequential(poses, scores, return_coefficients)
        return self._concurrent(poses, scores, return_coefficients, last_only=False)

    def _sequential(self, poses: Tensor, scores: Tensor | None, return_coefficients: bool) -> list[Routed]:
        routed = []
        for layer in self.layers:
            routed.append(layer(poses, scores, return_coefficients))
            poses, scores = routed[-1].poses, routed[-1].scores
        return routed

    def _concurrent(
        self, poses: Tensor, scores: Tensor | None, return_coefficients: bool, last_only: bool
    ) -> list[Routed]:
        layers = self.routed_layers()
        # A layer's step reaches the one above it a step later, so the last layer hears of `left` layers below it.
        firsts = [len(layers) - 1 - left if last_only else 0 for left in reversed(range(self.iterations - 1))]
        # The second step of a layer has the children of the first, whose votes are there; so have all of the lowest.
        made: list[dict | None] = [{} if firsts and place >= firsts[0] else None for place in range(len(layers))]
        primary = Routed(poses, None, scores, None)
        states = [primary]
        for layer, votes in zip(layers, made):
            states.append(layer.step(states[-1].poses, states[-1].scores, None, return_coefficients, votes))
        for first in firsts:
            before, states = states, [primary]
            for place, (layer, child, parent) in enumerate(zip(layers, before, before[1:])):
                if place < first:
                    states.append(parent)
                    continue
                given = child.poses, child.scores, parent.poses, return_coefficients
                states.append(layer.step(*given, made[place]))
        return states[1:]

    def _check_scores(self) -> None:
        """Scores of one kind would be read as another."""
        routers = [layer.routing for layer in self.routed_layers()]
        for place, (below, above) in enumerate(pairwise(routers)):
            gives, takes = below.parent_score_kind, above.score_kind
            if gives and takes and gives != takes:
                raise ValueError(
                    f"layers: layer {place} gives scores of kind {gives!r}, and layer {place + 1} takes {takes!r}"
                )

    def routed_layers(self) -> list[RoutedLayer]:
        """The layers, first to last."""
        return cast("list[RoutedLayer]", list(self.layers))

    def extra_repr(self) -> str:
        return f"schedule={self.schedule!r}, iterations={self.iterations}"
