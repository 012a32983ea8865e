"""More than one process: who we are among them, sharing the model, and ending together (torch.distributed)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from capsroute.training.precision import choose_device

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)  # for another process to answer


class LostContact(RuntimeError):
    """Another process of the job ended or stopped answering; the message says how to go on."""


@dataclass(frozen=True)
class World:
    """The processes of a job, and which of them this is. One process alone is a world too."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks."""
        gathered: list[Any] = [value]
        if self.size > 1:
            gathered = [None] * self.size
            dist.all_gather_object(gathered, value)
        return gathered

    def from_first(self, value: T) -> T:
        """What the first process has."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def first_does(self, action: Callable[[], T]) -> T:
        """What `action` gives in the first process; its ValueError is raised in all of them, so that none waits."""
        outcome: tuple[T | None, ValueError | None] = None, None
        if self.first:
            try:
                outcome = action(), None
            except ValueError as error:
                outcome = None, error
        value, refused = self.from_first(outcome)
        if refused is not None:
            raise refused
        return value  # type: ignore[return-value]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def share(self, model: nn.Module, sharding: str, find_unused: bool) -> nn.Module:
        """The model as all processes train it together: gradients are averaged, statistics taken over all of them."""
        if self.size == 1:
            return model
        model = synchronised(model, self.device)
        if sharding == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            if self.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
                raise ValueError(
                    f"training.sharding: torch {torch.__version__} shards on GPUs alone, newer ones on CPUs too"
                )
            fully_shard(model, mesh=init_device_mesh(self.device.type, (self.size,)))
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, devices, find_unused_parameters=find_unused)

    def no_sync(self, model: nn.Module, last: bool) -> Any:
        """Around all but the last part of an accumulated batch: gradients are exchanged once."""
        if last or not isinstance(model, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return model.no_sync()


def synchronised(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with batch normalisation over the images of all processes; refused where torch has none (CPUs)."""
    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if norms and device.type != "cuda":
        raise ValueError(
            f"training: {norms[0]!r} normalises over the batch; over several processes torch does that on GPUs only; "
            "train this model in one process (training.threads makes it use more cores), or on GPUs"
        )
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


@contextmanager
def join_world(device_name: str = "auto") -> Iterator[World]:
    """The world that torchrun started this process in, or a world of one.

    >>> from capsroute.training.distributed import join_world
    >>> with join_world("cpu") as world:
    ...     print(world.rank, world.size)
    0 1
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 and not dist.is_initialized():
        yield World(choose_device(device_name))
        return
    if device_name == "auto" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    device = choose_device(device_name)
    ours = not dist.is_initialized()
    if ours:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    world = World(device, dist.get_rank(), dist.get_world_size())
    with _explain_lost_contact(world):
        yield world
    # Only when all went well: where a process is lost, leaving the group would wait for it.
    if ours:
        dist.destroy_process_group()


def is_first() -> bool:
    """Whether this process is the one that talks, also before and after a world is joined."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def _explain_lost_contact(world: World) -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        text = str(error)
        signs = ("Connection closed by peer", "Connection reset", "NCCL", "Timed out waiting", "Broken pipe")
        if not any(sign in text for sign in signs):
            raise
        raise LostContact(
            f"process {world.rank} of {world.size} lost contact with the others: one of them ended or stopped "
            "answering. Start the job again with --resume to go on from the last checkpoint."
        ) from error


def whole_states(model: nn.Module, optimiser: torch.optim.Optimizer, sharded: bool) -> tuple[dict, dict]:
    """State dicts of both. Of sharded ones every process must ask, and the first one gets an answer."""
    if not sharded:
        return model.state_dict(), optimiser.state_dict()
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    options = _whole(offload=True)
    # Asking an optimiser that has not stepped yet would make it step, and count that.
    stepped = len(optimiser.state) > 0
    return (
        get_model_state_dict(model, options=options),
        get_optimizer_state_dict(model, optimiser, options=options) if stepped else {},
    )


def load_states(model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any], sharded: bool) -> None:
    """Put back what `whole_states` gave, as `state["model"]` and `state["optimiser"]`."""
    if not sharded:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        # Files hold numbers in one order; kernels for all weights at once want them in the order of the weights.
        for parameter, kept in optimiser.state.items():
            for name, value in kept.items():
                if (
                    isinstance(value, Tensor)
                    and value.shape == parameter.shape
                    and value.stride() != parameter.stride()
                ):
                    kept[name] = torch.empty_like(parameter).copy_(value)
        return
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    set_model_state_dict(model, state["model"], options=_whole())
    if state["optimiser"]:
        set_optimizer_state_dict(model, optimiser, state["optimiser"], options=_whole())


def whole_model(model: nn.Module, template: nn.Module | None) -> nn.Module:
    """The model itself; of a sharded one, `template` (a copy from before) with the weights of all processes."""
    if template is None:
        return model
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    state = get_model_state_dict(model, options=_whole(offload=True))
    if state:
        template.load_state_dict(state)
    return template


def _whole(offload: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=offload)
