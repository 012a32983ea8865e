"""Every format, truncated at many places and with single bits flipped: a clear error, never a wrong tensor.

A format that carries checksums (PNG, compressed MATLAB) must notice a flipped bit, unless the bit means nothing. One
that carries none cannot know a wrong pixel from a right one: there, a flip may only change the one value it is in, and
the checksums of the data set catch it (tests/data/test_data_files.py).
"""

import random

import numpy as np
import pytest
import torch

from capsroute.data import DataError
from capsroute.data.catalog.cifar import decode_cifar
from capsroute.data.catalog.mnist import decode_amat, decode_idx
from capsroute.data.catalog.norb import decode_norb
from capsroute.data.catalog.sst import decode_trees
from capsroute.data.catalog.svhn import decode_affnist, decode_svhn
from capsroute.data.data_files import gunzip
from capsroute.data.images.pictures import decode_png
from capsroute.data.sources import read_members
from tests.data import writers

RNG = np.random.default_rng(1)
BYTES = RNG.integers(0, 256, (3, 8, 8), dtype=np.uint8)
FLIPS = 400
REFUSED = object()


def _trees(content):
    return [(tree.label, *tree.words) for tree in decode_trees(content, "file")]


PROTECTED = {
    "png": (writers.png(BYTES[0]), lambda content: decode_png(content, "file")),
    "svhn": (
        writers.svhn(RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8), np.array([1, 0, 2])),
        lambda content: decode_svhn(content, "file"),
    ),
    "affnist": (
        writers.affnist(RNG.integers(0, 256, (3, 40, 40), dtype=np.uint8), np.array([1, 0, 2])),
        lambda content: decode_affnist(content, "file"),
    ),
    "gzip": (writers.gz(BYTES.tobytes()), lambda content: gunzip(content, "file")),
    "zip": (writers.zip_({"a": BYTES.tobytes()}), lambda content: read_members(content, ["a"], "file")),
    "tar.gz": (writers.tar({"a": BYTES.tobytes()}), lambda content: read_members(content, ["a"], "file")),
}
PLAIN = {
    "idx": (writers.idx(BYTES), lambda content: decode_idx(content, "file", dims=3)),
    "norb": (writers.norb(BYTES), lambda content: decode_norb(content, "file", dims=3)),
    "norb integers": (
        writers.norb(RNG.integers(0, 9, (5, 4), dtype=np.int32)),
        lambda content: decode_norb(content, "file", dims=2),
    ),
    "cifar": (
        writers.cifar(RNG.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8), np.array([1, 2])),
        lambda content: decode_cifar(content, "file", classes=(10,)),
    ),
    "amat": (
        writers.amat(RNG.integers(0, 256, (2, 784)) / 255, np.array([1, 2])),
        lambda content: decode_amat(content, "file"),
    ),
    "trees": (b"(3 (2 It) (4 (4 works) (2 .)))\n(1 (0 no) (2 good))\n", _trees),
}


def _plain(value):
    """What a decoder returns, as lists that can be compared."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value


def _count_differences(left, right):
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if len(left) != len(right):
            return 1000
        return sum(_count_differences(a, b) for a, b in zip(left, right))
    return int(left != right)


@pytest.mark.parametrize("name", [*PROTECTED, *PLAIN])
def test_truncated_anywhere(name):
    content, decode = (PROTECTED | PLAIN)[name]
    pick = random.Random(0)
    cuts = {*range(min(len(content), 300)), len(content) - 1, *(pick.randrange(len(content)) for _ in range(200))}
    whole_lines = (
        {at + 1 for at, byte in enumerate(content) if byte == ord("\n")} if name in ("amat", "trees") else set()
    )
    for cut in sorted(cuts - whole_lines):
        with pytest.raises(DataError, match="file"):
            decode(content[:cut])


@pytest.mark.parametrize("name", PROTECTED)
def test_flipped_bit_is_noticed_or_means_nothing(name):
    content, decode = PROTECTED[name]
    truth = _plain(decode(content))
    for damaged in _flip_bits(content):
        found = _decode_or_refuse(decode, damaged)
        assert found is REFUSED or found == truth


@pytest.mark.parametrize("name", PLAIN)
def test_flipped_bit_changes_at_most_its_own_value(name):
    content, decode = PLAIN[name]
    truth = _plain(decode(content))
    for damaged in _flip_bits(content):
        found = _decode_or_refuse(decode, damaged)
        assert found is REFUSED or _count_differences(found, truth) <= 1


def _decode_or_refuse(decode, content):
    try:
        return _plain(decode(content))
    except DataError as error:
        if "file" not in str(error):
            raise AssertionError(f"the error does not name the file: {error}") from error
        return REFUSED


def _flip_bits(content):
    pick = random.Random(0)
    # The first bytes are headers, where a flip does the most harm: every bit of them, then some of the rest.
    places = [(at, bit) for at in range(min(len(content), 60)) for bit in range(8)]
    places += [(pick.randrange(len(content)), pick.randrange(8)) for _ in range(FLIPS)]
    for at, bit in places:
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        yield bytes(damaged)
