"""Fast routing: equal to the loops of Zhao 2019, and one matrix product when folded."""

from typing import ClassVar

import torch
from hypothesis import given
from hypothesis import strategies as st

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_same, property_test, sizes


class TestFast(Contract):
    function = cr.fast_routing
    oracle = oracles.fast
    letters: ClassVar = {"coefficients": "ij"}

    @given(s=sizes, seed=st.integers(0, 999))
    @property_test
    def test_one_folded_matrix_product_equals_fast_routing(self, s, seed):
        for name in ("per-child", "shared"):
            u, W = KINDS[name].leaves(s, seed)
            C = self.arguments(s, seed)["coefficients"]
            folded = (C[:, :, None, None] * W).permute(0, 2, 1, 3).reshape(s.i * s.k, s.j * s.o)  # [i*k, j*o]
            rows = u.permute(0, 2, 1, 3).reshape(s.b * s.a, s.i * s.k)  # [b*a, i*k]
            total = (rows @ folded).view(s.b, s.a, s.j, s.o).transpose(1, 2)  # [b, j, a, o]
            assert_same(cr.fast_routing(cr.LinearVotes(u, W), C).poses, cr.squash(total, (2, 3)), 1e-12)

    def test_coefficients_of_max_min_give_its_poses_back(self, kind):
        s = Sizes(1, 5, 3, 2, 3, 4)
        votes = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s))
        routed = cr.max_min_routing(votes)
        assert_same(cr.fast_routing(votes, routed.coefficients[0]).poses, routed.poses, 1e-12)

    def test_coefficients_are_the_given_ones_for_every_sample(self):
        C = torch.rand(5, 3)
        assert torch.equal(cr.fast_routing(cr.DenseVotes(torch.randn(2, 5, 3, 4)), C).coefficients, C.expand(2, 5, 3))
