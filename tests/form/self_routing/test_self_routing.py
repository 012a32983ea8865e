"""Self-routing through its kernels, against float64: under the interpreter or on a GPU."""

import itertools

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.form.self_routing.operators import SELF_ROUTING
from tests.form.gaussian.cases import draw
from tests.form.kernels import (
    DEVICE,
    INTERPRETED,
    ROUNDING,
    Sizes,
    differentiable_twice,
    error,
    needs_kernels,
    says_why,
    surrounded,
    survives_another_order,
)

pytest.importorskip("triton")

SIZES = [
    Sizes("one parent", 3, 5, 1, 1, 2, 3),
    Sizes("one sample, vectors", 1, 6, 3, 1, 4, 5),
    Sizes("matrices, prime numbers of children", 2, 37, 10, 2, 3, 2),
    Sizes("more parents than rows of a product", 2, 5, 19, 3, 3, 3),
    Sizes("many samples", 19, 5, 3, 2, 2, 4),
]
WHOLE, BACK = ["shared_whole"], ["shared_back"]
FORWARD = ["share_out", "add_shares", "weigh", "aggregate_plane"]
NAMES = ["shares", "poses", "scores", "u", "W", "activations", "logits"]
THEY_ARE = ["shared", "per child"]


def operands(s: Sizes, whose: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    W = draw(1 if whose == "shared" else s.i, s.j, s.k, s.o, seed=1) * s.k**-0.5
    made = draw(s.b, s.i, s.a, s.k), W, draw(s.b, s.i, seed=2).sigmoid(), draw(s.b, s.i, s.j, seed=3)
    return [t.to(DEVICE, dtype) for t in made]


def saturated(s: Sizes, whose: str) -> list[Tensor]:
    """Logits that say "never" and "always", all "never" of a child and for a parent; activations that are zero."""
    u, W, _, logits = operands(s, whose)
    generator = torch.Generator().manual_seed(s.i)
    limits = torch.tensor([20.0, -20.0, 1e15, -torch.inf, 0.3, torch.inf, 0.0])
    logits = limits[torch.randint(7, logits.shape, generator=generator)]
    logits[:, 1] = -torch.inf
    logits[:, :, -1] = -torch.inf
    a = torch.tensor([0.0, 1.0, 0.5, 0.25])[torch.randint(4, (s.b, s.i), generator=generator)]
    a[0] = 0.0
    return [u, W, a.to(DEVICE), logits.to(DEVICE)]


def values(tensors: list[Tensor], dtype: torch.dtype, backend: str, of: tuple[int, ...] = (0, 1, 2)) -> list[Tensor]:
    """Shares, poses and scores, and the gradients of everything by those `of` them."""
    leaves = [surrounded(t.to(dtype)).requires_grad_() for t in tensors]
    found = SELF_ROUTING(*leaves, backend=backend)
    outputs = [found[n] for n in of]
    weights = [draw(*out.shape, seed=8).to(out) for out in outputs]
    found = [*(t.detach() for t in found), *torch.autograd.grad(outputs, leaves, weights, allow_unused=True)]
    return [torch.zeros_like(leaf) if t is None else t for t, leaf in zip(found, [*found[:3], *leaves])]


def equal_to_float64(tensors: list[Tensor], limit: float = 3e-6, **of) -> None:
    exact, ours = values(tensors, torch.float64, "torch", **of), values(tensors, torch.float32, "triton", **of)
    for name, mine, wanted in zip(NAMES, ours, exact, strict=True):
        assert mine.isfinite().all(), name
        distance = (mine.double() - wanted).norm() / wanted.norm().clamp_min(1e-2)
        assert distance < limit, f"{name}: {distance:.1e}"


def without_sums(launched: list[str]) -> list[str]:
    """Of partial results, of which there may be one."""
    return [name for name in launched if name != "add_parts"]


@needs_kernels
@pytest.mark.parametrize("s", SIZES, ids=lambda s: s.why)
def test_shared_transforms_are_two_launches(s, launched):
    equal_to_float64(operands(s, "shared"))
    assert launched == WHOLE + BACK + ["add_parts"] * (s.b > 1)


@needs_kernels
@pytest.mark.parametrize("s", SIZES, ids=lambda s: s.why)
def test_transforms_of_each_child(s, launched):
    equal_to_float64(operands(s, "per child"))
    gradients = ["few_back"] if s.b * s.a <= 8 else ["children_back", "transforms_gradient"]
    assert without_sums(launched) == [*FORWARD, "parents_back", *gradients, "slopes_of_plane"]


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
@pytest.mark.parametrize("s", SIZES[2:], ids=lambda s: s.why)
def test_never_and_always(s, whose):
    equal_to_float64(saturated(s, whose))


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
@pytest.mark.parametrize("of", [(1,), (2,), (0,), (0, 1), (1, 2)], ids=str)
def test_gradients_of_some_results_alone(of, whose):
    for s in SIZES[2], SIZES[4]:
        equal_to_float64(operands(s, whose), of=of)


@pytest.fixture
def plans(monkeypatch):
    """Forgets what was planned before and after, and says how many programs there are room for."""
    from capsroute.form.launches import self_routing

    def forget():
        self_routing.shared_plan.cache_clear()
        self_routing.shares_plan.cache_clear()

    forget()
    yield lambda cores: monkeypatch.setattr("capsroute.form.cost.CORES", cores)
    monkeypatch.undo()
    forget()


@needs_kernels
def test_children_that_are_shared_out_meet_in_a_step(launched, plans, monkeypatch):
    plans(8)
    monkeypatch.setattr("capsroute.form.cost.shares_children", lambda sizes: True)
    s = Sizes("three shares, the last one smaller", 2, 37, 10, 2, 3, 2)
    equal_to_float64(operands(s, "shared"))
    assert launched == ["shared_some", "shared_parents", "shared_back", "add_parts"]
    equal_to_float64(saturated(s, "shared"))


@needs_kernels
def test_larger_weights_in_a_later_tile_of_children():
    """Sums are kept in units of the largest weight met so far."""
    u, W, a, logits = operands(Sizes("two tiles", 2, 150, 3, 1, 2, 3), "shared")
    a[:, :128] *= 1e-3
    equal_to_float64([u, W, a, logits])


@needs_kernels
def test_many_parents_are_launches_of_their_own(launched, plans, monkeypatch):
    plans(8)
    monkeypatch.setattr("capsroute.form.launches.self_routing.MOST_CHUNKS", 0)
    equal_to_float64(operands(SIZES[3], "shared"))
    assert launched == ["shared_some", "shared_parents", "shared_parents_back", "shared_back", "add_parts"]


@needs_kernels
def test_parents_that_no_program_holds_pass_through_matrix_products(launched, monkeypatch):
    monkeypatch.setattr("capsroute.form.self_routing.shared.MOST", 0)
    for s in SIZES[1:]:
        launched.clear()
        equal_to_float64(operands(s, "shared"))
        assert launched == ["share_out", "add_shares", "weigh", "parents_back", "slopes_of_plane"]
        equal_to_float64(saturated(s, "shared"))


@needs_kernels
def test_gradients_by_transforms_that_each_sample_would_leave_are_a_product(launched, monkeypatch):
    monkeypatch.setattr("capsroute.form.self_routing.shared.adds_samples", lambda sizes: False)
    for s in SIZES[2:]:
        launched.clear()
        equal_to_float64(operands(s, "shared"))
        assert launched == WHOLE + BACK


@needs_kernels
def test_weights_next_to_nothing_count_as_one():
    """Poses of shares of 1e-30 alone are those of shares of one; children of one and of 1e-30 are told apart."""
    for whose, s in itertools.product(THEY_ARE, SIZES[2:]):
        u, W, a, logits = operands(s, whose)
        equal = values([u, W, a, logits], torch.float32, "triton", of=(1,))
        tiny = values([u, W, a * 1e-30, logits], torch.float32, "triton", of=(1,))
        for name, mine, wanted in zip(("poses", "u", "W"), (tiny[n] for n in (1, 3, 4)), (equal[n] for n in (1, 3, 4))):
            assert error(mine, wanted) < 1e-6, (name, whose, s.why)
        a[:, ::2] *= 1e-30
        equal_to_float64([u, W, a, logits], of=(0, 1))


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_in_and_out(half, whose):
    for s in SIZES[2], SIZES[4]:
        tensors = operands(s, whose, half)
        ours, exact = values(tensors, half, "triton"), values([t.double() for t in tensors], torch.float64, "torch")
        assert [t.dtype for t in ours] == [torch.float32] * 3 + [half] * 4
        for name, mine, wanted in zip(NAMES, ours, exact, strict=True):
            assert error(mine, wanted) < 2 * ROUNDING[half], name


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
def test_activations_and_logits_in_a_dtype_of_their_own(whose):
    u, W, a, logits = operands(SIZES[2], whose)
    for dtypes in itertools.product((torch.float32, torch.bfloat16), repeat=2):
        given = [u, W, a.to(dtypes[0]), logits.to(dtypes[1])]
        leaves = [t.clone().requires_grad_() for t in given]
        found = torch.autograd.grad(SELF_ROUTING(*leaves, backend="triton")[1].square().sum(), leaves)
        wide = [t.double().requires_grad_() for t in given]
        wanted = torch.autograd.grad(SELF_ROUTING(*wide, backend="torch")[1].square().sum(), wide)
        for mine, exact, t in zip(found, wanted, given):
            assert mine.dtype == t.dtype
            assert error(mine, exact) < 2 * ROUNDING[t.dtype]


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
@pytest.mark.parametrize("place", range(4), ids=NAMES[3:])
def test_nan_shows_as_in_the_plain_form(place, whose):
    s = SIZES[4]
    tensors = operands(s, whose)
    tensors[place].view(-1)[0] = torch.nan
    for ours, plain in zip(SELF_ROUTING(*tensors, backend="triton"), SELF_ROUTING(*tensors, backend="torch")):
        assert (ours.isnan() == plain.isnan()).all()


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
def test_without_gradients_of_some_or_all(whose, launched):
    tensors = operands(SIZES[2], whose)
    wanted = SELF_ROUTING(*tensors, backend="torch")
    for learns in ((), (0,), (3,), (1, 2)):
        leaves = [t.clone().requires_grad_(n in learns) for n, t in enumerate(tensors)]
        found = SELF_ROUTING(*leaves, backend="triton")
        for mine, plain in zip(found, wanted):
            torch.testing.assert_close(mine, plain)
        if learns:
            found[1].sum().backward()
        assert [t.grad is not None for t in leaves] == [n in learns for n in range(4)]
    assert launched


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
def test_second_derivatives_are_those_of_the_plain_form(whose):
    s = SIZES[2]
    differentiable_twice(
        lambda *tensors: sum(
            (found * draw(*found.shape, seed=8).to(found)).sum() for found in SELF_ROUTING(*tensors, backend="auto")
        ),
        *operands(s, whose),
    )


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
def test_what_is_kept_may_come_back_in_another_order(whose):
    survives_another_order(lambda *t: SELF_ROUTING(*t, backend="triton")[1].square().sum(), *operands(SIZES[4], whose))


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
def test_operands_in_another_order_of_memory(whose):
    tensors = operands(SIZES[4], whose)
    turned = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in tensors]
    for mine, wanted in zip(*(values_of(each) for each in (turned, tensors))):
        assert torch.equal(mine, wanted)


