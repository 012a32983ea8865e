"""Slot attention: its size, its steps against `slot_routing`, changing numbers of slots, masks and gradients."""

import math

import pytest
import torch

import capsroute as cr

SlotAttention = cr.layers.SlotAttention


def made(**options):
    torch.manual_seed(0)
    return SlotAttention(**{"slots": 4, "features": 6, "hidden": 8, **options}).double()


def inputs(b=2, i=9, d=6):
    return torch.randn(b, i, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def first(b=2, j=4, d=6):
    return torch.randn(b, j, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_the_published_size():
    assert sum(parameter.numel() for parameter in SlotAttention(7, 64).parameters()) == 54_336


@pytest.mark.parametrize("update", ["gru", None])
@pytest.mark.parametrize("hidden", [8, None])
@pytest.mark.parametrize("bias", [False, True])
def test_each_iteration_is_one_step_of_the_function(update, hidden, bias):
    layer, x, slots = made(update=update, hidden=hidden, bias=bias), inputs(), first()
    routed = layer(x, first=slots, return_coefficients=True)
    normed = layer.norm_inputs(x)
    for _ in range(3):
        step = cr.slot_routing(
            layer.to_keys(normed), layer.to_values(normed), layer.to_queries(layer.norm_slots(slots))
        )
        new = step.poses.squeeze(2)
        slots = new if update is None else torch.stack([layer.update(new[:, j], slots[:, j]) for j in range(4)], 1)
        slots = slots if hidden is None else slots + layer.mlp(slots)
    torch.testing.assert_close(routed.poses.squeeze(2), slots, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(routed.coefficients, step.coefficients, rtol=1e-12, atol=1e-12)


def test_the_number_of_slots_may_change_at_call_time():
    layer = made()
    assert layer(inputs()).poses.shape == (2, 4, 1, 6)
    assert layer(inputs(), slots=1).poses.shape == (2, 1, 1, 6)
    assert layer(inputs(), slots=11).poses.shape == (2, 11, 1, 6)


def test_slots_start_from_one_distribution_or_from_their_own():
    layer = made()
    with torch.no_grad():
        layer.mean.fill_(3.0)
        layer.log_deviation.fill_(math.log(0.5))
    drawn = layer.first_slots(500)
    assert abs(drawn.mean().item() - 3) < 0.05
    assert abs(drawn.std().item() - 0.5) < 0.05
    learned = made(start="learned")
    torch.testing.assert_close(learned(inputs()).poses, learned(inputs()).poses, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"slots: a learned start has one vector for each of 4 slots, got 5"):
        learned(inputs(), slots=5)


def test_order_of_slots_and_of_inputs():
    layer, x, start = made(), inputs(), first()
    order, shuffle = [2, 0, 3, 1], torch.randperm(9, generator=torch.Generator().manual_seed(0))
    plain, moved = layer(x, first=start).poses, layer(x[:, shuffle], first=start[:, order]).poses
    torch.testing.assert_close(moved, plain[:, order], rtol=1e-12, atol=1e-12)


def test_masked_inputs_are_not_there_whatever_stands_in_them():
    layer, x = made(), inputs()
    mask = torch.arange(9).expand(2, -1) < 5
    spoilt = x.clone()
    spoilt[:, 5:] = math.nan
    masked = layer(spoilt, mask, first=first(), return_coefficients=True)
    torch.testing.assert_close(masked.poses, layer(x[:, :5], first=first()).poses, rtol=1e-12, atol=1e-12)
    assert (masked.coefficients[:, 5:] == 0).all()


def test_a_mask_that_hides_every_input_gives_finite_slots_and_gradients():
    layer, x = made(), inputs().requires_grad_()
    mask = torch.arange(9).expand(2, -1) < torch.tensor([[0], [9]])
    poses = layer(x, mask).poses
    assert poses.isfinite().all()
    gradients = torch.autograd.grad(poses.square().sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("start", ["gaussian", "learned"])
def test_stopped_gradients_change_no_value_and_reach_every_parameter(start):
    layer, stopped = made(start=start), made(start=start, stop_gradient=True)
    stopped.load_state_dict(layer.state_dict())
    torch.testing.assert_close(stopped(inputs(), first=first()).poses, layer(inputs(), first=first()).poses)
    gradients = torch.autograd.grad(stopped(inputs()).poses.square().sum(), list(stopped.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    # The last step alone, from slots that are constants.
    start_at = first().requires_grad_()
    ours = torch.autograd.grad(stopped(inputs(), first=start_at).poses.square().sum(), start_at)[0]
    with torch.no_grad():
        almost = made(start=start, iterations=2)
        almost.load_state_dict(layer.state_dict())
        before = almost(inputs(), first=first()).poses.squeeze(2)
    once = made(start=start, iterations=1)
    once.load_state_dict(layer.state_dict())
    before.requires_grad_()
    theirs = torch.autograd.grad(once(inputs(), first=before).poses.square().sum(), before)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    layer = made(features=3, hidden=4)
    x, start = inputs(d=3).requires_grad_(), first(d=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, s: layer(x, first=s).poses, (x, start), fast_mode=True)


def test_inputs_of_another_width():
    assert made(in_features=5)(inputs(d=5)).poses.shape == (2, 4, 1, 6)


def test_compile_and_export():
    layer = made()
    compiled = torch.compile(lambda x, s: layer(x, first=s).poses, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs(), first()), layer(inputs(), first=first()).poses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, r"slots: expected a whole number >= 1, got 0"),
        ({"iterations": 0}, r"iterations: expected a whole number >= 1, got 0"),
        ({"hidden": 0}, r"hidden: expected a whole number >= 1, got 0"),
        ({"start": "zero"}, r"start: expected one of .*got 'zero'"),
        ({"update": "lstm"}, r"update: expected one of .*got 'lstm'"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_bad_input_is_refused_by_name():
    layer = made()
    with pytest.raises(ValueError, match=r"inputs: expected \[b,i,6\], got \[2, 9, 5\]"):
        layer(inputs(d=5))
    with pytest.raises(ValueError, match=r"first: expected \[2,j,6\], got \[2, 4, 5\]"):
        layer(inputs(), first=first(d=5))
    with pytest.raises(ValueError, match=r"mask: expected shape \(2, 9\) \[b,i\], got \(2, 8\)"):
        layer(inputs(), torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"slots: expected a whole number >= 1, got 0"):
        layer(inputs(), slots=0)
    with pytest.raises(ValueError, match=r"inputs: expected torch.float\d+ on cpu, as the layer is, got torch.float16"):
        layer(inputs().half())


def test_a_mask_that_is_added_to_logits_is_refused():
    with pytest.raises(ValueError, match=r"mask: expected probabilities in \[0, 1\], got -1000000000.0 at \[0, 2\]"):
        SlotAttention(2, 4)(torch.randn(1, 3, 4), mask=torch.tensor([[0.0, 0.0, -1e9]]))


@pytest.mark.parametrize("update", ["gru", None])
def test_gradients_sample_by_sample(update):
    layer, x = made(start="learned", update=update), inputs()
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def one(parameters, row):
        return torch.func.functional_call(layer, parameters, (row[None],)).poses.square().sum()

    found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(parameters, x)
    for row in range(2):
        layer.zero_grad()
        one(dict(layer.named_parameters()), x[row]).backward()
        for name, parameter in layer.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(found[name][row], expected)
