"""Heinsen routing: equal to the loops of Heinsen 2019, algorithm 1, and its own claims."""

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_routed, assert_same, property_test, sizes

INF = float("inf")


class TestHeinsen(Contract):
    function = cr.heinsen_routing
    oracle = oracles.heinsen
    options = (
        {},
        {"iterations": 1},
        {"iterations": 2, "eps": 0.1},
        {"iterations": 4},
        {"relative": True},
        {"soft_k_means": True},
    )
    letters: ClassVar = {"scores": "bi", "beta_use": "ij", "beta_ignore": "ij"}
    coefficients_sum_over = "j"

    def test_betas_shared_by_all_children(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves, arguments = KINDS[kind].leaves(s), self.arguments(s)
        for use, ignore in ((1, 1), (1, 5), (5, 1)):
            betas = {"beta_use": arguments["beta_use"][:use], "beta_ignore": arguments["beta_ignore"][:ignore]}
            wide = {name: beta.expand(5, 3) for name, beta in betas.items()}
            ours, theirs = (
                self.route(KINDS[kind].votes(s.j, *leaves), {"scores": arguments["scores"], **pair})
                for pair in (betas, wide)
            )
            assert_routed(ours, theirs, 1e-12)

    @pytest.mark.parametrize("padded", [False, True])
    def test_relative_scores_do_not_depend_on_how_often_the_children_come(self, padded):
        s = Sizes(2, 5, 3, 2, 3, 4)
        (V,), arguments = KINDS["dense"].leaves(s), self.arguments(s)
        betas = {name: arguments[name][:1] for name in ("beta_use", "beta_ignore")}
        again = torch.full_like(arguments["scores"], -INF) if padded else arguments["scores"]
        thrice = torch.cat([arguments["scores"], again, again], 1)
        # eps only blurs the comparison: it is added to sums of different sizes.
        options = {"relative": True, "eps": 1e-12}
        once = self.route(cr.DenseVotes(V), {"scores": arguments["scores"], **betas}, **options)
        more = self.route(cr.DenseVotes(V.repeat(1, 3, 1, 1, 1)), {"scores": thrice, **betas}, **options)
        assert_routed(more._replace(coefficients=more.coefficients[:, :5]), once, 1e-9)

    @given(s=sizes, seed=st.integers(0, 999), data=st.data())
    @property_test
    def test_minus_infinity_is_a_child_that_is_not_there(self, s, seed, data):
        s = s._replace(i=s.i + 1)
        child, kind = data.draw(st.integers(0, s.i - 1)), data.draw(st.sampled_from(["dense", "shared", "shared+bias"]))
        rest = [i for i in range(s.i) if i != child]
        leaves, arguments = KINDS[kind].leaves(s, seed), self.arguments(s, seed)
        fewer = [leaves[0][:, rest], *leaves[1:]]
        without = {
            "scores": arguments["scores"][:, rest],
            "beta_use": arguments["beta_use"][rest],
            "beta_ignore": arguments["beta_ignore"][rest],
        }
        arguments["scores"][:, child] = -INF
        masked = self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        removed = self.route(KINDS[kind].votes(s.j, *fewer), without)
        assert_routed(masked._replace(coefficients=masked.coefficients[:, rest]), removed)

    @given(s=sizes, seed=st.integers(0, 999))
    @property_test
    def test_plus_infinity_is_always(self, s, seed):
        (V,), arguments = KINDS["dense"].leaves(s, seed), self.arguments(s, seed)
        # logistic(40) is one to within float64; so is its gradient, zero.
        always, nearly = ({**arguments, "scores": torch.full_like(arguments["scores"], x)} for x in (INF, 40.0))
        assert_routed(self.route(cr.DenseVotes(V), always), self.route(cr.DenseVotes(V), nearly))

    @pytest.mark.parametrize("score", [INF, -INF])
    def test_infinite_scores_give_no_nan_forward_or_backward(self, kind, score):
        s = Sizes(3, 5, 4, 2, 3, 4)
        inputs = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(s)]
        arguments = self.arguments(s)
        arguments["scores"][0] = score  # one sample wholly masked, or wholly certain
        arguments["scores"][1, :2] = score
        arguments = {name: value.requires_grad_() for name, value in arguments.items()}
        routed = self.route(KINDS[kind].votes(s.j, *inputs), arguments)
        assert all(part.isfinite().all() for part in routed)
        grads = torch.autograd.grad(sum(part.sum() for part in routed), (*inputs, *arguments.values()))
        assert all(grad.isfinite().all() for grad in grads)

    def test_a_masked_sample_has_zero_poses_and_zero_scores(self):
        s = Sizes(2, 5, 3, 2, 3, 4)
        arguments = self.arguments(s)
        arguments["scores"][0] = -INF
        routed = self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), arguments)
        assert (routed.poses[0] == 0).all()
        assert (routed.scores[0] == 0).all()

    @pytest.mark.parametrize("name", ["dense", "shared", "shared+bias"])
    def test_what_stands_in_the_padding_does_not_matter_in_float32(self, name):
        s = Sizes(2, 12, 3, 2, 3, 4)
        leaves, arguments = KINDS[name].leaves(s, dtype=torch.float32), self.arguments(s)
        arguments = {key: value.float() for key, value in arguments.items()}
        arguments["scores"][:, 6:] = -INF
        zeroed, filled = leaves[0].clone(), leaves[0].clone()
        zeroed[:, 6:], filled[:, 6:] = 0, 1e4
        clean, dirty = (self.route(KINDS[name].votes(s.j, x, *leaves[1:]), arguments) for x in (zeroed, filled))
        used = slice(0, 6)
        clean, dirty = (routed._replace(coefficients=routed.coefficients[:, used]) for routed in (clean, dirty))
        assert_routed(dirty, clean, 1e-3)

    def test_zero_betas_give_zero_scores(self):
        s = Sizes(2, 5, 3, 2, 3, 4)
        zero = torch.zeros(1, 3, dtype=torch.float64)
        arguments = {"scores": self.arguments(s)["scores"], "beta_use": zero, "beta_ignore": zero}
        assert_same(self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), arguments).scores, torch.zeros(2, 3), 0.0)

    def test_a_beta_of_the_wrong_size_names_both_right_ones(self):
        s = Sizes(2, 5, 3, 2, 3, 4)
        arguments = {**self.arguments(s), "beta_use": torch.zeros(2, 3)}
        with pytest.raises(ValueError, match=r"beta_use: expected shape \(5, 3\) or \(1, 3\) .*got \(2, 3\)"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), arguments)

    @pytest.mark.parametrize("bad", [0.0, -1e-6, float("nan"), None])
    def test_an_eps_that_is_not_positive_is_refused(self, bad):
        s = Sizes(2, 5, 3, 2, 3, 4)
        with pytest.raises(ValueError, match=rf"eps: expected .*, got {bad!r}"):
            self.route(cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s), eps=bad)
