"""Gaussians over votes: the children's moments are no worse in float32 than stored votes, where it is hardest."""

import pytest
import torch

import capsroute as cr
from capsroute.form.gaussian import plain as gaussian
from tests.form.gaussian.cases import HARD, errors, grouped
from tests.kinds import KINDS, Sizes


@pytest.mark.parametrize("why", HARD)
def test_float32_error_is_within_twice_that_of_stored_votes(why):
    u, W, weights, group = grouped(why)
    wide = cr.DenseVotes(cr.LinearVotes(u.double(), W.double()).dense())
    mean, variance = wide.moments(weights.double())
    variance = variance.clamp_min(1e-6)
    # Both are asked for the density under the same float32 parents.
    density = wide.log_density(mean.float().double(), variance.float().double())
    exact = mean, variance, density[:, torch.arange(len(group)), group]
    lazy = cr.LinearVotes(u, W)
    ours, textbook = (errors(votes, weights, group, exact) for votes in (lazy, cr.DenseVotes(lazy.dense())))
    for name in ours:
        assert ours[name] <= 2 * textbook[name] + 1e-7, f"{name}: {ours[name]:.1e} against {textbook[name]:.1e}"


def test_children_and_votes_give_the_same_gradients_in_float32():
    u, W, weights, _ = grouped("tight groups, as when routing succeeds")

    def gradients(dtype, dense):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (u, W, weights)]
        votes = cr.LinearVotes(*leaves[:2])
        votes = cr.DenseVotes(votes.dense()) if dense else votes
        mean, variance = votes.moments(leaves[2])
        total = mean.sum() + variance.clamp_min(1e-6).log().sum() + votes.log_density(mean, variance + 1e-3).mean()
        return torch.autograd.grad(total, leaves)

    exact, lazy, textbook = (
        gradients(torch.float64, True),
        gradients(torch.float32, False),
        gradients(torch.float32, True),
    )
    for truth, ours, theirs in zip(exact, lazy, textbook):
        assert (ours - truth).abs().max() <= 2 * (theirs - truth).abs().max() + 1e-6


@pytest.mark.parametrize("kind", ["shared", "shared+bias"])
def test_the_children_path_is_the_one_that_is_tested(kind, monkeypatch):
    # With storing forbidden shared transforms still answer: what is compared above is not stored votes with themselves.
    s = Sizes(2, 5, 3, 4, 4, 4)
    votes = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s, dtype=torch.float32))
    monkeypatch.setattr(cr.LinearVotes, "stored", None)
    weights = torch.rand(2, 5, 3)
    assert votes.log_density(*[part + 1 for part in votes.moments(weights)]).shape == (2, 5, 3)


def test_features_that_outnumber_votes_do_not_pay():
    assert gaussian.moments_pay(torch.float32, rows=4, k=4, o=4)
    assert not gaussian.moments_pay(torch.float32, rows=1, k=512, o=16)


@pytest.mark.parametrize("why", HARD)
def test_float64_keeps_the_digits_of_stored_votes(why):
    # Sums in float64 are no wider than float64 operands: as moments of children they lost four digits more.
    u, W, weights, _ = (t.double() for t in grouped(why))
    lazy = cr.LinearVotes(u, W)
    for ours, stored in zip(lazy.moments(weights), cr.DenseVotes(lazy.dense()).moments(weights)):
        torch.testing.assert_close(ours, stored, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_no_weight_at_all_gives_zero_moments_and_gradients(kind):
    s = Sizes(2, 5, 3, 2, 3, 4)
    leaves = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(s)]
    weights = torch.zeros(2, 5, 3, dtype=torch.float64, requires_grad=True)
    mean, variance = KINDS[kind].votes(s.j, *leaves).moments(weights)
    assert (mean == 0).all()
    assert (variance == 0).all()
    for grad in torch.autograd.grad(mean.sum() + variance.sum(), (*leaves, weights)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("left", [1e-36, 1e-40, 1e-45, 0.0])
def test_gradients_are_finite_where_a_parent_has_next_to_nothing(left):
    """What a softmax leaves over for a parent that explains nothing is a denormal number, not zero."""
    votes = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = torch.tensor([[[0.2] * 5, [left] * 5]], requires_grad=True)
    mean, variance = gaussian.dense_moments(votes, weights, 0.0)
    total = weights.sum(2, keepdim=True)
    assert all(g.isfinite().all() for g in torch.autograd.grad((total * (mean + variance)).sum(), (votes, weights)))
