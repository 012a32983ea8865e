"""Heinsen and EM routing through the Gaussian kernels, against float64: on a GPU, or under Triton's interpreter.

Error budget: at most twice as far from float64 as the textbook form in plain torch of the same dtype, three times for
gradients.
"""

import pytest
import torch
from torch import Tensor

import capsroute as cr
from capsroute.bench.cases import Case
from capsroute.bench.measure import capture, forward_backward, peak_mebibytes
from tests.form.gaussian.cases import SCORES, TINY, draw, route, routed_values, voters
from tests.form.kernels import DEVICE, ROUNDING, Sizes, differentiable_twice, error, needs_kernels

# The interpreter's time goes by the product.
FEW = Sizes("a few", 2, 8, 3, 1, 2, 3)
ONE_PARENT = Sizes("one parent", 2, 5, 1, 2, 3, 2)


@needs_kernels
@pytest.mark.parametrize("why", SCORES)
@pytest.mark.parametrize(("algorithm", "whose"), [("heinsen", "shared+bias"), ("em", "per child")])
def test_routing_equals_float64(algorithm, whose, why, launched):
    s = FEW
    scores = SCORES[why](s)
    exact = routed_values(algorithm, s, whose, scores, torch.float64)
    assert not launched
    for ours, wanted in zip(routed_values(algorithm, s, whose, scores, torch.float32), exact, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours.double() - wanted).norm() / wanted.norm().clamp_min(1e-2) < 2 * TINY
    assert launched.count("whole_forward") == 1
    assert launched.count("whole_backward") == 1


@needs_kernels
def test_a_bias_moves_the_poses_and_nothing_else(launched):
    # Its gradient is that of the poses alone: what goes through tight variances, five digits larger, cancels.
    s = FEW._replace(i=5)
    *_, exact, _, _ = routed_values("heinsen", s, "shared+bias", SCORES["masked"](s), torch.float64)
    *_, ours, _, _ = routed_values("heinsen", s, "shared+bias", SCORES["masked"](s), torch.float32)
    assert "whole_backward" in launched
    assert error(ours, exact) < 2 * TINY


