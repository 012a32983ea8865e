"""Votes of a map and a window: the same as those of its patches, which are cut out only when asked for."""

import pytest
import torch

import capsroute as cr
from capsroute import patches
from capsroute.form.window import Window
from capsroute.patches import PatchVotes

WINDOWS = [Window(3), Window(3, 2), Window(2, 1, 1), Window(1)]


def operands(window, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 2, 4, 5, 6), (3 * window.kernel**2, 5, 4, 3)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def cut(map, window):
    """The patches, one by one."""
    map = torch.nn.functional.pad(map, [window.padding] * 4)
    rows, columns = (
        window.positions(*map.shape[4:]) if not window.padding else window._replace(padding=0).positions(*map.shape[4:])
    )
    found = []
    for sample in map:
        for y in range(rows):
            for x in range(columns):
                top, left = y * window.stride, x * window.stride
                patch = sample[..., top : top + window.kernel, left : left + window.kernel]
                found.append(patch.permute(0, 3, 4, 1, 2).flatten(0, 2))
    return torch.stack(found)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_they_are_the_votes_of_the_patches(window):
    map, W = operands(window)
    votes, plain = PatchVotes(map, W, window), cr.LinearVotes(cut(map, window), W)
    assert torch.equal(votes.u, plain.u)
    assert (votes.batch, votes.children, votes.parents) == (plain.batch, plain.children, plain.parents)
    q = torch.randn(votes.batch, 5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(votes.agreement(q), plain.agreement(q), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(votes.keeping().agreement(q), plain.agreement(q), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_coefficients_that_all_positions_share_make_it_a_convolution(window, monkeypatch):
    map, W = (t.requires_grad_() for t in operands(window))
    plain = cr.LinearVotes(cut(map, window), W)
    monkeypatch.setattr(patches, "patches", lambda *_: pytest.fail("cut the patches out"))
    votes = PatchVotes(map, W, window)
    c = torch.rand(votes.children, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    c = c.expand(votes.batch, -1, -1)
    sums = [v.aggregate(c) for v in (votes, plain)]
    torch.testing.assert_close(*sums, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad(s.pow(3).sum(), (map, W)) for s in sums]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_coefficients_that_differ_are_not_taken_for_shared_ones():
    window = Window(3, 2)
    map, W = operands(window)
    votes = PatchVotes(map, W, window)
    c = torch.rand(votes.batch, votes.children, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.einsum("bij,bijao->bjao", c, votes.dense())
    torch.testing.assert_close(votes.aggregate(c), expected, rtol=1e-12, atol=1e-12)


def test_transforms_for_another_number_of_children_are_named():
    map, W = operands(Window(3))
    with pytest.raises(ValueError, match="W: axis i has size 27, but u has 12"):
        PatchVotes(map, W, Window(2))


def test_nan_in_the_map_is_named():
    map, W = operands(Window(3))
    map[1, 2, 0, 3, 4, 5] = torch.nan
    with pytest.raises(ValueError, match=r"votes.map: expected no NaN, found one at \[1, 2, 0, 3, 4, 5\]"):
        cr.inverted_attention_routing(PatchVotes(map, W, Window(3)))


@pytest.mark.parametrize("window", [Window(3), Window(3, 2, 1)], ids=str)
def test_fast_routing_is_a_convolution_too(window, monkeypatch):
    map, W = torch.randn(2, 3, 2, 4, 7, 7, dtype=torch.float64), torch.randn(27, 5, 4, 6, dtype=torch.float64)
    C = torch.rand(27, 5, dtype=torch.float64)
    votes = PatchVotes(map, W, window)
    cut = cr.fast_routing(cr.LinearVotes(votes.u, W), C)
    monkeypatch.setattr(patches, "patches", lambda *_: pytest.fail("cut the patches out"))
    for ours, theirs in zip(cr.fast_routing(votes, C)[:2], cut[:2]):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
