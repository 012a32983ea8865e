"""A training step as one CUDA graph: recorded once, then replayed for every batch; for our own loop and for anyone's.

A small network is done before Python has queued its next kernel. A graph is queued at once: the GPU never waits.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from capsroute.training.distributed import World
from capsroute.training.recipe import Recipe

WARM_UP = 3  # ordinary steps before the recording: compiling, choosing algorithms, filling caches


def graphed_step(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimiser: torch.optim.Optimizer,
    example: Sequence[Tensor | None],
    *,
    autocast: torch.dtype | None = None,
    clip: float | None = None,
    record: bool = True,
) -> GraphedStep:
    """A whole training step for a loop of your own: `step(*batch)` -> the loss, a tensor [].

    On a GPU forward pass, backward pass, clipping and the optimiser are recorded as one CUDA graph after a few ordinary
    steps, and replayed from then on. Elsewhere, and where recording is not possible, the same step runs as it is, and
    `step.reason` says why. Either way each call is one step of training.

    Learning-rate schedulers work as ever: the rate becomes a tensor that the graph reads anew at every step, and
    `group["lr"] = 0.01` is heeded too. Batches of another size than `example` (the last of an epoch) run as they are.

    Args:
        model: what is trained, on its device; compiled if you like (`torch.compile`, without its own CUDA graphs).
        loss: `loss(model, *batch)` -> a scalar. It must not look at values (`.item()`, `if tensor`).
        optimiser: of torch, over the model's parameters: SGD, or one that has `capturable` (Adam, AdamW, RAdam, ...).
        example: a batch as the loop will give it: tensors (or None). Nothing is trained on it.
        autocast: compute in this dtype where it is safe, such as `torch.bfloat16`.
        clip: the largest norm of the gradient; `step.norm` is that of the last step, before it was clipped.
        record: False leaves steps as they are on a GPU too.

    Example:
        >>> import torch, capsroute as cr
        >>> model = cr.create_model("capsnet_small", image_size=8, decoder=None)
        >>> optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
        >>> batches = cr.data.Batches(cr.data.load("digits"), 100, drop_last=True)
        >>> def loss(model, images, labels):
        ...     return cr.losses.margin(model(images).scores, labels)
        >>> step = cr.training.graphed_step(model, loss, optimiser, next(iter(batches)), clip=1.0)
        >>> for images, labels in batches:
        ...     value = step(images, labels)
        >>> schedule.step()
        >>> step.reason
        'CUDA graphs need a GPU, and the model is on cpu'
    """
    return GraphedStep(model, loss, optimiser, example, autocast, clip, record)


class GraphedStep:
    """What `graphed_step` makes. `reason`: why steps are not replayed; None where they are, or will be."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        optimiser: torch.optim.Optimizer,
        example: Sequence[Tensor | None],
        autocast: torch.dtype | None,
        clip: float | None,
        record: bool = True,
    ):
        if not callable(loss):
            raise TypeError(f"loss: expected a function of (model, *batch), got {loss!r}")
        if isinstance(example, Tensor):
            raise TypeError("example: expected a batch, such as (images, labels), got a tensor")
        self.model, self.loss, self.optimiser, self.autocast, self.clip = model, loss, optimiser, autocast, clip
        self.parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        if not self.parameters:
            raise ValueError("optimiser: expected parameters to train, got none")
        self.device = self.parameters[0].device
        self.shapes = self._shapes(example)
        self.norm = torch.zeros(())
        self.reason = self._refusal() if record else "recording was not asked for"
        self.graphed: GraphedPass | None = None
        if self.reason is None:
            capturable(optimiser, True)
            self.rates = [group["lr"] for group in optimiser.param_groups]
            self.graphed = GraphedPass(self._step, self._forget_gradients)

    def __call__(self, *batch: Tensor | None) -> Tensor:
        """One step of training on a batch; its loss [], on the device."""
        if self.graphed is None:
            return self._plain(batch)
        self._heed_rates()
        if self._shapes(batch) != self.shapes:
            return self._plain(batch)
        try:
            with torch.cuda.device(self.device):
                return self.graphed(*batch).clone()
        except RuntimeError as error:
            if self.graphed.graph is None or self.graphed.recorded:
                raise  # not the recording's fault
            self.reason, self.graphed = f"recording failed: {str(error).splitlines()[0]}", None
            warnings.warn(f"graphed_step: {self.reason}; steps run as they are", stacklevel=2)
            return self._plain(batch)

    def _refusal(self) -> str | None:
        if self.device.type != "cuda":
            return f"CUDA graphs need a GPU, and the model is on {self.device}"
        if any(parameter.device != self.device for parameter in self.parameters):
            return "CUDA graphs are of one GPU, and the model is on several"
        if isinstance(self.model, nn.parallel.DistributedDataParallel):
            return "gradients that several processes exchange are not recorded"
        if not can_capture(self.optimiser):
            return f"{type(self.optimiser).__name__} decides on the host: it has no `capturable`"
        return None

    def _heed_rates(self) -> None:
        """A rate that was set as a number goes to where the recording reads it."""
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate

    def _shapes(self, batch: Sequence[Tensor | None]) -> list:
        return [None if values is None else (values.shape, values.dtype) for values in batch]

    def _plain(self, batch: Sequence[Tensor | None]) -> Tensor:
        placed = [None if values is None else values.to(self.device, non_blocking=True) for values in batch]
        self._forget_gradients()
        return self._step(*placed).detach()

    def _step(self, *batch: Tensor | None) -> Tensor:
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            loss = self.loss(self.model, *batch)
        loss.backward()
        if all(parameter.grad is None for parameter in self.parameters):
            given = f"{len(self.parameters)} that the loss of {type(self.model).__name__} does not depend on"
            raise ValueError(f"optimiser: expected parameters to train, got {given}")
        if self.clip is not None:
            self.norm = nn.utils.clip_grad_norm_(self.parameters, self.clip).detach()
        self.optimiser.step()
        return loss

    def _forget_gradients(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)


