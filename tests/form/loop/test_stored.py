"""The loop over stored votes: its gradient is one product for all iterations, and equals that of each contraction."""

from types import SimpleNamespace

import pytest
import torch

import capsroute as cr
from capsroute.form.loop.plain import MaxMin, Softmax, plain_loop
from capsroute.form.loop.stored import STORED, stored_loop
from capsroute.form.sizes import sizes_of
from capsroute.form.window import Window
from capsroute.patches import PatchVotes
from tests.form.kernels import assert_within_budget

NORMALISE = {"softmax": Softmax(), "max-min": MaxMin(0.1, 0.8)}


def votes(batch: int = 3, scale: float = 1.0, sizes=(7, 5, 2, 3, 4)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    i, j, a, k, o = sizes
    shapes = (batch, i, a, k), (i, j, k, o)
    return tuple((torch.randn(s, generator=generator, dtype=torch.float64) * scale).requires_grad_() for s in shapes)


def question_by_question(votes, first, *how):
    c = torch.full((), first, dtype=torch.float64).expand(votes.batch, votes.children, votes.parents)
    return plain_loop(votes.agreement, votes.aggregate, c, *how)


@pytest.mark.parametrize("iterations", [2, 3, 4])
@pytest.mark.parametrize("normalise", NORMALISE.values(), ids=NORMALISE)
@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)], ids=["poses", "coefficients", "both"])
def test_values_and_gradients_equal_the_plain_loop(outputs, normalise, iterations):
    u, W = votes()
    how = (1 / 5, normalise, iterations, False)
    found = []
    for loop in (stored_loop, question_by_question):
        poses, c = loop(cr.LinearVotes(u, W).keeping(), *how)
        chosen = [(poses, c)[place] for place in outputs]
        generator = torch.Generator().manual_seed(1)
        given = [torch.randn(out.shape, generator=generator, dtype=torch.float64) for out in chosen]
        found.append([poses, c, *torch.autograd.grad(chosen, (u, W), given)])
    for ours, plain in zip(*found):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalise", NORMALISE.values(), ids=NORMALISE)
def test_second_derivatives(normalise):
    u, W = votes(batch=1, scale=0.5, sizes=(3, 3, 1, 2, 2))
    assert torch.autograd.gradgradcheck(
        lambda u, W: stored_loop(cr.LinearVotes(u, W).keeping(), 1 / 3, normalise, 3, False)[0], (u, W)
    )


def test_zero_and_huge_votes_have_finite_gradients():
    for scale in (0.0, 1e-20, 1e10):
        u, W = (t.detach().float().requires_grad_() for t in votes(scale=scale))
        poses, _ = stored_loop(cr.LinearVotes(u, W).keeping(), 1 / 5, Softmax(), 3, False)
        for gradient in torch.autograd.grad(poses.sum(), (u, W)):
            assert torch.isfinite(gradient).all()


@pytest.fixture
def ran(monkeypatch) -> list[int]:
    calls: list[int] = []
    run = STORED.run
    monkeypatch.setattr(STORED, "run", lambda *args: calls.append(1) or run(*args))
    return calls


def test_routing_on_a_cpu_takes_it(ran):
    u, W = votes()
    cr.dynamic_routing(cr.LinearVotes(u, W))
    cr.max_min_routing(cr.DenseVotes(cr.LinearVotes(u, W).dense()))
    assert len(ran) == 2


def test_forward_mode_transforms_and_stopped_gradients_do_not_take_it(ran):
    u, W = votes()
    cr.dynamic_routing(cr.LinearVotes(u, W), stop_gradient=True)
    torch.func.jvp(lambda u: cr.dynamic_routing(cr.LinearVotes(u, W)).poses, (u,), (torch.ones_like(u),))
    torch.vmap(lambda u: cr.dynamic_routing(cr.LinearVotes(u[None], W)).poses)(u)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(u.detach(), torch.ones_like(u))
        poses = cr.dynamic_routing(cr.LinearVotes(dual, W.detach())).poses
        assert torch.autograd.forward_ad.unpack_dual(poses).tangent is not None
    assert not ran


@pytest.mark.parametrize(
    ("k", "memory", "is_stored"), [(64, 24 << 30, True), (4, 24 << 30, False), (64, 1 << 20, False)]
)
def test_votes_too_wide_for_kernels_are_stored_on_a_gpu_where_they_fit(monkeypatch, k, memory, is_stored):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))
    wide = cr.LinearVotes(torch.randn(8, 7, 1, k), torch.randn(7, 10, k, 128 if k > 32 else 64))
    wide.device = torch.device("cuda")
    assert (wide.keeping().table() is not None) == is_stored
    assert wide.table() is None  # asked once, they are not kept


