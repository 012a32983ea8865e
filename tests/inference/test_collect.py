import pytest
import torch
from torch import nn

import capsroute as cr
from tests.inference.networks import OneLayer, TwoLayers, make_batches, quiet_accumulate


def test_scores_do_not_depend_on_the_iteration_that_is_looked_at():
    torch.manual_seed(0)
    model, batches = TwoLayers("max_min"), make_batches(size=7)
    last, first = (list(cr.inference.collect(model, batches, iteration=n)) for n in (None, 1))
    for a, b in zip(last, first):
        assert torch.equal(a.scores, b.scores)
        assert (b.coefficients["stack.layers.0"] == 1).all()
        assert not torch.equal(a.coefficients["stack.layers.1"], b.coefficients["stack.layers.1"])


def test_last_iteration_by_number_is_the_last():
    torch.manual_seed(0)
    model, batches = OneLayer("dynamic"), make_batches()
    for a, b in zip(cr.inference.collect(model, batches), cr.inference.collect(model, batches, iteration=3)):
        assert torch.equal(a.coefficients["capsules"], b.coefficients["capsules"])


def test_layers_that_cannot_be_fast_can_be_looked_at():
    model = OneLayer("em")
    [observed, *_] = cr.inference.collect(model, make_batches())
    assert observed.coefficients["capsules"].shape == (16, 18, 4)


def test_gradients_stay_on_for_the_caller():
    for _ in cr.inference.collect(OneLayer(), make_batches()):
        assert torch.is_grad_enabled()


class Own(nn.Module):
    """A module of somebody else's, which knows nothing of coefficients; its layers are those of `OneLayer`."""

    def __init__(self, calls=1):
        super().__init__()
        ours = OneLayer()
        self.primary, self.capsules, self.calls = ours.primary, ours.capsules, calls

    def forward(self, images):
        for _ in range(self.calls):
            poses = self.capsules(self.primary(images).poses).poses
        return cr.routing.lengths(poses) if self.calls else images.flatten(1)[:, :4]


def test_a_module_of_ones_own_has_fast_inference_too():
    torch.manual_seed(0)
    own, ours, batches = Own(), OneLayer(), make_batches()
    ours.load_state_dict(own.state_dict(), strict=False)
    [expected, *_], [found, *_] = cr.inference.collect(ours, batches), cr.inference.collect(own, batches)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.coefficients["capsules"], expected.coefficients["capsules"])
    master = quiet_accumulate(own, batches, num_classes=4)
    assert torch.equal(master["capsules"], quiet_accumulate(ours, batches)["capsules"])
    fast, folded = cr.inference.with_coefficients(own, master), cr.inference.fold(own, master)
    torch.testing.assert_close(folded(batches[0][0]), fast(batches[0][0]))
    assert not own.capsules._forward_hooks  # nothing is left behind
    assert not own.capsules._forward_pre_hooks


@pytest.mark.parametrize(("calls", "says"), [(2, "'capsules' to route once"), (0, "capsules was not")])
def test_a_layer_of_ones_own_module_routes_once_an_image(calls, says):
    with pytest.raises(ValueError, match=f"model: expected .*{says}"):
        list(cr.inference.collect(Own(calls), make_batches()))


def test_the_number_of_classes_of_a_module_of_ones_own_is_asked_for():
    with pytest.raises(ValueError, match="num_classes: expected how many, as Own has no num_classes, got None"):
        cr.inference.accumulate(Own(), make_batches())


def test_what_a_module_of_ones_own_gives_its_layers_by_place_arrives():
    class Free(nn.Module):
        """Its layer has as many parents as it is told, in fourth place."""

        def __init__(self):
            super().__init__()
            self.layer = cr.layers.HeinsenRouting(5, None, (2, 2), (2, 2))

        def forward(self, x):
            return self.layer(x, torch.zeros(len(x), 5), False, 3).scores

    torch.manual_seed(0)
    [seen] = cr.inference.collect(Free(), [(torch.randn(2, 5, 2, 2), torch.tensor([0, 2]))])
    assert seen.coefficients["layer"].shape == (2, 5, 3)
    assert seen.scores.shape == (2, 3)


def test_layers_of_ones_own_module_that_step_together_are_named():
    class Together(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [cr.layers.CapsuleLinear(4, count, (2, 2), (2, 2), "inverted_attention") for count in (4, 3)]
            self.stack = cr.layers.CapsuleStack(layers, "concurrent", 2)

        def forward(self, poses):
            return self.stack(poses).poses.sum((-1, -2))

    with pytest.raises(ValueError, match=r"stack\.layers\.0, .* a concurrent stack asks its layers for steps"):
        list(cr.inference.collect(Together(), [(torch.zeros(2, 4, 2, 2), torch.tensor([0, 1]))]))
