"""Self-attention by kernels of the routing loop, in each of their ways, against float64: interpreted or on a GPU."""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from tests.form.kernels import (
    DEVICE,
    INTERPRETED,
    ROUNDING,
    Sizes,
    differentiable_twice,
    error,
    needs_kernels,
    says_why,
    survives_another_order,
)
from tests.form.loop.cases import operands

pytest.importorskip("triton")
from capsroute.form.attention.self_attention import IN_PARTS
from capsroute.form.launches.lists import loop_plan

SUMS = ["uniform_pass", "sum_and_squash"]
SUMS_BACK = ["sum_and_squash_backward", "children_gradient", "transforms_gradient"]
PASSES = [*SUMS, "forward_pass", "sum_and_squash", "sum_and_squash_backward", "backward_pass", *SUMS_BACK]
PLANES = [*SUMS, "agreement_plane", "normalise_plane", "aggregate_plane", "sum_and_squash", "sum_and_squash_backward"]
PLANES += ["agreement_plane", "normalise_plane_backward", "aggregate_plane", *SUMS_BACK]
KEPT = ["make_and_sum_votes", "sum_and_squash", "kept_walk", "sum_and_squash", "sum_and_squash_backward"]
KEPT += ["kept_walk_back", "sum_and_squash_backward", "both_gradients"]
RESIDENT = ["make_votes", "resident_loop", "make_votes", "resident_loop_backward", "votes_gradients"]
SPLIT = ["make_votes", "split_step", "split_step", "make_votes", "split_logits", "split_step_backward"]
SPLIT += ["votes_gradients"]
LOOP = ["shared_loop", "shared_loop_backward"]
WALKS = ["shared_parents", "shared_walk", "shared_parents"]
WALKS += 2 * ["shared_parents_backward", "shared_walk_backward"]

# name -> sizes, whether transforms are shared, the fixture that takes layers as small this way, and its launches
WAYS = {
    "a program for each sample": (Sizes("", 3, 7, 3, 1, 5, 11), False, None, RESIDENT),
    "the same, matrices and a tile that is not full": (Sizes("", 2, 33, 5, 3, 3, 2), False, None, RESIDENT),
    "parents shared out": (Sizes("", 2, 13, 5, 3, 3, 2), False, "parents_shared_out", SPLIT),
    "votes kept": (Sizes("", 2, 23, 3, 1, 5, 7), False, "votes_kept", KEPT),
    "votes kept, parents in many warps": (Sizes("", 1, 17, 19, 1, 4, 3), False, "votes_kept", KEPT),
    "passes": (Sizes("", 3, 9, 3, 2, 4, 5), False, "in_passes", PASSES),
    "planes": (Sizes("", 2, 5, 19, 1, 4, 3), False, "in_passes", PLANES),
    "planes, parents walked over": (Sizes("", 2, 2, 21, 1, 4, 3), False, "parents_walked_over", PLANES),
    "shared": (Sizes("", 2, 37, 10, 2, 3, 2), True, None, LOOP),
    "shared, one sample": (Sizes("", 1, 6, 3, 1, 4, 5), True, None, LOOP),
    "shared, children shared out": (Sizes("", 1, 37, 5, 2, 3, 2), True, "children_shared_out", WALKS),
    "shared, one child after the other": (Sizes("", 2, 7, 5, 2, 3, 2), True, "one_after_the_other", WALKS),
}


@pytest.fixture(autouse=True)
def not_in_parts(monkeypatch):
    """Where float32 is multiplied in parts, layers of shared transforms go question by question; kernels can do it."""
    monkeypatch.setattr("capsroute.form.loop.operators.precision", lambda: "tf32")
    monkeypatch.setattr("capsroute.form.dispatch._known", {})  # what was found out with another precision


@pytest.fixture
def one_after_the_other(monkeypatch, children_shared_out):
    for module in ("cost", "loop.shared"):
        monkeypatch.setattr(f"capsroute.form.{module}.walks_alone", lambda sizes: True)


