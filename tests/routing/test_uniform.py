"""Uniform routing: equal to the loops, and the first iteration of dynamic routing."""

from typing import ClassVar

import numpy as np

import capsroute as cr
from tests.kinds import KINDS, Sizes
from tests.routing import oracles
from tests.routing.contract import Contract, assert_routed


def loops(V: np.ndarray) -> oracles.Oracle:
    return oracles.fast(V, coefficients=np.full(V.shape[1:3], 1 / V.shape[2]))


class TestUniform(Contract):
    function = cr.uniform_routing
    oracle = loops
    letters: ClassVar = {}
    coefficients_sum_over = "j"

    def test_it_is_the_first_iteration_of_dynamic_routing(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s))
        assert_routed(cr.uniform_routing(votes), cr.dynamic_routing(votes, 1), 1e-12)
