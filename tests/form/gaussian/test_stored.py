"""Gaussian passes over stored votes, against float64, and when they are taken; under the interpreter or on a GPU."""

import torch

import capsroute as cr
from capsroute.form.cost import register_pass, stored_pass, stores_votes
from capsroute.form.gaussian.calls import Voters, moments
from capsroute.form.gaussian.plan import gaussian_launch
from capsroute.form.gaussian.stored import stored_votes
from capsroute.form.plan import Sizes as Plain
from tests.form.kernels import DEVICE, error, needs_kernels


@needs_kernels
def test_a_program_joins_the_moments_of_children_that_it_reads_a_few_at_a_time(monkeypatch):
    """Two blocks and a rest in one program, of votes far from zero and close to each other."""
    monkeypatch.setattr("capsroute.form.gaussian.plan.STORED_PROGRAMS", 1)
    gaussian_launch.cache_clear()
    generator = torch.Generator().manual_seed(0)
    s = Plain(2, 19, 3, 1, 2, 2)
    u = (1000 + torch.randn(s.b, s.i, s.a, s.k, generator=generator)).to(DEVICE)
    W = torch.eye(2).expand(s.i, s.j, 2, 2).contiguous().to(DEVICE)
    weights = torch.rand(s.b, s.i, s.j, generator=generator).to(DEVICE)
    weights[:, :8] = 0  # a first block that weighs nothing
    votes, apart = stored_votes(s, u, W.permute(0, 2, 3, 1).contiguous(), None)
    v = Voters(s, False, u, W, W, False, u.dtype, votes, apart)
    mean, variance, totals, _, _ = moments(v, weights, None, None, 0.0)
    V = cr.LinearVotes(u.double(), W.double())
    for ours, wanted in zip((mean, variance), V.moments(weights.double())):
        assert error(ours, wanted.flatten(2).mT) < 2e-7
    assert error(totals, weights.double().sum(1)) < 1e-6
    gaussian_launch.cache_clear()


def test_votes_are_stored_where_making_them_costs_more():
    vectors, matrices = Plain(128, 1152, 100, 1, 8, 16), Plain(20, 5184, 64, 4, 4, 4)
    assert stores_votes(vectors, shared=False, fits=True)
    assert not stores_votes(matrices, shared=True, fits=True)
    assert register_pass(vectors, shared=False) > 10 * stored_pass(vectors)
    assert stores_votes(matrices, shared=True, fits=False)  # what cannot be made in registers
    assert not stores_votes(Plain(1, 4, 3, 1, 4, 4), shared=False, fits=True)  # a launch more costs more than it saves
