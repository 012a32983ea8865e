"""Optimisers by name, and schedules at the steps that papers state."""

import pytest
import torch

import capsroute as cr
from capsroute.training.optimisers import averaged, learning_rate_factor, make_optimiser
from capsroute.training.sections import OptimiserSection, ScheduleSection

LINEAR = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("radam", torch.optim.RAdam), ("sgd", torch.optim.SGD)],
)
def test_optimiser_by_name(name, kind):
    optimiser = make_optimiser(LINEAR, OptimiserSection(name=name, learning_rate=0.02, weight_decay=0.1))
    assert type(optimiser) is kind
    assert [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups] == [(0.02, 0.1), (0.02, 0.0)]


def test_sgd_has_momentum_and_nesterov():
    optimiser = make_optimiser(LINEAR, OptimiserSection(name="sgd", momentum=0.8, nesterov=True))
    assert (optimiser.defaults["momentum"], optimiser.defaults["nesterov"]) == (0.8, True)


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="model: expected parameters"):
        make_optimiser(torch.nn.Linear(1, 1).requires_grad_(False), OptimiserSection())


def spared(model):
    """Names of the parameters that weight decay leaves alone."""
    groups = make_optimiser(model, OptimiserSection(weight_decay=0.1)).param_groups
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    return {name for name, p in model.named_parameters() if id(p) in free}


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (cr.layers.PoseLayerNorm(4, 4), {"weight", "bias"}),
        (torch.nn.LayerNorm((4, 4)), {"weight", "bias"}),
        (cr.layers.CapsuleLinear(6, 3, 8, 16, bias=True), {"bias"}),
        (cr.layers.HeinsenRouting(6, 3, (4, 4), (4, 4)), {"bias", "routing.beta_use", "routing.beta_ignore"}),
        (cr.layers.CapsuleLinear(6, 3, 8, 16, routing={"name": "fast", "learned": True}), {"routing.coefficients"}),
    ],
    ids=["norm of poses", "torch's norm", "bias of votes", "betas", "learned coefficients"],
)
def test_weight_decay_spares_what_has_no_reason_to_be_small_whatever_its_axes(layer, names):
    assert spared(layer) == names


def test_weight_decay_acts_on_transforms_and_convolutions():
    model = cr.create_model("tsai_simple_cifar10")
    decayed = {name for name, _ in model.named_parameters()} - spared(model)
    assert decayed
    assert all(name.endswith((".W", ".weight")) and "norm" not in name for name in decayed)


def factors(steps, total=1000, epoch_steps=10, **settings):
    return [learning_rate_factor(ScheduleSection(**settings), step, total, epoch_steps) for step in steps]


def test_constant():
    assert factors([0, 999], name="constant") == [1, 1]


def test_exponential_multiplies_once_an_epoch():
    assert factors([0, 10, 25], name="exponential", decay=0.9) == pytest.approx([1, 0.9, 0.9**2.5])


def test_step_drops_at_the_beginning_of_its_epochs():
    steps = [0, 1499, 1500, 2499, 2500]
    assert factors(steps, 3500, name="step", milestones=[150, 250]) == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_warmup_is_linear_and_cosine_comes_back():
    settings = {"name": "warmup_cosine", "warmup": 0.1, "start": 0.02, "end": 0.02}
    found = factors([0, 50, 100, 550, 1000], 1001, **settings)
    assert found == pytest.approx([0.02, 0.51, 1.0, 0.51, 0.02])


def test_one_cycle_rises_and_falls_to_its_ends():
    settings = {"name": "one_cycle", "warmup": 0.25, "start": 0.04, "end": 0.0}
    found = factors([0, 125, 250, 1000], 1001, **settings)
    assert found == pytest.approx([0.04, 0.52, 1.0, 0.0], abs=1e-12)


def test_single_step_has_a_rate():
    assert factors([0], 1, name="one_cycle", warmup=0.0) == [1.0]


def test_average_follows_with_its_decay():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    average = averaged(model, decay=0.75)
    average.n_averaged.fill_(1000)  # past the quick start
    before = model[0].weight.item()
    with torch.no_grad():
        model[0].weight.add_(2.0)
        model[1].num_batches_tracked.add_(7)
    average.update_parameters(model)
    assert torch.isclose(average.module[0].weight, torch.tensor(before + 0.5))
    assert average.module[1].num_batches_tracked == 7


def test_start_is_soon_forgotten():
    model = torch.nn.Linear(1, 1)
    average = averaged(model, decay=0.9999)
    with torch.no_grad():
        model.weight.fill_(5.0)
    for _ in range(60):
        average.update_parameters(model)
    assert abs(average.module.weight.item() - 5.0) < 0.01


def test_average_does_not_change_what_it_averages():
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    average = averaged(model, 0.9)
    average.update_parameters(model)
    assert torch.equal(model.weight, before)
    assert not any(parameter.requires_grad for parameter in average.module.parameters())
