"""Runs in real processes that train together over gloo, forked from one that has imported everything once."""

import multiprocessing
import os
import socket

import torch
from safetensors.torch import load_file

from capsroute.training import Interrupted, LostContact, SilentReporter, fit
from tests.training.tiny import tiny

# Modules that training imports late, each of which would cost every process a second.
LATE = ["sklearn.datasets", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.training.test_resume", "tests.training.test_distributed", *LATE])


class Teller(SilentReporter):
    """Passes each step on to the test."""

    def __init__(self, pipe):
        self.pipe = pipe

    def due(self):
        return True

    def step(self, epoch, done, loss, accuracy, speed):
        self.pipe.send(done)


def member(rank, size, port, folder, changes, pipe):
    """One process of a world: trains the tiny recipe; its last message is the error that ended it, or None."""
    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), **address})
    try:
        fit(None, None, tiny(**changes), folder, resume=True, reporter=Teller(pipe))
        pipe.send(None)
    except Interrupted as error:
        pipe.send(str(error))
    except LostContact as error:
        pipe.send(str(error))
        os._exit(1)  # as a command would: no waiting for the lost one


def start(folder, changes, size=2):
    """Processes and the pipes that they tell their steps through."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes, processes = [], []
    for rank in range(size):
        here, there = CONTEXT.Pipe()
        processes.append(CONTEXT.Process(target=member, args=(rank, size, port, folder, changes, there)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    return processes, pipes


def outcome(pipe):
    """The last message of a process."""
    message = 0
    while isinstance(message, int):
        message = pipe.recv()
    return message


def train_together(folder, changes, size=2):
    """Train in `size` processes, all of which must end well."""
    processes, pipes = start(folder, changes, size)
    assert [outcome(pipe) for pipe in pipes] == [None] * size
    for process in processes:
        process.join()
        assert process.exitcode == 0


def alone(folder, changes):
    torch.set_num_threads(1)
    return fit(None, None, tiny(**changes), folder, reporter=SilentReporter())


def weights(folder):
    return load_file(folder / "last" / "model.safetensors")


def far_apart(one, two):
    return max(float((one[key].double() - two[key].double()).abs().max()) for key in one)
