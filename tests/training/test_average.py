"""Averaged weights."""

import torch

from capsroute.training.average import averaged


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


def test_state_survives():
    model = torch.nn.Linear(2, 2)
    one, two = averaged(model, 0.9), averaged(torch.nn.Linear(2, 2), 0.9)
    one.update_parameters(model)
    two.load_state_dict(one.state_dict())
    assert two.n_averaged == 1
    assert torch.equal(two.module.weight, one.module.weight)