def values_of(tensors: list[Tensor]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    found = SELF_ROUTING(*leaves, backend="triton")
    return [*found, *torch.autograd.grad([t.sum() for t in found], leaves)]


@needs_kernels
def test_what_kernels_do_not_take_is_plain(launched):
    wide = [t.double() for t in operands(SIZES[0], "per child")]
    says_why("float64", "self_routing", *wide)
    says_why("so wide", "self_routing", *operands(Sizes("wide", 2, 3, 2, 1, 40, 4), "per child"))
    with torch.device("meta"):
        many = torch.empty(1, 1, 1, 2), torch.empty(1, 9000, 2, 2), torch.empty(1, 1), torch.empty(1, 1, 9000)
        vast = torch.empty(2**16, 2**8, 1, 2), torch.empty(1, 2**7, 2, 2), torch.empty(2**16, 2**8), torch.empty(1)
    from capsroute.form.self_routing.calls import reasons

    assert "8192" in str(reasons(*many))
    assert "2^31" in str(reasons(*vast))
    assert not launched


@needs_kernels
@pytest.mark.parametrize("whose", THEY_ARE)
def test_routing_asks_the_kernels_unless_told_not_to(whose, launched):
    u, W, a, logits = operands(SIZES[2], whose)
    plain = cr.self_routing(cr.LinearVotes(u, W, backend="torch"), a, logits)
    assert not launched
    for backend in ("auto", "triton"):
        launched.clear()
        routed = cr.self_routing(cr.LinearVotes(u, W, backend=backend), a, logits)
        assert without_sums(launched) == (WHOLE if whose == "shared" else FORWARD)
        for name in ("poses", "coefficients", "scores"):
            torch.testing.assert_close(getattr(routed, name), getattr(plain, name), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not INTERPRETED, reason="values are looked at on a CPU")
def test_half_precision_is_checked_before_it_is_routed():
    u, W, a, logits = operands(SIZES[2], "shared", torch.bfloat16)
    votes = cr.LinearVotes(u, W)
    with pytest.raises(ValueError, match="logits: expected no NaN"):
        cr.self_routing(votes, a, logits.masked_fill(logits > 0, torch.nan))
    with pytest.raises(ValueError, match="activations: expected probabilities"):
        cr.self_routing(votes, a + 1, logits)
