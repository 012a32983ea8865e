"""Averaged weights."""

import torch

from capsroute.training.average import WeightAverage


def test_average_follows_with_its_decay():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    average = WeightAverage(model, decay=0.75)
    average.updates = 1000  # past the quick start
    before = model[0].weight.item()
    with torch.no_grad():
        model[0].weight.add_(2.0)
        model[1].num_batches_tracked.add_(7)
    average.update(model)
    assert torch.isclose(average.model[0].weight, torch.tensor(before + 0.5))
    assert average.model[1].num_batches_tracked == 7


def test_start_is_soon_forgotten():
    model = torch.nn.Linear(1, 1)
    average = WeightAverage(model, decay=0.9999)
    with torch.no_grad():
        model.weight.fill_(5.0)
    for _ in range(60):
        average.update(model)
    assert abs(average.model.weight.item() - 5.0) < 0.01


def test_average_does_not_change_what_it_averages():
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    average = WeightAverage(model, 0.9)
    average.update(model)
    assert torch.equal(model.weight, before)
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_state_survives():
    model = torch.nn.Linear(2, 2)
    one, two = WeightAverage(model, 0.9), WeightAverage(torch.nn.Linear(2, 2), 0.9)
    one.update(model)
    two.load_state_dict(one.state_dict())
    assert two.updates == 1
    assert torch.equal(two.model.weight, one.model.weight)
