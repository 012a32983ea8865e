"""One step of slot attention: equal to the loops of Locatello et al. 2020, and its own claims."""

import math

import pytest
import torch

import capsroute as cr
from capsroute.routing import slots
from tests.routing import oracles
from tests.routing.magnitudes import SIZES, assert_right_in_float32

# b, i, j, d, e and why
CASES = {
    "one of everything": (1, 1, 1, 1, 1),
    "one slot: a mean of all values": (2, 7, 1, 3, 4),
    "one child: every slot is that child": (2, 1, 5, 3, 4),
    "primes, all different": (2, 11, 5, 3, 7),
    "equal sizes: swapped axes would fit": (3, 3, 3, 3, 3),
    "more slots than children": (2, 2, 19, 3, 4),
}


def inputs(b, i, j, d, e, dtype=torch.float64):
    generator = torch.Generator().manual_seed(b + i + j + d + e)
    shapes = ((b, i, d), (b, i, e), (b, j, d))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def assert_close(ours, theirs, tolerance=1e-10):
    for mine, other in zip(ours, theirs):
        if mine is not None and other is not None:
            torch.testing.assert_close(mine, torch.as_tensor(other), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("why", CASES)
@pytest.mark.parametrize("option", [{}, {"scale": 2.0}, {"eps": 0.1}], ids=str)
def test_equals_the_loops(why, option):
    tensors = inputs(*CASES[why])
    routed = cr.slot_routing(*tensors, **option)
    assert_close(routed, oracles.slots(*[tensor.numpy() for tensor in tensors], **option))
    assert routed.scores is None
    assert routed.variances is None


@pytest.mark.parametrize("why", CASES)
def test_coefficients_sum_to_one_over_children(why):
    total = cr.slot_routing(*inputs(*CASES[why])).coefficients.sum(1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)


@pytest.mark.parametrize("masked", [False, True])
def test_first_and_second_derivative(masked):
    tensors = [tensor.requires_grad_() for tensor in inputs(2, 5, 3, 2, 4)]
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]]).bool() if masked else None
    assert torch.autograd.gradcheck(lambda *x: cr.slot_routing(*x, mask=mask)[:2], tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: cr.slot_routing(*x, mask=mask)[:2], tensors, fast_mode=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["keys", "values", "queries"])
def test_values_and_gradients_are_right_in_float32_at_every_magnitude(place, size):
    tensors = inputs(2, 6, 3, 4, 5, torch.float32)
    tensors[place] *= size
    assert_right_in_float32(lambda *x: [cr.slot_routing(*x).poses], tensors, 1e-5)


def test_a_masked_child_is_not_there():
    keys, values, queries = inputs(2, 6, 3, 4, 5)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 4:] = False
    masked = cr.slot_routing(keys, values, queries, mask=mask)
    removed = cr.slot_routing(keys[:, :4], values[:, :4], queries)
    assert_close(masked._replace(coefficients=masked.coefficients[:, :4]), removed, 1e-13)
    assert (masked.coefficients[:, 4:] == 0).all()


def test_a_soft_mask_is_not_a_bool():
    keys, values, queries = inputs(1, 3, 2, 4, 5)
    hundredth = torch.tensor([[1.0, 1.0, 0.01]])
    c, hard = (cr.slot_routing(keys, values, queries, mask=mask).coefficients for mask in (hundredth, hundredth.bool()))
    assert (c[:, 2] < 0.1 * hard[:, 2]).all()


def test_a_mask_that_hides_every_child_gives_zero_and_no_nan():
    tensors = [tensor.requires_grad_() for tensor in inputs(2, 6, 3, 4, 5)]
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0] = False
    routed = cr.slot_routing(*tensors, mask=mask)
    assert (routed.poses[0] == 0).all()
    assert (routed.coefficients[0] == 0).all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(routed.poses.sum(), tensors))


def test_one_slot_is_the_mean_of_all_values_and_asks_no_key():
    keys, values, queries = tensors = [tensor.requires_grad_() for tensor in inputs(2, 7, 1, 3, 4)]
    poses = cr.slot_routing(*tensors).poses
    torch.testing.assert_close(poses[:, 0, 0], values.mean(1), rtol=1e-12, atol=1e-12)
    of_keys, of_values, of_queries = torch.autograd.grad(poses.sum(), (keys, values, queries))
    assert of_keys.abs().max() < 1e-15
    assert of_queries.abs().max() < 1e-15
    torch.testing.assert_close(of_values, torch.full_like(values, 1 / 7), rtol=1e-12, atol=0)


def test_one_child_is_every_slot_whatever_its_key():
    keys, values, queries = tensors = [tensor.requires_grad_() for tensor in inputs(2, 1, 5, 3, 4)]
    poses = cr.slot_routing(*tensors).poses
    torch.testing.assert_close(poses[:, :, 0], values.expand(-1, 5, -1), rtol=1e-12, atol=1e-12)
    of_keys, of_values, of_queries = torch.autograd.grad(poses.sum(), (keys, values, queries))
    assert of_keys.abs().max() < 1e-12
    assert of_queries.abs().max() < 1e-12
    torch.testing.assert_close(of_values, torch.full_like(values, 5.0), rtol=1e-12, atol=0)


