"""The loop over stored votes, parents of a sample shared out, against float64: under the interpreter or on a GPU."""

import weakref

import pytest
import torch

from tests.form.kernels import DEVICE, Sizes, needs_kernels
from tests.form.loop.cases import NORMALISE, budget, equal_to_float64, operands, values
from tests.form.test_values import MANY_CASES, SOME
from tests.form.values import cases, faults

pytest.importorskip("triton")
from capsroute.form.cost import holds_votes, splits_votes
from capsroute.form.launches.stored_votes import resident_plan
from capsroute.form.loop import split
from capsroute.form.loop.plain import Schedule, no_prior
from capsroute.form.sizes import Sizes as Letters

SMALL = [
    Sizes("one parent a program", 1, 2, 3, 1, 2, 3),
    Sizes("the last program has fewer, primes", 3, 7, 3, 1, 5, 11),
    Sizes("matrices", 2, 13, 5, 3, 3, 2),
]
FORWARD = ["make_votes", *3 * ["split_step"]]
BACKWARD = ["make_votes", "split_logits", *2 * ["split_step_backward"], "votes_gradients"]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_equal_to_float64(normalise, s, launched, parents_shared_out):
    equal_to_float64(normalise, s)
    assert launched == FORWARD + BACKWARD


def test_planes_are_free_before_gradients_are_allocated(parents_shared_out, monkeypatch):
    """A name that still holds them makes the most memory of a step larger by all of them."""
    s, planes, alive = Letters(2, 3, 5, 1, 2, 4), [], []

    def run(kernel, launch, *args, **flags):
        if kernel in (split.split_logits, split.split_step_backward):
            planes.extend(weakref.ref(plane) for plane in args[1:3])

    def gradients(*_):
        alive.extend(plane() is not None for plane in planes)
        return None, None

    monkeypatch.setattr(split, "by_votes", gradients)
    plan, u, W = resident_plan(s, torch.float32, "ieee"), torch.zeros(2, 3, 1, 2), torch.zeros(3, 5, 2, 4)
    sums, queries, how = torch.zeros(3, 2, 5, 1, 4), torch.zeros(2, 2, 5, 1, 4), Schedule(3, True, 0.2, 0, 1, False)
    split.votes_backward(run, plan, u, W, s, torch.float32, sums[0], None, (sums, queries), how, no_prior(W))
    assert alive == 6 * [False]


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option)
)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(normalise, option, launched, parents_shared_out):
    equal_to_float64(normalise, SMALL[1], coefficients=True, **option)
    assert "split_step" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(parents_shared_out):
    drawn = operands(SMALL[1])
    for first, second in zip(*(values("softmax", drawn["u"], drawn["W"]) for _ in range(2))):
        assert torch.equal(first, second)


@needs_kernels
@pytest.mark.parametrize("algorithm", ["dynamic", "max-min"])
def test_values_that_training_meets(algorithm, launched, parents_shared_out):
    for case in SOME:
        assert [str(fault) for fault in faults(case._replace(algorithm=algorithm), DEVICE)] == []
    assert "split_step_backward" in launched


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["dynamic", "max-min"])
def test_many_values(algorithm, parents_shared_out):
    assert [str(fault) for case in cases(algorithm, MANY_CASES) for fault in faults(case, DEVICE)] == []


def test_plans_cover_every_parent_once(parents_shared_out):
    for s, parents in zip(SMALL, (1, 2, 2)):
        step = resident_plan(Letters(*s[1:]), torch.float32, "tf32").step
        assert (step.options["JT"], step.grid) == (parents, (s.b, -(-s.j // parents), 1))
        assert step.options["IC"] >= s.i


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
    assert "split_step_backward" in launched