@needs_kernels
@pytest.mark.parametrize("transforms", ["per child", "shared"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_bias_that_children_share_moves_no_variances(launched, transforms, dtype):
    # Children's gradients cancel; those rounded to bfloat16 one by one left more than the poses' own gradient.
    (batch, children, parents), generator = (2, 64, 5), torch.Generator().manual_seed(0)
    shapes = (batch, children, 4, 4), (children if transforms == "per child" else 1, parents, 4, 4), (1, parents, 4, 4)
    drawn = [torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for shape in shapes]
    scores = torch.rand(batch, children, generator=generator).to(DEVICE)

    def by_bias(dtype: torch.dtype) -> torch.Tensor:
        u, W, bias = (t.to(dtype) for t in drawn)
        bias.requires_grad_()
        beta = torch.ones(parents, dtype=torch.promote_types(dtype, torch.float32), device=DEVICE)
        routed = cr.em_routing(cr.LinearVotes(u, W, bias), scores.to(dtype), beta, beta)
        loss = 1e-3 * routed.poses.double().sum() + routed.variances.double().sum()
        return torch.autograd.grad(loss, bias)[0].double()

    exact = by_bias(torch.float64)
    launched.clear()
    found = by_bias(dtype)
    assert launched
    assert (found - exact).norm() < torch.finfo(dtype).eps * exact.norm()


@needs_kernels
def test_zero_votes(launched):
    s = FEW
    u, W, _ = voters(s, "shared")
    routed = cr.heinsen_routing(
        cr.LinearVotes(u.to(DEVICE) * 0, W.to(DEVICE)), draw(s.b, s.i).to(DEVICE),
        *(torch.zeros(1, s.j, device=DEVICE) for _ in range(2)),
    )  # fmt: skip
    assert "whole_forward" in launched
    assert (routed.poses == 0).all()
    torch.testing.assert_close(routed.coefficients, torch.full_like(routed.coefficients, 1 / s.j))


@needs_kernels
def test_parents_that_compete_in_another_way_use_the_parts(launched):
    s = FEW
    u, W, _ = voters(s, "per child")
    votes, scores, beta = cr.LinearVotes(u.to(DEVICE), W.to(DEVICE)), draw(s.b, s.i).to(DEVICE), draw(1, s.j).to(DEVICE)
    usual = route("em", votes, scores, beta)
    launched.clear()
    ours = route("em", votes, scores, beta, normalise=lambda logits: logits.softmax(2))
    asked = ["make_votes", "weigh", "believe"]
    assert launched == [*asked, *["make_votes", "density", *asked] * 2]
    for mine, other in zip(ours, usual):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def budget(case: Case, dtype: torch.dtype) -> None:
    """Poses within twice, gradients within three times the textbook's distance from float64."""
    tensors = list(case.tensors(dtype, DEVICE).values())
    gradient = draw(case.batch, case.parents, case.rows, case.o).to(DEVICE)
    exact = forward_backward(case.textbook(), [t.double() for t in tensors], gradient.double())()
    ours, theirs = (forward_backward(route, tensors, gradient)() for route in (case.ours(), case.textbook()))
    for index, (mine, other, wanted) in enumerate(zip(ours, theirs, exact)):
        found, times = error(mine, wanted), 3 if index else 2
        # The textbook form of tight variances leaves the range of float16; then there is nothing to compare with.
        if torch.isfinite(other).all():
            assert found <= times * error(other, wanted) + ROUNDING[torch.float32], index
        else:
            assert found < 10 * ROUNDING[dtype], index


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("algorithm", ["heinsen", "em"])
def test_half_precision_stays_within_the_error_budget(algorithm, dtype, launched):
    budget(Case(algorithm, "", 2, 11, 3, rows=2, k=3, o=2, shared=True), dtype)
    assert "whole_backward" in launched


@needs_kernels
@pytest.mark.parametrize("algorithm", ["heinsen", "em"])
def test_differentiable_twice(algorithm, launched):
    s = ONE_PARENT
    given = [t.to(DEVICE) for t in (*voters(s, "shared")[:2], draw(s.b, s.i), draw(1, s.j))]

    def loss(u: Tensor, W: Tensor, scores: Tensor, beta: Tensor) -> Tensor:
        return route(algorithm, cr.LinearVotes(u, W), scores, beta).poses.square().sum()

    differentiable_twice(loss, *given, limit=1e-4)
    assert "whole_forward" in launched


@needs_kernels
def test_two_runs_are_equal_to_the_last_bit(launched):
    s = FEW
    runs = (routed_values("heinsen", s, "shared+bias", draw(s.b, s.i), torch.float32) for _ in range(2))
    for first, second in zip(*runs):
        assert torch.equal(first, second)


@needs_kernels
def test_compiled_whole(launched):
    s = ONE_PARENT
    u, W, _ = (t if t is None else t.to(DEVICE).requires_grad_() for t in voters(s, "shared"))
    scores, beta = draw(s.b, s.i).to(DEVICE), draw(1, s.j).to(DEVICE)

    def poses(u: Tensor, W: Tensor) -> Tensor:
        return route("heinsen", cr.LinearVotes(u, W), scores, beta).poses

    outputs = poses(u, W), torch.compile(poses, fullgraph=True, backend="aot_eager")(u, W)
    launched.clear()
    eager, compiled = (torch.autograd.grad(out.square().sum(), (u, W)) for out in outputs)
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
    assert launched.count("whole_backward") == 2


@needs_kernels
def test_a_forced_torch_backend_launches_nothing(launched):
    s = FEW
    scores = draw(s.b, s.i)
    plain = routed_values("heinsen", s, "shared", scores, torch.float32, "torch")
    assert not launched
    for ours, other in zip(routed_values("heinsen", s, "shared", scores, torch.float32), plain):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    assert launched


VISION = Case("heinsen", "Heinsen 2019, smallNORB", 20, 5184, 64, rows=4, k=4, o=4, shared=True)
FULL = [
    VISION,
    Case("heinsen", "odd", 7, 613, 37, rows=3, k=5, o=2),
    Case("em", "Hinton 2018, class capsules", 64, 512, 5, rows=4, k=4, o=4),
    Case("em", "vector poses", 16, 1152, 10, rows=1, k=8, o=16),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", FULL, ids=lambda case: case.name)
def test_full_size_stays_within_the_error_budget(case, dtype, launched):
    budget(case, dtype)
    assert ("vote_gradients" if case is VISION else "last_gradients") in launched


def step_of(case: Case, dtype: torch.dtype = torch.float32):
    tensors = list(case.tensors(dtype, "cuda").values())
    gradient = draw(case.batch, case.parents, case.rows, case.o).to("cuda")
    return forward_backward(case.ours(), tensors, gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [FULL[1], FULL[2]], ids=lambda case: case.name)
def test_a_captured_graph_replays_the_same_numbers(case):
    step = step_of(case)
    eager, replay = step(), capture(step)
    replay()
    for ours, wanted in zip(replay.kept, eager):
        assert torch.equal(ours, wanted)


@pytest.mark.gpu
def test_the_vision_layer_trains_in_little_memory():
    assert peak_mebibytes(step_of(VISION)) <= 250
