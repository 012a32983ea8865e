"""The loop over stored votes, children of a sample shared out, against float64: under the interpreter or on a GPU."""

import pytest
import torch

from tests.form.kernels import DEVICE, ROUNDING, Sizes, error, needs_kernels
from tests.form.loop.cases import NORMALISE, budget, operands, values
from tests.form.test_values import MANY_CASES, SOME
from tests.form.values import cases, faults

pytest.importorskip("triton")
from capsroute.form.cost import holds_votes, splits_votes
from capsroute.form.launches import resident_plan
from capsroute.form.plan import Sizes as Letters

SMALL = [
    Sizes("a share is one child", 1, 2, 2, 1, 2, 3),
    Sizes("the last share is smaller, primes", 3, 7, 3, 1, 5, 11),
    Sizes("a share is several tiles, matrices", 2, 13, 5, 3, 3, 2),
]
FORWARD = ["make_votes", *3 * ["split_walk"]]
BACKWARD = ["make_votes", *2 * ["split_walk_backward"], "split_votes_backward", "votes_gradients"]


@pytest.fixture
def shared_out(monkeypatch):
    """Two or three shares of each sample, and tiles of two children, as in layers of few samples."""
    monkeypatch.setattr("capsroute.form.cost.splits_votes", lambda *sizes: True)
    monkeypatch.setattr("capsroute.form.cost.shares_of", lambda s: min(3, s.i))
    monkeypatch.setattr("capsroute.form.launches.SPLIT_TILE", 128)
    resident_plan.cache_clear()
    yield
    resident_plan.cache_clear()


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_equal_to_float64(normalise, s, launched, shared_out):
    drawn = operands(s)
    exact = values(normalise, drawn["u"].double(), drawn["W"].double())
    for ours, wanted in zip(values(normalise, drawn["u"], drawn["W"]), exact):
        assert ours.shape == wanted.shape
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert launched == FORWARD + BACKWARD


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option)
)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched, shared_out):
    drawn = operands(SMALL[1])
    exact = values(normalise, drawn["u"].double(), drawn["W"].double(), True, **option)
    for ours, wanted in zip(values(normalise, drawn["u"], drawn["W"], True, **option), exact):
        assert error(ours, wanted) < 10 * ROUNDING[torch.float32]
    assert "split_walk" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(shared_out):
    drawn = operands(SMALL[1])
    for first, second in zip(*(values("softmax", drawn["u"], drawn["W"]) for _ in range(2))):
        assert torch.equal(first, second)


@needs_kernels
@pytest.mark.parametrize("algorithm", ["dynamic", "max-min"])
def test_values_that_training_meets(algorithm, launched, shared_out):
    for case in SOME:
        assert [str(fault) for fault in faults(case._replace(algorithm=algorithm), DEVICE)] == []
    assert "split_walk_backward" in launched


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["dynamic", "max-min"])
def test_many_values(algorithm, shared_out):
    assert [str(fault) for case in cases(algorithm, MANY_CASES) for fault in faults(case, DEVICE)] == []


def test_plans_cover_every_child_once(shared_out):
    for s in SMALL:
        plan = resident_plan(Letters(*s[1:]), torch.float32, "tf32")
        share, shares = plan.shares.walk.options["N"], plan.shares.walk.options["S"]
        assert share % plan.shares.walk.options["IC"] == 0
        assert (shares - 1) * share < s.i <= shares * share
        assert plan.shares.walk.grid == (s.b, shares, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    "s",
    [
        Sizes("a hundred vectors", 32, 32, 100, 1, 8, 16),
        Sizes("matrices", 32, 32, 32, 6, 6, 6),
        Sizes("one sample", 1, 23, 32, 6, 6, 6),
    ],
    ids=lambda s: s.why,
)
def test_full_sizes(s, normalise, dtype, launched):
    assert holds_votes(Letters(*s[1:]))
    assert splits_votes(Letters(*s[1:]))
    budget(normalise, dtype, s)
    assert "split_walk_backward" in launched


@pytest.mark.gpu
def test_a_thousand_runs_of_many_programs_are_equal():
    """Which program of a sample comes last changes from run to run; what it finds does not."""
    drawn = operands(Sizes("matrices", 32, 32, 32, 6, 6, 6))
    first = values("max-min", drawn["u"], drawn["W"])
    for _ in range(1000):
        assert all(torch.equal(a, b) for a, b in zip(first, values("max-min", drawn["u"], drawn["W"])))
