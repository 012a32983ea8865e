import pytest
import torch

from capsroute.data.transfer import fits_on, stream_rows

STORE = torch.arange(50 * 3, dtype=torch.uint8).view(50, 3)


def _chunks():
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    return list(order.split(7))


def _check(device):
    chunks = _chunks()
    rows = list(stream_rows(STORE, chunks, torch.device(device)))
    assert len(rows) == len(chunks)
    for chunk, row in zip(chunks, rows):
        assert row.device.type == device
        assert torch.equal(row.cpu(), STORE[chunk])


def test_rows_arrive_in_order():
    _check("cpu")


def test_no_chunks_no_rows():
    assert list(stream_rows(STORE, [], torch.device("cpu"))) == []


@pytest.mark.gpu
def test_rows_arrive_in_order_through_pinned_buffers():
    # All rows are kept: a buffer that is refilled before its copy has left would show in an earlier batch.
    for _ in range(20):
        _check("cuda")


@pytest.mark.gpu
def test_no_chunks_no_rows_on_the_gpu():
    assert list(stream_rows(STORE, [], torch.device("cuda"))) == []


def test_host_memory_always_fits():
    assert fits_on(torch.device("cpu"), 10**15)


@pytest.mark.gpu
def test_a_set_larger_than_half_of_free_memory_does_not_fit():
    free, _ = torch.cuda.mem_get_info()
    assert fits_on(torch.device("cuda"), free // 4)
    assert not fits_on(torch.device("cuda"), free)