@pytest.fixture
def parents_walked_over(monkeypatch, in_passes):
    monkeypatch.setattr("capsroute.form.launches.lists.MOST_LOGITS", 16)  # eight parents of two samples: 8, 8 and 5
    loop_plan.cache_clear()
    yield
    loop_plan.cache_clear()


@pytest.fixture(params=WAYS)
def way(request):
    s, shared, fixture, launches = WAYS[request.param]
    if fixture is not None:
        request.getfixturevalue(fixture)
    given = operands(s)
    return s, given["u"], given["W"][:1] if shared else given["W"], launches


def prior_of(s: Sizes, children: int | None = None) -> Tensor:
    """Of -inf and +inf too: a child that may go nowhere, one that must, and a parent that nobody goes to."""
    prior = torch.randn(children or s.i, s.j, generator=torch.Generator().manual_seed(2))
    if s.i > 2 and children is None:
        prior[0], prior[1, 0], prior[2, 1] = -torch.inf, torch.inf, -torch.inf
    return prior.to(DEVICE)


def textbook(u: Tensor, W: Tensor, prior: Tensor | None) -> tuple[Tensor, Tensor]:
    """Stored votes, float64."""
    V = torch.einsum("biak,ijko->bijao", u, W.expand(u.shape[1], -1, -1, -1))
    logits = torch.einsum("bijao,bjao->bij", V, V.sum(1)) * (V.shape[3] * V.shape[4]) ** -0.5
    if prior is not None:
        logits = torch.where(prior == torch.inf, 1e300, logits + prior.masked_fill(prior == torch.inf, 0.0))
        nowhere = (logits == -torch.inf).all(2, keepdim=True)
        c = logits.masked_fill(nowhere, 0.0).softmax(2).masked_fill(nowhere, 0.0)
    else:
        c = logits.softmax(2)
    s = torch.einsum("bij,bijao->bjao", c, V)
    n = s.flatten(2).square().sum(2)[:, :, None, None].clamp_min(1e-300).sqrt()
    return -torch.expm1(-n) / n * s, c


def ours(u: Tensor, W: Tensor, prior: Tensor | None) -> tuple[Tensor, Tensor]:
    return cr.self_attention_routing(cr.LinearVotes(u, W), prior)[:2]


def values(route, *given: Tensor | None) -> list[Tensor]:
    """Poses, coefficients, and the gradients by all that is given."""
    leaves = [t if t is None else t.detach().clone().requires_grad_() for t in given]
    poses, c = route(*leaves)
    g = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
    return [poses, c, *torch.autograd.grad(poses, [t for t in leaves if t is not None], g)]


def check(*given: Tensor | None, most: float = 10 * ROUNDING[torch.float32]) -> None:
    exact = values(textbook, *(t if t is None else t.double() for t in given))
    for mine, wanted in zip(values(ours, *given), exact, strict=True):
        assert mine.shape == wanted.shape
        assert error(mine, wanted) < most


@needs_kernels
def test_equal_to_float64_in_the_launches_of_the_loop(way, launched):
    s, u, W, launches = way
    check(u, W, prior_of(s))
    assert [name for name in launched if name != "add_parts"] == launches


@needs_kernels
def test_without_a_prior_and_with_one_for_all_children(way):
    s, u, W, _ = way
    check(u, W, None)
    check(u, W, prior_of(s, 1))


@needs_kernels
def test_half_precision(way):
    """As far off as rounded operands make float64."""
    s, u, W, _ = way
    given = [t.bfloat16() for t in (u, W, prior_of(s))]
    check(*given, most=5 * ROUNDING[torch.bfloat16])
    assert [t.dtype for t in values(ours, *given)] == 2 * [torch.float32] + 3 * [torch.bfloat16]


@needs_kernels
def test_two_parents_that_are_always_chosen_share_and_their_prior_does_not_move(way):
    s, u, W, _ = way
    prior = torch.zeros(s.i, s.j, device=DEVICE)
    prior[-1, :2] = torch.inf
    poses, c, *_, by_prior = values(ours, u, W, prior)
    assert (c[:, -1, :2] == 0.5).all()
    assert poses.isfinite().all()
    assert (by_prior[-1] == 0).all()


