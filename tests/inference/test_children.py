import pytest
import torch

import capsroute as cr
from capsroute.inference.children import class_scores
from tests.inference.networks import OneLayer, TwoLayers, make_batches, quiet_accumulate


def learner(model=None):
    torch.manual_seed(0)
    model = model or OneLayer()
    model.default_loss = "margin"
    return model


def learned(model, batches, **options):
    """C and W after learning both."""
    fast = cr.inference.finetune(model, "uniform", batches, learn="coefficients+transforms", **options)
    return fast.capsules.routing.coefficients, fast.capsules.W


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


class Shifted(list):
    """Batches that an epoch's number changes, as augmentation does."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ((images + 0.1 * self.epoch, labels) for images, labels in super().__iter__())


def test_learning_on_kept_children_is_learning_on_images():
    model, batches = learner(), make_batches()
    children = cr.inference.keep_children(model, batches)
    assert_same(learned(model, batches, epochs=1), learned(model, children, epochs=1))


def test_several_epochs_over_one_view_are_those_over_the_images():
    """One batch of all, so that the order in which later epochs take the examples does not matter; in float64, because
    Adam makes a whole step of the rounding of a gradient that is nearly zero."""
    model, batches = learner().double(), [(images.double(), labels) for images, labels in make_batches(batch=40)]
    assert_same(learned(model, batches, epochs=5), learned(model, cr.inference.keep_children(model, batches), epochs=5))


def test_each_view_is_a_pass_of_its_own():
    model, batches = learner(), Shifted(make_batches())
    children = cr.inference.keep_children(model, batches, views=2)
    first, second = (torch.cat([poses for poses, _ in children.epoch(epoch)]) for epoch in range(2))
    assert not torch.allclose(first, second)
    batches.set_epoch(1)
    expected = [model.primary(images).poses.permute(0, 1, 4, 5, 2, 3).flatten(1, 3) for images, _ in batches]
    torch.testing.assert_close(second, torch.cat(expected))


def test_later_turns_have_another_order_and_the_same_examples():
    children = cr.inference.keep_children(learner(), make_batches())
    turns = [list(children.epoch(epoch)) for epoch in range(3)]
    assert [len(labels) for _, labels in turns[2]] == [16, 16, 8]
    assert len(children) == 3
    flat = [torch.cat([poses for poses, _ in turn]).flatten(1) for turn in turns]
    assert not torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[1], flat[2])
    torch.testing.assert_close(flat[0].sum(1).sort().values, flat[2].sum(1).sort().values)
    model = learner()
    pairs = {(round(float(poses.sum()), 5), int(label)) for turn in turns for b in turn for poses, label in zip(*b)}
    assert len(pairs) == 40, "an example has lost its label"
    assert class_scores(model, "capsules", turns[0][0][0]).shape == (16, 4)


def test_half_precision_keeps_half_and_learns_the_same_to_its_rounding():
    model, batches = learner(), make_batches()
    half = cr.inference.keep_children(model, batches, dtype=torch.float16)
    assert half.views[0].poses.dtype == torch.float16
    for one, other in zip(learned(model, batches, epochs=1), learned(model, half, epochs=1), strict=True):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0)


def test_a_network_under_autocast_is_kept_through_too():
    model = cr.create_model("capsnet_small", image_size=8)
    batches = [(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(4))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(batches[0][0]).scores.dtype == torch.bfloat16
        children = cr.inference.keep_children(model, batches)
    exact = cr.inference.keep_children(model, batches)
    torch.testing.assert_close(children.views[0].poses.float(), exact.views[0].poses, atol=0.02, rtol=0.02)


def test_nothing_of_the_model_changes():
    model = learner().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cr.inference.keep_children(model, make_batches())
    assert model.training
    assert not model.capsules._forward_pre_hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_lower_layers_that_route_stay_dynamic_and_are_kept_through():
    model, batches = learner(TwoLayers()), make_batches(size=7)
    top = quiet_accumulate(model, batches, layers=["stack.layers.1"])
    children = cr.inference.keep_children(model, batches)
    fast = [cr.inference.finetune(model, top, data, epochs=1) for data in (batches, children)]
    assert_same(*([model.stack.layers[1].routing.coefficients] for model in fast))


def test_refuses_to_learn_what_is_below_the_children():
    model, batches = learner(TwoLayers()), make_batches(size=7)
    children = cr.inference.keep_children(model, batches)
    with pytest.raises(ValueError, match=r"learn layer 'stack\.layers\.1' alone, not layers stack\.layers\.0, stack"):
        cr.inference.finetune(model, "uniform", children)
    model = learner()
    with pytest.raises(ValueError, match="alone, not the whole network"):
        cr.inference.finetune(model, "uniform", cr.inference.keep_children(model, make_batches()), learn="all")


def test_refuses_scores_that_are_not_the_class_layers():
    class Louder(OneLayer):
        def forward(self, images, labels=None, return_coefficients=False):
            output = super().forward(images, labels, return_coefficients)
            return output._replace(scores=output.scores * images.mean((1, 2, 3))[:, None])

    with pytest.raises(ValueError, match="the class layer alone does not give its scores"):
        cr.inference.keep_children(learner(Louder()), make_batches())


@pytest.mark.parametrize("views", [0, -1, True, 1.5])
def test_refuses_views_that_are_not_a_number_of_passes(views):
    with pytest.raises(ValueError, match="views: expected a whole number from 1"):
        cr.inference.keep_children(learner(), make_batches(), views=views)


def test_refuses_batches_that_are_gone_after_one_view():
    with pytest.raises(ValueError, match=r"batches: .* 2 times, got a one-way iterator"):
        cr.inference.keep_children(OneLayer(), iter(make_batches()), views=2)


def test_refuses_no_batches():
    with pytest.raises(ValueError, match="batches: expected at least one"):
        cr.inference.keep_children(learner(), [])
