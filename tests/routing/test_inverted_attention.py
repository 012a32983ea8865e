"""Inverted dot-product attention routing: equal to the loops of Tsai 2020, procedure 1, and its own claims."""

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_same, property_test, sizes


class TestInvertedAttention(Contract):
    function = cr.inverted_attention_routing
    oracle = oracles.inverted_attention
    options = ({}, {"scale": 0.25}, {"scale": -2.0}, {"scale": 0.25, "iterations": 3})
    letters: ClassVar = {"parents": "bjao"}
    coefficients_sum_over = "j"

    @given(s=sizes, seed=st.integers(0, 999))
    @property_test
    def test_first_step_is_the_normalised_mean_of_votes(self, s, seed):
        (V,) = KINDS["dense"].leaves(s, seed)
        routed = cr.inverted_attention_routing(cr.DenseVotes(V))
        assert_same(routed.coefficients, torch.full((s.b, s.i, s.j), 1 / s.j, dtype=torch.float64), 1e-15)
        expected = nn.functional.layer_norm(V.sum(1) / s.j, (s.a, s.o), eps=1e-5)
        assert_same(routed.poses, expected, 1e-10)

    def test_first_step_is_a_step_from_zero_parents(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s))
        first, zero = cr.inverted_attention_routing(votes), torch.zeros(2, 3, 2, 4, dtype=torch.float64)
        assert_same(cr.inverted_attention_routing(votes, zero).poses, first.poses, 1e-12)

    def test_several_steps_are_so_many_calls(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s))
        step = cr.inverted_attention_routing(votes)
        for iterations in (2, 3):
            step = cr.inverted_attention_routing(votes, step.poses, 0.5)
            several = cr.inverted_attention_routing(votes, scale=0.5, iterations=iterations)
            assert_same(several.poses, step.poses, 1e-12)
            assert_same(several.coefficients, step.coefficients, 1e-12)
            without = cr.inverted_attention_routing(votes, scale=0.5, coefficients=False, iterations=iterations)
            assert without.coefficients is None
        with pytest.raises(ValueError, match=r"iterations: expected .*1.*got 0"):
            cr.inverted_attention_routing(votes, iterations=0)

    def test_what_is_wrong_with_votes_or_norm_is_not_said_of_parents_that_nobody_gave(self):
        V = torch.ones(2, 5, 3, 2, 4)
        for norm in (lambda poses: poses.mT, lambda poses: poses[:, :1]):
            with pytest.raises(ValueError, match=r"norm: expected one that gives poses \(2, 3, 2, 4\).*got \(2, "):
                cr.inverted_attention_routing(cr.DenseVotes(V), norm=norm, iterations=2)
        V[0, 1, 2, 0, 3] = torch.inf
        routed = cr.inverted_attention_routing(cr.DenseVotes(V), norm=lambda poses: poses, iterations=2)
        assert routed.poses[1].isfinite().all()

    def test_norm_replaces_layer_norm(self):
        (V,) = KINDS["dense"].leaves(Sizes(2, 5, 3, 2, 3, 4), dtype=torch.float32)
        affine = nn.LayerNorm((2, 4))
        nn.init.constant_(affine.weight, 3.0)
        plain, scaled = (cr.inverted_attention_routing(cr.DenseVotes(V), norm=norm).poses for norm in (None, affine))
        assert_same(scaled, plain * 3, 1e-5)
        identity = cr.inverted_attention_routing(cr.DenseVotes(V), norm=lambda poses: poses)
        assert_same(identity.poses, V.sum(1) / 3, 1e-6)

    def test_one_layer_norm_per_pose_over_rows_and_columns_together(self):
        (V,) = KINDS["dense"].leaves(Sizes(2, 5, 3, 2, 3, 4))
        poses = cr.inverted_attention_routing(cr.DenseVotes(V)).poses
        assert_same(poses.mean((2, 3)), torch.zeros(2, 3, dtype=torch.float64), 1e-12)
        assert poses.mean(3).abs().amax() > 0.1, "a row by itself has a mean"

    def test_bad_scale_and_norm_are_refused(self):
        votes = cr.DenseVotes(torch.ones(2, 5, 3, 4))
        with pytest.raises(ValueError, match="scale: expected a finite number, got nan"):
            cr.inverted_attention_routing(votes, scale=float("nan"))
        with pytest.raises(ValueError, match=r"norm: expected a module or function of poses, .*got 'layer'"):
            cr.inverted_attention_routing(votes, norm="layer")
