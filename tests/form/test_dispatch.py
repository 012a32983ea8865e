"""Backends: chosen per call, forced, and able to say why not."""

import copy

import pytest
import torch

import capsroute as cr
from capsroute.form import dispatch
from capsroute.form.window import Window
from capsroute.patches import PatchVotes
from tests.algorithms import ALGORITHMS, route
from tests.algorithms import arguments as algorithm_arguments
from tests.form.contractions.cases import NAMES, arguments, operands
from tests.kinds import Sizes

SIZES = Sizes(2, 5, 3, 2, 4, 6)


@pytest.mark.parametrize("name", NAMES)
def test_auto_is_torch_where_no_kernel_applies(name):
    args = arguments(name, operands(SIZES, False), False)
    auto, forced = (getattr(cr.form, name)(*args, backend=backend) for backend in ("auto", "torch"))
    assert torch.equal(auto, forced)


@pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter runs kernels on a CPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_forced_kernel_that_does_not_apply_says_why(name):
    args = arguments(name, operands(SIZES, False), False)
    assert cr.form.explain(name, *args) == ["operands are on cpu, the kernels need cuda"]
    with pytest.raises(ValueError, match=rf"backend='triton' does not apply to {name}: operands are on cpu"):
        getattr(cr.form, name)(*args, backend="triton")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_backend_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=r"backend: expected one of auto, torch, triton, got 'cuda'"):
        getattr(cr.form, name)(*arguments(name, operands(SIZES, False), False), backend="cuda")


def test_votes_know_their_backend():
    parts = operands(SIZES, False)
    with pytest.raises(ValueError, match=r"backend: expected one of auto, torch, triton, got 'fast'"):
        cr.LinearVotes(parts["u"], parts["W"], backend="fast")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shared", [False, True], ids=["per-child", "shared"])
def test_large_problems_are_cut_into_chunks_and_stay_equal(name, shared, monkeypatch):
    args = arguments(name, operands(SIZES, shared), shared)
    whole = getattr(cr.form, name)(*args)
    monkeypatch.setattr("capsroute.form.contractions.operators.CHUNK_ELEMENTS", 1)
    torch.testing.assert_close(getattr(cr.form, name)(*args), whole, rtol=1e-12, atol=1e-12)


def test_a_kernel_plugs_in_where_it_applies(monkeypatch):
    if dispatch.TRITON_INSTALLED:
        dispatch._load_kernels()  # what plugged itself in here would be gone for all tests behind this one
    monkeypatch.setattr(dispatch, "_kernels", {})
    # As if the operands were on a device that has kernels: only the kernel's own reasons are left.
    monkeypatch.setattr(dispatch, "reachable", lambda device: True)
    monkeypatch.setattr(dispatch, "_known", {})
    cr.form.register_kernel(
        "agreement",
        lambda u, W, q: u.new_full((u.shape[0], u.shape[1], W.shape[1]), 7.0),
        lambda u, W, q: [] if u.shape[3] % 2 == 0 else ["k is odd"],
    )
    even, odd = (arguments("agreement", operands(SIZES._replace(k=k), False), False) for k in (4, 3))
    assert (cr.form.agreement(*even) == 7).all()
    assert (cr.form.agreement(*even, backend="torch") != 7).all()
    assert (cr.form.agreement(*odd) != 7).all()
    with pytest.raises(ValueError, match="backend='triton' does not apply to agreement: k is odd"):
        cr.form.agreement(*odd, backend="triton")


def test_reasons_are_asked_for_again_when_tf32_is_switched_on_or_off(monkeypatch):
    asked, u = [], torch.zeros(2)
    monkeypatch.setattr(dispatch, "_known", {})
    monkeypatch.setattr(dispatch, "explain", lambda name, *operands: asked.append(dispatch.takes_tf32()) or [])
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for tf32 in (False, False, True, True, False):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            dispatch._reasons("agreement", (u,))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert asked == [False, True]


def test_what_is_known_of_ever_new_sizes_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(dispatch, "_known", {})
    monkeypatch.setattr(dispatch, "reachable", lambda device: True)
    for batch in range(1, 4200):
        assert not dispatch.takes_kernels("nothing", "auto", [torch.empty(batch, 1)])
    assert len(dispatch._known) <= 4096


VOTES = {
    "per child": lambda parts: cr.LinearVotes(parts["u"], parts["W"], backend="triton"),
    "shared": lambda parts: cr.LinearVotes(parts["u"], parts["W"][:1], backend="triton"),
    "children themselves": lambda parts: cr.IdentityVotes(parts["u"], SIZES.j, backend="triton"),
    "patches": lambda parts: PatchVotes(
        parts["u"][:, :1, :, :, None, None].repeat(1, 1, 1, 1, 3, 3), parts["W"][:4], Window(2), "triton"
    ),
}


def insisting(algorithm: str, kind: str, dtype=torch.float32) -> tuple[torch.Tensor, ...]:
    parts = {name: part.to(dtype) for name, part in operands(SIZES, False).items()}
    votes = VOTES[kind](parts)
    s = Sizes(votes.batch, votes.children, votes.parents, votes.rows, votes.columns, votes.columns)
    return route(algorithm, votes, *(x.to(votes.dtype) for x in algorithm_arguments(algorithm, s)))


@pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter runs kernels on a CPU")
@pytest.mark.parametrize("kind", VOTES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_insisting_where_no_kernel_can_run_is_an_error_for_every_algorithm(algorithm, kind):
    with pytest.raises(ValueError, match=r"backend='triton' does not apply to \w+: operands are on cpu, the kernels"):
        insisting(algorithm, kind)


@pytest.mark.skipif(not dispatch.INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    "route",
    [
        lambda votes: cr.dynamic_routing(votes, 1), lambda votes: cr.max_min_routing(votes, 1),
        cr.inverted_attention_routing, cr.uniform_routing, cr.dynamic_routing,
    ],
    ids=["one iteration", "one iteration of max-min", "the first step", "uniform", "shared transforms"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["per child", "shared", "patches"])
def test_what_is_right_without_a_kernel_is_not_an_error(route, kind):
    forced = VOTES[kind]({name: part.float() for name, part in operands(SIZES, False).items()})
    plain = copy.copy(forced)
    plain.backend = "torch"
    torch.testing.assert_close(route(forced).poses, route(plain).poses, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not dispatch.INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize("algorithm", ["dynamic", "inverted_attention", "em", "heinsen"])
def test_what_no_kernel_takes_is_an_error(algorithm):
    with pytest.raises(ValueError, match=r"backend='triton' does not apply to \w+: operands are float64"):
        insisting(algorithm, "per child", torch.float64)
