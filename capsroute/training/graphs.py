"""Forward and backward pass as one CUDA graph: recorded once, then replayed for every batch.

A small network is done before Python has queued its next kernel. A graph is queued at once: the GPU never waits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from capsroute.training.distributed import World
from capsroute.training.recipe import Recipe

__all__ = ["GraphedPass", "graphs_refused"]

WARM_UP = 3  # ordinary steps before the recording: compiling, choosing algorithms, filling caches


def graphs_refused(recipe: Recipe, world: World) -> str | None:
    """Why steps of this run cannot be replayed; None where they can."""
    if world.device.type != "cuda":
        return f"they need a GPU, this run is on {world.device}"
    if world.size > 1:
        return f"one process only, this run has {world.size}"
    if recipe.training.accumulate > 1:
        return f"batches must be whole, this run cuts them into {recipe.training.accumulate} parts"
    if recipe.text is not None:
        return "batches must be of one size, and texts are not"
    return None


class GraphedPass:
    """`run(images, labels, parts)` -> loss, which leaves gradients behind; called with batches of always the same size.

    The first calls run as they are. Then `run` is recorded with gradients that start as None, so that every replay
    overwrites them: nobody may set them to None in between.
    """

    def __init__(self, run: Callable[..., Tensor], forget_gradients: Callable[[], None]):
        self.run, self.forget_gradients = run, forget_gradients
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor | None] = []
        self.loss: Tensor | None = None

    def __call__(self, *batch: Tensor | None) -> Tensor:
        """The loss of a batch [], on the device; it is overwritten by the next call."""
        self.calls += 1
        if self.calls <= WARM_UP:
            return self._plain(*batch)
        if self.graph is None:
            self._record(*batch)
        assert self.graph is not None
        assert self.loss is not None
        for place, values in zip(self.inputs, batch, strict=True):
            if place is not None:
                assert values is not None
                place.copy_(values)
        self.graph.replay()
        return self.loss

    def _plain(self, *batch: Tensor | None) -> Tensor:
        """On a side stream, as a recording will be, so that whatever is set up for a stream is set up."""
        self.forget_gradients()
        ours, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(ours)
        with torch.cuda.stream(side):
            loss = self.run(*batch).detach()
        ours.wait_stream(side)
        return loss

    def _record(self, *batch: Tensor | None) -> None:
        self.inputs = [None if values is None else values.clone() for values in batch]
        self.forget_gradients()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may go on making batches.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss = self.run(*self.inputs).detach()