def can_capture(optimiser: torch.optim.Optimizer) -> bool:
    """Whether the step of an optimiser can be part of a recording."""
    return isinstance(optimiser, torch.optim.SGD) or all("capturable" in group for group in optimiser.param_groups)


def capturable(optimiser: torch.optim.Optimizer, wanted: bool) -> None:
    """Make an optimiser one whose steps can be recorded, its rate and its counts on the device; or an ordinary one."""
    for group in optimiser.param_groups:
        device = group["params"][0].device
        if not wanted:
            group["lr"] = float(group["lr"])
        elif not isinstance(group["lr"], Tensor) or group["lr"].device != device:
            group["lr"] = torch.full((), float(group["lr"]), device=device)
        if wanted and isinstance(optimiser, torch.optim.SGD):
            group["fused"], group["foreach"] = True, False  # the one form of it that leaves the rate on the device
        if group.get("capturable", wanted) != wanted:
            group["capturable"] = wanted
            for parameter in group["params"]:
                count = optimiser.state.get(parameter, {}).get("step")
                if isinstance(count, Tensor):
                    on_device = wanted or bool(group.get("fused"))
                    optimiser.state[parameter]["step"] = count.to(device if on_device else "cpu", torch.float32)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of every group; one that a recording reads is overwritten in its place."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group.get("factor", 1.0))
        else:
            group["lr"] = rate * group.get("factor", 1.0)


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
    """`run(*batch)` -> loss; called with batches of always the same size, recorded after the first few calls.

    It is recorded with gradients that start as None, so that every replay overwrites them: where `run` leaves them for
    somebody else, nobody may set them to None in between.
    """

    def __init__(self, run: Callable[..., Tensor], forget_gradients: Callable[[], None]):
        self.run, self.forget_gradients = run, forget_gradients
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.recorded = False
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
                place.copy_(values, non_blocking=True)
        self.graph.replay()
        return self.loss

    def _plain(self, *batch: Tensor | None) -> Tensor:
        """On a side stream, as a recording will be, so that whatever is set up for a stream is set up."""
        self.forget_gradients()
        ours, side = torch.cuda.current_stream(), torch.cuda.Stream()
        placed = [None if values is None else values.cuda(non_blocking=True) for values in batch]
        side.wait_stream(ours)
        with torch.cuda.stream(side):
            loss = self.run(*placed).detach()
        ours.wait_stream(side)
        return loss

    def _record(self, *batch: Tensor | None) -> None:
        self.inputs = [None if values is None else values.cuda().clone() for values in batch]
        self.forget_gradients()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # A recording that somebody let go is a cycle; to collect it now would be an error of this one. What is garbage
        # by now is collected as the recording begins.
        collects = gc.isenabled()
        gc.disable()
        try:
            # Other threads may go on making batches.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.loss = self.run(*self.inputs).detach()
        finally:
            if collects:
                gc.enable()
        self.recorded = True
