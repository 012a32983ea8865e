"""Runs in real processes that train together over gloo, forked from one that has imported everything once."""

import multiprocessing
import os

import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

from capsroute.training import Interrupted, LostContact, SilentReporter
from tests.training.tiny import train

# Modules that training imports late, each of which would cost every process a second.
LATE = ["sklearn.datasets", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.training.test_resume", "tests.training.test_distributed", *LATE])


class AtStep(SilentReporter):
    """Does something after a step, in the process that trains: from outside it would come late on a busy machine."""

    def __init__(self, step, act):
        self.at, self.act = step, act

    def due(self):
        return True

    def step(self, epoch, done, loss, accuracy, speed):
        if done == self.at:
            self.act()


def signal_at(step, number):
    """A process that sends itself a signal after a step."""
    return AtStep(step, lambda: os.kill(os.getpid(), number))


def member(rank, size, port, folder, changes, pipe, signalled):
    """One process of a world: trains the tiny recipe, and sends the error that ended it, or None."""
    torch.set_num_threads(1)
    # As torchrun does it: processes meet at a store that was there before them.
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), **address})
    reporter = signal_at(*signalled) if signalled else SilentReporter()
    try:
        train(folder, resume=True, reporter=reporter, **changes)
        pipe.send(None)
    except Interrupted as error:
        pipe.send(str(error))
    except LostContact as error:
        pipe.send(str(error))
        os._exit(1)  # as a command would: no waiting for the lost one


def start(folder, changes, size=2, signalled=None):
    """Processes and the pipes that their outcomes come through; `signalled`: step and signal for the last of them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(size):
        here, there = CONTEXT.Pipe()
        given = (rank, size, store.port, folder, changes, there, signalled if rank == size - 1 else None)
        processes.append(CONTEXT.Process(target=member, args=given))
        processes[-1].start()
        there.close()
        pipes.append(here)
    return processes, pipes, store


def train_together(folder, changes, size=2):
    """Train in `size` processes, all of which must end well."""
    processes, pipes, _store = start(folder, changes, size)
    assert [pipe.recv() for pipe in pipes] == [None] * size
    for process in processes:
        process.join()
        assert process.exitcode == 0


def weights(folder):
    return load_file(folder / "last" / "model.safetensors")


def far_apart(one, two):
    return max(float((one[key].double() - two[key].double()).abs().max()) for key in one)
