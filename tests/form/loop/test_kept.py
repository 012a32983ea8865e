"""The loop over votes that are made once and kept, children shared out, against float64: interpreted or on a GPU."""

import pytest
import torch

from tests.form.kernels import DEVICE, Sizes, needs_kernels, survives_another_order
from tests.form.loop.cases import NORMALISE, budget, equal_to_float64, operands, route, values

pytest.importorskip("triton")
from capsroute.form.cost import keeps_votes
from capsroute.form.launches.stored_votes import kept_plan, resident_plan
from capsroute.form.loop import kept
from capsroute.form.sizes import Sizes as Letters

SMALL = [
    Sizes("one child of one parent", 1, 1, 1, 1, 2, 3),
    Sizes("several shares, the last has fewer children, primes", 2, 23, 3, 1, 5, 7),
    Sizes("warps share the parents of a child", 1, 17, 19, 1, 4, 3),
    Sizes("samples, matrices", 2, 13, 5, 3, 3, 2),
]
STEPS = 2 * ["kept_walk", "sum_and_squash"]
BACK = 2 * ["sum_and_squash_backward", "kept_walk_back"] + ["sum_and_squash_backward", "both_gradients"]


@needs_kernels
@pytest.mark.parametrize("s", SMALL, ids=lambda s: s.why)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_equal_to_float64(normalise, s, launched, votes_kept):
    equal_to_float64(normalise, s)
    assert [name for name in launched if name != "add_parts"] == ["make_and_sum_votes", "sum_and_squash", *STEPS, *BACK]


@needs_kernels
@pytest.mark.parametrize(
    "option", [{"iterations": 2}, {"iterations": 4}, {"stop_gradient": True}], ids=lambda option: str(*option)
)
@pytest.mark.parametrize("coefficients", [False, True], ids=["poses", "coefficients too"])
@pytest.mark.parametrize("normalise", NORMALISE)
def test_iterations_stopped_gradients_and_gradients_of_coefficients(
    normalise, coefficients, option, launched, votes_kept
):
    equal_to_float64(normalise, SMALL[1], coefficients=coefficients, **option)
    walks = int(coefficients) if "stop_gradient" in option else option["iterations"] - 1
    assert launched.count("kept_walk_back") == walks
    assert launched.count("make_votes") == (walks if "stop_gradient" in option else 0)


@needs_kernels
def test_two_runs_and_two_ways_back_are_equal_to_the_last_bit(votes_kept):
    """What was kept is as it was after a way back."""
    drawn = operands(SMALL[1])
    for first, second in zip(*(values("softmax", drawn["u"], drawn["W"]) for _ in range(2))):
        assert torch.equal(first, second)
    leaves = [drawn[name].requires_grad_() for name in ("u", "W")]
    poses = route("softmax", *leaves).poses.sum()
    for first, second in zip(*(torch.autograd.grad(poses, leaves, retain_graph=True) for _ in range(2))):
        assert torch.equal(first, second)


@needs_kernels
@pytest.mark.parametrize("normalise", NORMALISE)
def test_coefficients_come_back_in_another_order(normalise, launched, votes_kept):
    survives_another_order(
        lambda u, W: route(normalise, u, W).poses.pow(3).sum(), *(operands(SMALL[3])[x] for x in "uW")
    )
    assert "kept_walk_back" in launched


@needs_kernels
@pytest.mark.parametrize("normalise", NORMALISE)
def test_a_recorded_graph_makes_votes_again(normalise, launched, votes_kept):
    """Of how many samples it will be it does not know."""
    leaves = [operands(SMALL[1])[name].requires_grad_() for name in ("u", "W")]

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return route(normalise, *leaves).poses.pow(3).sum()

    wanted = torch.autograd.grad(loss(*leaves), leaves)
    assert launched.count("make_votes") == 0
    recorded = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for ours, theirs in zip(torch.autograd.grad(recorded(*leaves), leaves), wanted):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert launched.count("make_votes") == 1


@needs_kernels
@pytest.mark.parametrize("learned", [True, False], ids=["gradients", "none"])
def test_votes_are_kept_where_a_gradient_wants_them(learned, votes_kept):
    kernels = pytest.importorskip("capsroute.form.kernels")
    drawn = operands(SMALL[1])
    how = (drawn["u"], drawn["W"], 3, True, 0.0, 1.0, 1 / 3, False, learned, None, learned)
    votes = kernels.loop.loop_forward(*how)[5]
    assert votes.shape == ((2, 23, 3, 1, 7) if learned else (0,))