def test_long_inputs_store_nothing_of_children_times_slots_unless_asked(monkeypatch):
    monkeypatch.setattr(slots, "PIECE", 1 << 12)
    tensors = [tensor.requires_grad_() for tensor in inputs(1, 1 << 12, 32, 2, 2)]
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        cr.slot_routing(*tensors, coefficients=False)
        assert max(kept) <= tensors[0].numel()  # keys and values themselves, nothing larger
        cr.slot_routing(*tensors)
    assert max(kept) == 32 << 12


@pytest.mark.parametrize("masked", [False, True])
def test_pieces_give_what_the_whole_gives(monkeypatch, masked):
    monkeypatch.setattr(slots, "PIECE", 14)
    tensors = [tensor.requires_grad_() for tensor in inputs(2, 11, 3, 4, 5)]
    mask = torch.rand(2, 11, generator=torch.Generator().manual_seed(0)) if masked else None
    whole = cr.slot_routing(*tensors, mask=mask)
    pieces = cr.slot_routing(*tensors, mask=mask, coefficients=False)
    assert pieces.coefficients is None
    assert_close(pieces[:1], whole[:1], 1e-12)
    weights = torch.randn(whole.poses.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((r.poses * weights).sum(), tensors) for r in (pieces, whole))
    assert_close(ours, theirs, 1e-12)


def test_long_inputs_have_gradients_under_torch_func(monkeypatch):
    monkeypatch.setattr(slots, "PIECE", 14)
    tensors = inputs(2, 11, 3, 4, 5)

    def loss(*tensors, coefficients=False):
        return cr.slot_routing(*tensors, coefficients=coefficients).poses.square().sum()

    ours = torch.func.grad(loss, argnums=(0, 1, 2))(*tensors)
    assert_close(ours, torch.func.grad(loss, argnums=(0, 1, 2))(*tensors, coefficients=True), 1e-12)


def test_a_sample_does_not_see_its_batch():
    tensors = inputs(4, 6, 3, 4, 5)
    alone = cr.slot_routing(*[tensor[2:3] for tensor in tensors])
    assert_close(alone, [None if part is None else part[2:3] for part in cr.slot_routing(*tensors)], 1e-13)


def test_half_precision_keeps_float32_sums_also_under_autocast():
    half = inputs(2, 6, 3, 4, 5, torch.bfloat16)
    routed = cr.slot_routing(*half)
    assert routed.poses.dtype == routed.coefficients.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = cr.slot_routing(*[tensor.float() for tensor in half])
    assert_close(cast, routed, 1e-6)


@pytest.mark.parametrize("empty", ["b", "i"])
def test_an_empty_batch_and_no_children_are_legal(empty):
    tensors = inputs(*((0, 6) if empty == "b" else (2, 0)), 3, 4, 5)
    routed = cr.slot_routing(*tensors)
    assert routed.poses.shape == (len(tensors[0]), 3, 1, 5)
    assert routed.poses.isfinite().all()


def test_compile_and_export():
    tensors = inputs(2, 6, 3, 4, 5)

    def step(*x):
        routed = cr.slot_routing(*x)
        return routed.poses, routed.coefficients

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*tensors), step(*tensors), 1e-12)

    class Step(torch.nn.Module):
        def forward(self, *x):
            return cr.slot_routing(*x).poses

    exported = torch.export.export(Step(), tuple(tensors)).module()
    assert_close([exported(*tensors)], cr.slot_routing(*tensors)[:1], 1e-12)


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("keys", torch.ones(2, 6), r"keys: expected a floating-point tensor \[b,i,d\], got torch.float32 \(2, 6\)"),
        ("keys", [1.0], r"keys: expected a floating-point tensor"),
        ("values", torch.ones(2, 5, 5), r"values: expected shape \(2, 6, 5\) \[b,i,e\], got \(2, 5, 5\)"),
        ("queries", torch.ones(2, 3, 9), r"queries: expected shape \(2, 3, 4\) \[b,j,d\], got \(2, 3, 9\)"),
        ("queries", torch.ones(2, 0, 4), r"queries: expected at least one slot, got shape \(2, 0, 4\)"),
        ("queries", torch.full((2, 3, 4), math.nan), r"queries: expected no NaN"),
        ("mask", torch.ones(2, 5), r"mask: expected shape \(2, 6\) \[b,i\], got \(2, 5\)"),
        ("mask", torch.full((2, 6), math.nan), r"mask: expected no NaN"),
        ("scale", math.nan, r"scale: expected a finite number, got nan"),
        ("eps", 0.0, r"eps: expected a number > 0, got 0.0"),
    ],
)
def test_bad_input_is_refused_by_name(name, bad, message):
    given = dict(zip(("keys", "values", "queries"), inputs(2, 6, 3, 4, 5)))
    with pytest.raises(ValueError, match=message):
        cr.slot_routing(**{**given, name: bad})
