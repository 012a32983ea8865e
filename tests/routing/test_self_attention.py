"""Self-attention routing: equal to the loops of Mazzia et al. 2021, and its own claims."""

import math
from typing import ClassVar

import pytest
import torch

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_routed, assert_same

S = Sizes(2, 5, 3, 2, 3, 4)


class TestSelfAttention(Contract):
    function = cr.self_attention_routing
    oracle = oracles.self_attention
    letters: ClassVar = {"prior": "ij"}
    coefficients_sum_over = "j"

    def test_no_prior_is_a_prior_of_zero(self, kind):
        votes = KINDS[kind].votes(S.j, *KINDS[kind].leaves(S))
        zero = torch.zeros(S.i, S.j, dtype=torch.float64)
        assert_routed(cr.self_attention_routing(votes), cr.self_attention_routing(votes, zero), 0.0)

    def test_a_prior_that_all_children_share(self):
        votes, prior = cr.DenseVotes(*KINDS["dense"].leaves(S)), self.arguments(S)["prior"][:1]
        assert_routed(
            cr.self_attention_routing(votes, prior), cr.self_attention_routing(votes, prior.expand(5, 3)), 0.0
        )

    def test_a_prior_of_the_wrong_shape_is_refused_by_name(self):
        votes = cr.DenseVotes(*KINDS["dense"].leaves(S))
        with pytest.raises(ValueError, match=r"prior: expected shape \(5, 3\) or \(1, 3\) .*got \(3, 5\)"):
            cr.self_attention_routing(votes, torch.zeros(3, 5))

    def test_a_prior_of_minus_infinity_leaves_a_child_out_and_gives_no_nan(self):
        (V,) = KINDS["dense"].leaves(S)
        prior = torch.zeros(5, 3, dtype=torch.float64)
        prior[0], prior[1, 1] = -math.inf, -math.inf
        V, prior = V.requires_grad_(), prior.requires_grad_()
        routed = cr.self_attention_routing(cr.DenseVotes(V), prior)
        assert (routed.coefficients[:, 0] == 0).all()
        assert (routed.coefficients[:, 1, 1] == 0).all()
        assert_same(routed.coefficients[:, 1:].sum(2), torch.ones(2, 4, dtype=torch.float64), 1e-12)
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(routed.poses.sum(), (V, prior)))


class TestExponentialSquash:
    @pytest.mark.parametrize("size", [1e-20, 1e-4, 1e-3, 1.0, 30.0, 1e15])
    def test_length_and_gradient_at_every_magnitude(self, size):
        x = torch.tensor([[0.6, 0.8]]) * size
        out = cr.exponential_squash(x.requires_grad_())
        assert math.isclose(out.norm().item(), -math.expm1(-size), rel_tol=1e-5)
        assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()

    def test_gradient_of_the_smallest_numbers_is_that_of_the_identity(self):
        x = torch.tensor([[1e-40, 0.0], [1e-45, 1e-45]], requires_grad=True)
        assert (torch.autograd.grad(cr.exponential_squash(x).sum(), x)[0] == 1).all()

    def test_zero_stays_zero_and_its_gradient_is_that_of_the_identity(self):
        x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        out = cr.exponential_squash(x)
        assert (out == 0).all()
        assert (torch.autograd.grad(out.sum(), x)[0] == 1).all()

    def test_in_half_precision(self):
        x = torch.tensor([[3e-4, 4e-4], [3e4, 4e4]], dtype=torch.float16)
        assert cr.exponential_squash(x).dtype == torch.float16
        torch.testing.assert_close(
            cr.exponential_squash(x).float().norm(dim=1), torch.tensor([5e-4, 1.0]), rtol=2e-3, atol=0
        )

    def test_over_several_axes(self):
        x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
        flat = cr.exponential_squash(x.flatten(2)).view_as(x)
        torch.testing.assert_close(cr.exponential_squash(x, (2, 3)), flat, rtol=1e-14, atol=0)
        assert torch.autograd.gradcheck(lambda x: cr.exponential_squash(x, (2, 3)), x, fast_mode=True)