def test_votes_that_are_made_again_are_free_before_gradients_are_allocated(votes_kept, monkeypatch):
    """And so are sums of shares."""
    import weakref

    from capsroute.form.loop.plain import Schedule, no_prior

    s, made, alive = Letters(2, 23, 3, 1, 5, 7), [], []

    def run(kernel, launch, *args, **flags):
        if kernel is kept.kept_walk_back:
            made.extend(weakref.ref(args[n]) for n in (0, 6))
        if kernel is kept.both_gradients:
            alive.extend(one() is not None for one in made)

    monkeypatch.setattr(kept, "total", lambda du, dtype, run: du)
    u, W, c = torch.zeros(2, 23, 1, 5), torch.zeros(23, 3, 5, 7), torch.zeros(23, 3, 2).permute(2, 0, 1)
    sums, queries, earlier = torch.zeros(3, 2, 3, 1, 7), torch.zeros(2, 2, 3, 1, 7), torch.zeros(1, 23, 3, 2)
    saved, how = (c, sums, queries, earlier, torch.zeros(0)), Schedule(3, True, 1 / 3, 0, 1, False)
    kept.kept_backward(run, kept_plan(s), u, W, s, torch.float32, sums[0], None, saved, how, no_prior(W))
    assert alive == 4 * [False]


@pytest.mark.parametrize(("parents", "splits"), [(3, 1), (100, 4)])
def test_parts_of_a_gradient_are_in_float32_whatever_it_is(parents, splits, votes_kept, monkeypatch):
    from capsroute.form.loop.plain import Schedule, no_prior

    s, seen = Letters(1, 3, parents, 1, 8, 16), []
    monkeypatch.setattr(kept, "total", lambda du, dtype, run: seen.append((du.shape[0], du.dtype, dtype)))
    u, W, c = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((1, 3, 1, 8), (3, s.j, 8, 16), (1, 3, s.j)))
    sums, queries, earlier = torch.zeros(3, 1, s.j, 1, 16), torch.zeros(2, 1, s.j, 1, 16), torch.zeros(1, 3, s.j, 1)
    saved, how = (c, sums, queries, earlier, torch.zeros(1, 3, s.j, 1, 16)), Schedule(3, True, 1 / 3, 0, 1, False)
    kept.kept_backward(lambda *_, **__: None, kept_plan(s), u, W, s, u.dtype, sums[0], None, saved, how, no_prior(W))
    assert seen == [(splits, torch.bfloat16 if splits == 1 else torch.float32, torch.bfloat16)]


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
def test_half_precision_stays_within_the_error_budget(normalise, dtype, launched, votes_kept):
    budget(normalise, dtype, SMALL[1])
    assert "kept_walk_back" in launched
    assert "add_parts" not in launched  # one program has all parents of a child, and writes what is wanted


@needs_kernels
@pytest.mark.parametrize("normalise", NORMALISE)
def test_no_number_shows(normalise, votes_kept):
    drawn = operands(SMALL[1])
    for name in ("u", "W"):
        broken = {**drawn, name: drawn[name].clone()}
        broken[name][1 if name == "u" else 22] = torch.nan
        if DEVICE == "cpu":  # where values are looked at
            with pytest.raises(ValueError, match="NaN"):
                route(normalise, broken["u"], broken["W"])
        else:
            poses = route(normalise, broken["u"], broken["W"]).poses
            assert poses[1:].isnan().all()
            assert poses[0].isnan().all() == (name == "W")


@pytest.mark.parametrize(
    "s", [Letters(1, 8192, 100, 1, 8, 16), Letters(1, 512, 10, 1, 8, 16), Letters(2, 300, 1000, 2, 4, 8)]
)
def test_plans_cover_every_child_once(s):
    plan = kept_plan(s)
    for launch in (plan.sum, plan.walk):
        assert (launch.splits - 1) * launch.tiles < s.i <= launch.splits * launch.tiles
        assert launch.splits <= plan.splits
    assert plan.walk.tiles % plan.walk.options["IC"] == 0
    assert plan.walk.grid[:2] == (s.b, plan.walk.splits)


@pytest.mark.parametrize(
    ("why", "s"),
    [
        ("votes are larger than transforms", Letters(2, 8192, 100, 2, 2, 4)),
        ("rows for the matrix unit", Letters(5, 8192, 10, 1, 16, 16)),
        ("a child's votes leave the registers", Letters(1, 8192, 1000, 4, 4, 8)),
        ("beyond 32-bit offsets", Letters(4, 140_000, 256, 1, 8, 16)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_layers_go_in_passes(why, s):
    assert kept_plan(s) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize(
    "s",
    [
        Sizes("a hundred vectors", 1, 8192, 100, 1, 8, 16),
        Sizes("ten vectors of some samples", 4, 1152, 10, 1, 8, 16),
        Sizes("a thousand matrices", 1, 512, 1000, 4, 4, 4),
        Sizes("few parents", 1, 512, 10, 1, 16, 32),
    ],
    ids=lambda s: s.why,
)
def test_full_sizes(s, normalise, dtype, launched):
    assert keeps_votes(Letters(*s[1:]))
    assert resident_plan(Letters(*s[1:]), dtype, "tf32") is None
    budget(normalise, dtype, s)
    assert "kept_walk_back" in launched
