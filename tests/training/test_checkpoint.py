"""Checkpoints hold everything, notice damage, and never cost the one before."""

import os
import random
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from capsroute.training.checkpoint import Checkpoints, random_state, restore_random_state, seeded


def state(step):
    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    shared = torch.arange(3.0)
    return {
        "step": step,
        "optimiser": optimiser.state_dict(),
        "mixed": [1, 2.5, None, True, "text", (1, (2, torch.ones(2))), {"a/b": torch.zeros(()), 7: "seven"}],
        "shared": {"one": shared, "two": shared},
    }


def equal(one, two):
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(equal, one, two))
    return type(one) is type(two) and one == two


def test_state_survives(tmp_path):
    saved = state(3)
    Checkpoints(tmp_path).save(3, saved)
    assert equal(Checkpoints(tmp_path).load(), saved)


def test_last_two_are_kept(tmp_path):
    for step in (1, 2, 10):
        Checkpoints(tmp_path).save(step, state(step))
    assert [path.stem for path in sorted(tmp_path.glob("*.safetensors"))] == ["step-000000002", "step-000000010"]
    assert len(list(tmp_path.iterdir())) == 4
    assert Checkpoints(tmp_path).load()["step"] == 10


def test_nothing_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / "none").load() is None


def test_checksum_is_of_the_kind_that_sha256sum_reads(tmp_path):
    path = Checkpoints(tmp_path).save(3, state(3))
    command = ["sha256sum", "--check", path.with_suffix(".sha256").name]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


@pytest.mark.parametrize("seed", range(20))
def test_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, seed):
    draw = random.Random(seed)
    Checkpoints(tmp_path).save(1, state(1))
    path = Checkpoints(tmp_path).save(2, state(2))
    content = bytearray(path.read_bytes())
    if seed % 2:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    else:
        del content[draw.randrange(len(content)) :]
    path.write_bytes(content)
    said = []
    assert Checkpoints(tmp_path).load(said.append)["step"] == 1
    assert len(said) == 1
    assert str(path) in said[0]


def test_unfinished_checkpoint_is_passed_over(tmp_path):
    Checkpoints(tmp_path).save(1, state(1))
    Checkpoints(tmp_path).save(2, state(2)).with_suffix(".sha256").unlink()
    said = []
    assert Checkpoints(tmp_path).load(said.append)["step"] == 1
    assert "not finished" in said[0]


def test_all_damaged_is_none(tmp_path):
    Checkpoints(tmp_path).save(1, state(1)).write_bytes(b"")
    assert Checkpoints(tmp_path).load(lambda text: None) is None


def test_what_is_no_plain_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match="state: expected tensors and plain data, got object at '/a'"):
        Checkpoints(tmp_path).save(1, {"a": object()})


FULL_DISK = """
import sys, torch
from capsroute.training.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1])
try:
    checkpoints.save(2, {"step": 2, "weights": torch.zeros(100_000)})
except OSError as error:
    sys.exit(7)
"""


def test_full_disk_leaves_the_checkpoint_before(tmp_path):
    Checkpoints(tmp_path).save(1, state(1))
    before = sorted(path.name for path in tmp_path.iterdir())
    # The kernel cuts the file off at this size, as a full disk would.
    limit = (50_000, 50_000)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert Checkpoints(tmp_path).load()["step"] == 1


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), np.random.randn(), random.random()


def test_every_generator_is_restored():
    """Numpy's and Python's too: augmentations of one's own draw from them. An odd number of normal draws leaves one."""
    np.random.randn()
    before = random_state(torch.device("cpu"))
    first = draws()
    restore_random_state(before, torch.device("cpu"))
    assert draws() == first


def test_every_generator_is_seeded_inside_and_left_alone_outside():
    outside = random_state(torch.device("cpu"))
    with seeded(3, torch.device("cpu")):
        one = draws()
    assert equal(random_state(torch.device("cpu")), outside)
    draws()
    with seeded(3, torch.device("cpu")):
        assert draws() == one
    with seeded(4, torch.device("cpu")):
        assert all(mine != theirs for mine, theirs in zip(draws(), one, strict=True))


def test_every_generator_is_as_it_was_after_an_error(monkeypatch):
    """Of what is done inside, and one that falls into the seeding itself, as a second Ctrl-C may."""
    outside = random_state(torch.device("cpu"))
    with pytest.raises(ZeroDivisionError), seeded(3, torch.device("cpu")):
        sum(draws()[0]) / 0
    assert equal(random_state(torch.device("cpu")), outside)
    monkeypatch.setattr(np.random, "seed", lambda seed: 1 / 0)
    with pytest.raises(ZeroDivisionError), seeded(3, torch.device("cpu")):
        pass
    assert equal(random_state(torch.device("cpu")), outside)


def test_seeding_for_a_cpu_leaves_gpus_alone(monkeypatch):
    touched = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched.append)
    with seeded(3, torch.device("cpu")):
        assert not touched