def test_a_compiled_graph_does_not_ask_whether_wide_votes_fit(monkeypatch):
    """It would be bound to a number of samples."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: pytest.fail("asked"))
    wide = cr.LinearVotes(torch.randn(8, 7, 1, 64), torch.randn(7, 10, 64, 16))
    wide.device, wide._kept = torch.device("cuda"), {}  # `keeping` would make them anew, on a CPU
    assert isinstance(wide.stored_if_faster(), cr.DenseVotes)
    loop = cr.LinearVotes(torch.randn(1, 256, 1, 32), torch.randn(256, 8, 32, 64))
    loop.device, loop._kept = torch.device("cuda"), {}
    assert isinstance(loop.for_loop(), cr.DenseVotes)  # as of many samples


@pytest.mark.parametrize(
    ("changed", "is_stored"),
    [
        ({}, True), ({"k": 16}, False), ({"o": 32}, False), ({"dtype": torch.bfloat16}, False), ({"b": 8}, False),
        ({"b": 3, "a": 3}, True), ({"i": 8}, False), ({"shared": True}, False), ({"backend": "triton"}, False),
        ({"memory": 1 << 20}, False),
    ],
    ids=["wide", "children", "parents", "bfloat16", "few rows", "matrices", "small", "shared", "insists", "too large"],
)  # fmt: skip
def test_loops_over_poses_that_leave_the_registers_take_stored_votes(monkeypatch, changed, is_stored):
    given = {
        "b": 9,
        "i": 256,
        "a": 1,
        "k": 17,
        "o": 33,
        "memory": 24 << 30,
        "dtype": torch.float32,
        "shared": False,
    } | changed
    properties = SimpleNamespace(total_memory=given["memory"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    u, W = torch.randn(*(given[x] for x in "biak")), torch.randn(given["i"], 8, given["k"], given["o"])
    W = W[:1] if given["shared"] else W
    votes = cr.LinearVotes(u.to(given["dtype"]), W.to(given["dtype"]))
    votes.device, votes.backend = torch.device("cuda"), given.get("backend", "auto")
    votes = votes.keeping()
    assert isinstance(votes.for_loop(), cr.DenseVotes) == is_stored
    assert votes.table() is None  # attention and contractions go on with kernels


def test_a_loop_over_a_map_or_any_number_of_children_stores_no_votes(monkeypatch):
    """Patches would be unfolded; a program exported for any number of children would be bound to one."""
    properties = SimpleNamespace(total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    W = torch.randn(256, 8, 17, 33)
    over_map = PatchVotes(torch.randn(9, 64, 1, 17, 3, 3), W, Window(2), "auto")
    listed = cr.LinearVotes(torch.randn(9, 256, 1, 17), W)
    for votes in (over_map, listed):
        votes.device = torch.device("cuda")
    assert over_map.for_loop() is over_map
    assert isinstance(listed.for_loop(), cr.DenseVotes)
    monkeypatch.setattr("capsroute.votes.sizes_of", lambda u, W: sizes_of(u, W)._replace(i=object()))
    assert listed.for_loop() is listed


def test_a_loop_asks_the_votes_that_it_is_given(monkeypatch):
    """Stored ones, unless nothing is to be gained by asking again."""
    u, W = votes()
    asked = []
    monkeypatch.setattr(cr.LinearVotes, "for_loop", lambda self: asked.append(1) or dense_of(self.u, self.W))
    wanted = cr.dynamic_routing(dense_of(u, W)).poses
    assert torch.equal(cr.dynamic_routing(cr.LinearVotes(u, W)).poses, wanted)
    cr.max_min_routing(cr.LinearVotes(u, W), stop_gradient=True)
    cr.dynamic_routing(cr.LinearVotes(u, W), 1)
    assert len(asked) == 1


def test_wide_votes_of_half_precision_are_not_rounded(monkeypatch):
    properties = SimpleNamespace(total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    u, W = torch.randn(8, 7, 1, 64).bfloat16(), torch.randn(7, 10, 64, 16).bfloat16()
    wide = cr.LinearVotes(u, W)
    wide.device = torch.device("cuda")
    exact = cr.DenseVotes(dense_of(u.double(), W.double()).V).table()
    torch.testing.assert_close(wide.keeping().table().double(), exact, rtol=1e-4, atol=1e-4)


WIDE = (cr.dynamic_routing, cr.max_min_routing, lambda votes: cr.inverted_attention_routing(votes, iterations=2))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("route", WIDE, ids=["dynamic", "max-min", "attention"])
@pytest.mark.parametrize(("b", "i", "k", "o"), [(5, 33, 64, 80), (5, 33, 64, 24), (16, 256, 32, 64)])
def test_wide_poses_stay_within_the_error_budget(route, b, i, k, o, dtype):
    """Of 64 columns a child's pose, and of 80 a parent's, are beyond the kernels of a loop; 32 and 64 slow them."""
    generator = torch.Generator().manual_seed(0)
    u, W = torch.randn(b, i, 1, k, generator=generator), torch.randn(i, 7, k, o, generator=generator) / 8
    leaves = [t.to("cuda", dtype).requires_grad_() for t in (u, W)]
    assert bool(cr.form.explain("routing_loop", *leaves, 3)) == (k == 64)
    assert isinstance(cr.LinearVotes(*leaves).for_loop(), cr.DenseVotes) == (k == 32 and dtype == torch.float32)
    found = []
    for kind, precision in ((cr.LinearVotes, dtype), (dense_of, dtype), (cr.LinearVotes, torch.float64)):
        made = [t.detach().to(precision).requires_grad_() for t in leaves]
        poses = route(kind(*made)).poses
        gradient = torch.randn(poses.shape, generator=torch.Generator().manual_seed(1)).to(poses)
        found.append([poses, None, *torch.autograd.grad(poses, made, gradient)])
    assert_within_budget(*found, dtype)


def dense_of(u: torch.Tensor, W: torch.Tensor) -> cr.DenseVotes:
    return cr.DenseVotes(torch.einsum("biak,ijko->bijao", u, W))
