"""Every routing in every layer works, forwards and backwards, or is an error that says why."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from capsroute.layers import CapsuleConv2d, CapsuleGlobal2d, CapsuleLinear, CapsuleStack
from tests.layers.filled import ROUTINGS, filled, numbers, scores_for

LAYERS = {
    "linear": lambda routing: CapsuleLinear(2 * 5 * 5, 3, (2, 4), (2, 5), routing=routing),
    "linear, any number of children": lambda routing: CapsuleLinear(None, 3, (2, 4), (2, 5), routing=routing),
    "linear, vote biases": lambda routing: CapsuleLinear(50, 3, (2, 4), (2, 5), routing=routing, bias=True),
    "convolution": lambda routing: CapsuleConv2d(2, 3, (2, 4), (2, 5), routing=routing),
    "padded convolution": lambda routing: CapsuleConv2d(2, 3, (2, 4), (2, 5), stride=2, padding=1, routing=routing),
    "global": lambda routing: CapsuleGlobal2d(2, 3, (2, 4), (2, 5), routing=routing),
    "global, no coordinates": lambda routing: CapsuleGlobal2d(2, 3, (2, 4), (2, 5), routing=routing, coordinates=False),
}
REFUSED = {
    (layer, "fast"): "the number of children must be fixed"
    for layer in ("linear, any number of children", "global", "global, no coordinates")
}
CASES = [(layer, routing) for layer in LAYERS for routing in ROUTINGS]


@pytest.mark.parametrize(("kind", "routing"), CASES)
def test_it_works_or_says_why(kind, routing):
    if (kind, routing) in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[kind, routing]):
            LAYERS[kind](routing)
        return
    layer, poses = filled(LAYERS[kind](routing)), numbers(2, 2, 2, 4, 5, 5).requires_grad_()
    routed = layer(poses, scores_for(layer, 2, 2, 5, 5), return_coefficients=True)
    loss = routed.poses.square().sum() + (0 if routed.scores is None else routed.scores.sum())
    loss.backward()
    assert poses.grad.isfinite().all()
    assert poses.grad.abs().sum() > 0
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("routing", ROUTINGS)
def test_two_layers_stack(routing):
    stack = CapsuleStack(
        [
            CapsuleConv2d(2, 3, (2, 4), (2, 4), routing=routing),
            CapsuleLinear(3 * 3 * 3, 4, (2, 4), (2, 4), routing=routing),
        ]
    )
    routed = filled(stack)(numbers(2, 2, 2, 4, 5, 5))
    assert routed.poses.shape == (2, 4, 2, 4)
    assert routed.poses.isfinite().all()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_scores_of_no_children_mean_that_all_are_there(routing):
    layer = filled(LAYERS["linear"](routing))
    poses = numbers(2, 50, 2, 4)
    always = {None: None, "logit": torch.full((2, 50), torch.inf), "probability": torch.ones(2, 50)}
    given = always[layer.routing.score_kind]
    assert torch.equal(layer(poses).poses, layer(poses, None if given is None else given.double()).poses)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_checkpointed_layer_has_the_same_gradients(routing, reentrant):
    layer, poses = filled(LAYERS["linear"](routing)), numbers(2, 50, 2, 4).requires_grad_()
    inputs = (poses, *layer.parameters())
    as_it_is = torch.autograd.grad(layer(poses).poses.square().sum(), inputs, allow_unused=True)
    layer.zero_grad()
    checkpoint(lambda x: layer(x).poses, poses, use_reentrant=reentrant).square().sum().backward()
    for tensor, expected in zip(inputs, as_it_is):
        assert tensor.grad is expected is None or torch.equal(tensor.grad, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_layer_in_half_precision_trains_on_a_cpu(routing, batch, dtype):
    layer = filled(LAYERS["linear"](routing)).to(dtype)
    routed = layer(numbers(batch, 50, 2, 4).to(dtype))
    routed.poses.float().square().sum().backward()
    assert routed.poses.dtype == dtype
    assert layer.W.grad.dtype == dtype
    assert layer.W.grad.isfinite().all()
