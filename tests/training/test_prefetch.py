"""Batches made by another thread are the same batches, and what was not taken was not seen."""

import threading

import pytest
import torch

import capsroute as cr
from capsroute.training.prefetch import Prefetched

CPU = torch.device("cpu")


def source(seed=3):
    return cr.data.Batches(cr.data.load("digits"), 100, augment=cr.data.augment.Shift(1), seed=seed)


def test_two_epochs_are_those_of_the_source():
    ahead, plain = Prefetched(source(), CPU), source()
    for epoch in range(2):
        ahead.set_epoch(epoch)
        plain.set_epoch(epoch)
        for (images, labels), (others, other_labels) in zip(ahead, plain, strict=True):
            assert torch.equal(images, others)
            assert torch.equal(labels, other_labels)


@pytest.mark.parametrize("taken", [1, 5, 13])
def test_state_is_that_of_what_was_taken(taken):
    """Several batches wait already: resuming must not skip them."""
    ahead, plain = Prefetched(source(), CPU), source()
    one, other = iter(ahead), iter(plain)
    for _ in range(taken):
        next(one), next(other)
    assert ahead.state_dict() == plain.state_dict()
    one.close()
    again = Prefetched(source(), CPU)
    again.load_state_dict(ahead.state_dict())
    again.set_epoch(0)
    rest, expected = list(again), list(other)
    assert len(rest) == len(expected) == 13 - taken
    assert all(torch.equal(a[0], b[0]) for a, b in zip(rest, expected, strict=True))


def test_loop_that_is_left_leaves_no_thread():
    before = threading.active_count()
    for _ in Prefetched(source(), CPU):
        break
    assert threading.active_count() == before


def test_error_of_the_thread_is_raised_here():
    broken = source()
    broken.augment = lambda images, labels, generator: 1 / 0
    with pytest.raises(ZeroDivisionError):
        list(Prefetched(broken, CPU))
