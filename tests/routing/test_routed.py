"""What every routing function does with odd input: no samples, no parents, no numbers."""

import pytest
import torch

import capsroute as cr
from capsroute.form.window import Window
from capsroute.patches import PatchVotes
from tests.algorithms import ALGORITHMS, arguments, route
from tests.kinds import KINDS, Sizes


def made(kind: str, s: Sizes, device: str = "cpu") -> cr.Votes:
    if kind == "patches":  # of 2 x 2 capsules under a window of 2: four places, eight children
        map, W = torch.randn(s.b, 2, s.a, s.k, 3, 3, device=device), torch.randn(8, s.j, s.k, s.o, device=device)
        return PatchVotes(map.requires_grad_(), W, Window(2))
    return KINDS[kind].votes(s.j, *(leaf.to(device).requires_grad_() for leaf in KINDS[kind].leaves(s)))


def routed(algorithm: str, votes: cr.Votes) -> tuple[torch.Tensor, ...]:
    s = Sizes(votes.batch, votes.children, votes.parents, votes.rows, votes.columns, votes.columns)
    return route(algorithm, votes, *(x.to(votes.device, votes.dtype) for x in arguments(algorithm, s)))


@pytest.mark.parametrize("kind", [*KINDS, "patches"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_samples_give_no_parents(algorithm, kind):
    votes = made(kind, Sizes(0, 5, 3, 2, 3, 4))
    poses, *_ = routed(algorithm, votes)
    poses.sum().backward()
    assert poses.shape == (0, 3, votes.rows, votes.columns)


def test_values_of_votes_are_asked_for_on_a_cpu_alone(monkeypatch):
    asked = []
    monkeypatch.setattr("capsroute.routing.routed.check_no_nan", lambda name, tensor: asked.append(name))
    for device in ("meta", "cpu"):
        assert asked == []
        cr.dynamic_routing(made("per-child", Sizes(2, 5, 3, 2, 3, 4), device))
    assert asked == ["votes.u", "votes.W"]


@pytest.mark.parametrize("kind", [*KINDS, "patches"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shapes_alone_are_routed_on_the_meta_device(algorithm, kind):
    votes = made(kind, Sizes(2, 5, 3, 2, 3, 4), "meta")
    poses, *_ = routed(algorithm, votes)
    poses.sum().backward()
    assert poses.device.type == "meta"
    assert poses.shape == (votes.batch, 3, votes.rows, votes.columns)


@pytest.mark.parametrize("kind", ["dense", "per-child", "shared", "patches"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_parents_are_an_error_that_says_so(algorithm, kind):
    with pytest.raises(ValueError, match=r"votes: expected at least one parent, got \w+\(\[b,i,j,a,o\] = \[\d, \d, 0"):
        routed(algorithm, made(kind, Sizes(2, 5, 0, 2, 3, 4)))
