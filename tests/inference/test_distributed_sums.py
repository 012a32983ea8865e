"""Accumulation by two processes against one."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed as dist
from torch import multiprocessing

from capsroute.inference.distributed_sums import gather_rows
from tests.inference.networks import TwoLayers, make_batches, quiet_accumulate
from tests.training.processes import CONTEXT

FILTERS = [
    None,
    {"name": "similarity", "fraction": 0.5},
    {"name": "clustering", "clusters": 2, "least_share": 0.3, "sample": 1000},
]


def masters(batches):
    torch.manual_seed(0)
    model = TwoLayers("max_min")
    found = [quiet_accumulate(model, batches, filter=chooser) for chooser in FILTERS]
    tensors = {f"{n} {name}": master[name] for n, master in enumerate(found) for name in master}
    return tensors | {f"{n} counts": master.counts for n, master in enumerate(found)}


def process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    reduces = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, *args, **kwargs: reduces.append(1) or all_reduce(tensor, *args, **kwargs)
    # Shares of different sizes; one process has an empty batch.
    batches = [(images[rank::2], labels[rank::2]) for images, labels in make_batches(count=80, size=7)]
    batches.append((torch.zeros(0, 1, 7, 7), torch.zeros(0, dtype=torch.int64)))
    quiet_accumulate(TwoLayers("max_min"), batches)
    found = {"all-reduces": torch.tensor(len(reduces)), **masters(batches)}
    save_file(found, f"{folder}/{rank}")
    gathered = gather_rows(torch.arange(rank + 1.0))
    assert gathered.tolist() == [0, 0, 1]
    dist.barrier()  # neither leaves while the other may still be talking to it
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shares")
    multiprocessing.start_processes(process, (str(folder),), nprocs=2, start_method=CONTEXT.get_start_method())
    return [load_file(folder / str(rank)) for rank in range(2)]


@pytest.fixture(scope="module")
def by_one():
    return masters(make_batches(count=80, size=7))


@pytest.mark.parametrize("number", range(len(FILTERS)), ids=["none", "similarity", "clustering"])
def test_two_processes_find_what_one_finds(by_two, by_one, number):
    for shares in by_two:
        for name in (name for name in by_one if name.startswith(f"{number} ")):
            torch.testing.assert_close(shares[name], by_one[name], rtol=0, atol=1e-6)


def test_the_filters_did_filter(by_one):
    assert by_one["1 counts"].sum() < by_one["0 counts"].sum() == 80


def test_one_all_reduce_is_enough(by_two):
    assert [int(shares["all-reduces"]) for shares in by_two] == [1, 1]
