"""The loop over stored votes, a program for each sample, against float64: under the interpreter or on a GPU."""

import pytest
import torch

from capsroute.form.cost import holds_votes
from capsroute.form.sizes import Sizes as Letters
from tests.form.kernels import Sizes, needs_kernels
from tests.form.loop.cases import NORMALISE, budget, equal_to_float64, operands, values

SMALL = [
    Sizes("one child", 3, 1, 2, 1, 2, 3),
    Sizes("one parent", 2, 5, 1, 1, 8, 16),
    Sizes("primes", 3, 7, 3, 1, 5, 11),
    Sizes("matrices, more parents than a pass holds", 1, 6, 19, 3, 3, 2),
    Sizes("more rows and columns than a tile of votes", 11, 2, 9, 3, 2, 29),
]
BACKWARD = ["make_votes", "resident_loop_backward", "votes_gradients"]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_equal_to_float64_in_five_launches(normalise, s, launched):
    equal_to_float64(normalise, s)
    assert launched == ["make_votes", "resident_loop", *BACKWARD]


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option)
)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched):
    equal_to_float64(normalise, SMALL[2], coefficients=True, **option)
    assert "resident_loop" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit():
    drawn = operands(SMALL[2])
    for first, second in zip(*(values("softmax", drawn["u"], drawn["W"]) for _ in range(2))):
        assert torch.equal(first, second)


@pytest.fixture
def fresh_plans():
    """Those that keep launches; what a test notes there is no kernel."""
    calls = pytest.importorskip("capsroute.form.loop.calls")
    plans = (calls.loop_plan, calls.resident_plan)
    for plan in plans:
        plan.cache_clear()
    yield
    for plan in plans:
        plan.cache_clear()


@pytest.mark.usefixtures("fresh_plans")
def test_launches_of_this_way_are_not_replayed_for_passes_over_the_same_sizes(monkeypatch):
    """As where a layer is a list here and a map whose window covers it there."""
    from capsroute.form import ahead, launch
    from capsroute.form.loop import calls

    made: list[str] = []

    class Ready:
        def __init__(self, name: str):
            self.name = name

        def run(self, stream, args):
            raise AssertionError(f"{self.name} was replayed")

    def compiled(self, *args, **flags):
        made.append(self.name)
        return Ready(self.name)

    monkeypatch.setattr(ahead, "INTERPRETED", True)  # a call is made once
    monkeypatch.setattr(launch.Kernel, "__call__", compiled)
    u, W = torch.ones(2, 4, 1, 4), torch.ones(4, 3, 4, 16)
    settings = (3, True, 0.0, 1.0, 1 / 3, False, True)
    calls.loop_forward(u, W, *settings)
    assert "resident_loop" in made
    monkeypatch.setattr(calls, "stored_plan", lambda *_: None)
    calls.loop_forward(u, W, *settings)
    assert "forward_pass" in made
    calls.loop_plan.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    "s", [Sizes("vectors", 133, 32, 10, 1, 16, 32), Sizes("matrices", 256, 32, 32, 4, 4, 4)], ids=lambda s: s.why
)
def test_full_sizes(s, normalise, dtype, launched):
    assert holds_votes(Letters(*s[1:]))
    budget(normalise, dtype, s)
    assert "resident_loop_backward" in launched
