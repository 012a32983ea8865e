"""Several processes train what one would."""

import signal

import pytest
import torch

from capsroute.training import RunFolder
from capsroute.training.distributed import load_states, synchronised
from tests.training.processes import far_apart, start, train_together, weights
from tests.training.tiny import tiny, train


def test_two_processes_equal_one(tmp_path):
    train_together(tmp_path / "two", {})
    train(tmp_path / "one")
    assert far_apart(weights(tmp_path / "two"), weights(tmp_path / "one")) < 1e-5
    two, one = RunFolder(tmp_path / "two").read_metrics(), RunFolder(tmp_path / "one").read_metrics()
    assert [row["train_accuracy"] for row in two] == [row["train_accuracy"] for row in one]
    assert [row["validation_accuracy"] for row in two] == [row["validation_accuracy"] for row in one]
    result = RunFolder(tmp_path / "two").read("result.json")
    assert result["test"]["as_trained"]["images"] == 359
    # What is dropped out of one process's images is not what is dropped out of the other's.
    mine, theirs = RunFolder(tmp_path / "two").checkpoints.load()["random"]
    assert not torch.equal(mine["torch"], theirs["torch"])
    assert mine["numpy"] != theirs["numpy"]
    assert mine["python"] != theirs["python"]


def test_two_processes_equal_two_accumulated_halves_bit_for_bit(tmp_path):
    train_together(tmp_path / "two", {})
    train(tmp_path / "one", **{"training.accumulate": 2})
    assert far_apart(weights(tmp_path / "two"), weights(tmp_path / "one")) == 0


def test_batch_normalisation_is_over_all_processes_on_gpus_and_refused_on_cpus():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    with pytest.raises(ValueError, match=r"'1' normalises over the batch.*in one process"):
        synchronised(model, torch.device("cpu"))
    weight = model[1].weight
    made = synchronised(model, torch.device("cuda"))
    assert type(made[1]) is torch.nn.SyncBatchNorm
    assert made[1].weight is weight
    assert made is model


def test_model_without_batch_normalisation_is_shared_as_it_is():
    model = torch.nn.Linear(2, 2)
    assert synchronised(model, torch.device("cpu")) is model


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shards on GPUs alone")
def test_sharded_training_equals_one_process_and_resumes(tmp_path):
    changes = {"training.sharding": "fsdp"}
    train(tmp_path / "one")
    train_together(tmp_path / "two", changes)
    assert far_apart(weights(tmp_path / "two"), weights(tmp_path / "one")) < 1e-5
    train_together(tmp_path / "parts", {**changes, "training.max_steps": 6})
    train_together(tmp_path / "parts", changes)
    assert far_apart(weights(tmp_path / "parts"), weights(tmp_path / "two")) == 0


def test_run_goes_on_with_another_number_of_processes(tmp_path):
    train(tmp_path / "one")
    train_together(tmp_path / "both", {"training.max_steps": 6})
    train(tmp_path / "both", resume=True)
    assert far_apart(weights(tmp_path / "both"), weights(tmp_path / "one")) < 1e-5


def test_dead_process_is_named_and_the_job_goes_on_later(tmp_path):
    changes = {"checkpoint.every_steps": 2}
    processes, pipes, _store = start(tmp_path / "killed", changes, signalled=(7, signal.SIGKILL))
    message = pipes[0].recv()
    assert message is not None
    assert "process 0 of 2 lost contact" in message
    assert "--resume" in message
    for process in processes:
        process.join()
    train_together(tmp_path / "killed", changes)
    train_together(tmp_path / "whole", changes)
    assert far_apart(weights(tmp_path / "killed"), weights(tmp_path / "whole")) == 0


def test_signal_to_one_process_ends_all_of_them_with_a_checkpoint(tmp_path):
    changes = {"training.epochs": 8, "data.validation": False}
    processes, pipes, _store = start(tmp_path / "ended", changes, signalled=(3, signal.SIGTERM))
    for pipe, process in zip(pipes, processes, strict=True):
        assert pipe.recv().startswith("stopped by SIGTERM; `capsroute train")
        process.join()
    assert RunFolder(tmp_path / "ended").checkpoints.load()["step"] == 20  # they ask each other every 20 steps
    train_together(tmp_path / "ended", changes)
    train_together(tmp_path / "whole", changes)
    assert far_apart(weights(tmp_path / "ended"), weights(tmp_path / "whole")) == 0


def test_refusal_of_the_first_process_reaches_the_others(tmp_path):
    train_together(tmp_path / "run", {"training.max_steps": 3})
    processes, pipes, _store = start(tmp_path / "run", {"optimiser.learning_rate": 9.0})
    for pipe, process in zip(pipes, processes, strict=True):
        with pytest.raises(EOFError):
            pipe.recv()
        process.join(timeout=60)
        assert process.exitcode == 1


def test_batch_that_cannot_be_shared_is_refused(tmp_path):
    from capsroute.training import load_splits
    from capsroute.training.data import training_batches

    recipe = tiny(**{"training.batch_size": 201})
    with pytest.raises(ValueError, match="2 processes cannot share batches of 201 evenly"):
        training_batches(load_splits(recipe), recipe, torch.device("cpu"), rank=0, world_size=2)


def test_a_resumed_optimiser_keeps_the_memory_order_of_channels_last_weights():
    # Fused steps on a GPU refuse momentum in another order than the weights ("check_fast_path_restrictions").
    model = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(2, 4, 5, 5)).sum().backward()
    optimiser.step()
    state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
    kept = state["optimiser"]["state"][0]
    kept["momentum_buffer"] = kept["momentum_buffer"].contiguous()  # as a file gives it back
    again = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    resumed = torch.optim.SGD(again.parameters(), 0.1, momentum=0.9)
    load_states(again, resumed, state, sharded=False)
    momentum = resumed.state[again.weight]["momentum_buffer"]
    assert momentum.stride() == again.weight.stride()
    assert torch.equal(momentum, kept["momentum_buffer"])