@needs_kernels
def test_numbers_that_are_none_show(way):
    s, u, W, _ = way
    u = u.clone()
    u[0, -1] = torch.nan
    if DEVICE == "cpu":
        with pytest.raises(ValueError, match="NaN"):
            ours(u, W, None)
        return
    poses, c = ours(u, W, prior_of(s, 1))
    assert poses[0].isnan().all()
    assert c[0, -1].isnan().all()


@needs_kernels
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,)], ids=["children", "transforms", "prior"])
def test_a_gradient_by_one_alone(way, wanted):
    s, u, W, _ = way
    given = (u, W, prior_of(s))
    _, _, *every = values(ours, *given)
    leaves = [t.detach().clone().requires_grad_(n in wanted) for n, t in enumerate(given)]
    poses, _ = ours(*leaves)
    g = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
    found = torch.autograd.grad(poses, [leaves[n] for n in wanted], g)
    for mine, n in zip(found, wanted):
        torch.testing.assert_close(mine, every[n], rtol=1e-6, atol=1e-6)


@needs_kernels
def test_gradients_of_coefficients_and_second_ones_are_those_of_the_plain_form():
    given = operands(Sizes("", 2, 5, 3, 1, 2, 3))
    u, W, prior = given["u"], given["W"], torch.randn(5, 3, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    leaves = [t.double().requires_grad_() for t in (u, W, prior)]
    exact = torch.autograd.grad(textbook(*leaves)[1].square().sum(), leaves)
    leaves = [t.detach().clone().requires_grad_() for t in (u, W, prior)]
    for mine, wanted in zip(torch.autograd.grad(ours(*leaves)[1].square().sum(), leaves), exact):
        assert error(mine, wanted) < 1e-5
    differentiable_twice(lambda *leaves: ours(*leaves)[0].square().sum(), u, W, prior)


@needs_kernels
def test_what_is_kept_may_come_back_in_another_order(way):
    s, u, W, _ = way
    survives_another_order(lambda *leaves: ours(*leaves)[0].sum(), u, W, prior_of(s))


@needs_kernels
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per child"])
def test_a_transform_of_torch_func_and_a_recorded_graph_go_question_by_question(shared, launched, monkeypatch):
    given = operands(Sizes("", 2, 5, 3, 1, 2, 3))
    u, W, prior = given["u"], given["W"][:1] if shared else given["W"], torch.randn(5, 3, device=DEVICE)

    def loss(W: Tensor) -> Tensor:
        return ours(u, W, prior)[0].square().sum()

    leaf = W.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    assert any("loop" in name for name in launched)
    launched.clear()
    near = {"rtol": 1e-4, "atol": 1e-5} if INTERPRETED else {"rtol": 1e-3, "atol": 1e-4}  # products in parts
    torch.testing.assert_close(torch.func.grad(loss)(W), wanted, **near)
    (compiled,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(leaf), leaf)
    torch.testing.assert_close(compiled, wanted, **near)
    assert not any("loop" in name for name in launched)


@needs_kernels
def test_small_and_large_sums_are_squashed_as_in_float64(way):
    _, u, W, _ = way
    for size in (1e-12, 1e-3, 6.0):
        check(u * size, W, None, most=1e-4)


@needs_kernels
def test_kernels_say_why_not():
    u, W = torch.randn(2, 3, 1, 4, device=DEVICE), torch.randn(1, 5, 4, 6, device=DEVICE)
    says_why("float64", "self_attention", u.double(), W.double())


@needs_kernels
def test_shared_transforms_multiplied_in_parts_go_question_by_question(monkeypatch, launched):
    monkeypatch.setattr("capsroute.form.loop.operators.precision", lambda: "bf16x6")
    monkeypatch.setattr("capsroute.form.dispatch._known", {})
    given = operands(Sizes("", 2, 5, 3, 1, 2, 3))
    check(given["u"], given["W"][:1], None)
    assert not any("loop" in name or "walk" in name for name in launched)
    says_why(IN_PARTS, "self_attention", given["u"], given["W"][:1])
