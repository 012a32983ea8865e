"""Max-min routing starts with every coefficient at one; layers must train all the same, from any reasonable scale."""

import pytest
import torch
from torch import nn

import capsroute as cr


def accuracy_after_training(router: cr.layers.Router, std: float | None) -> float:
    """An epoch on scikit-learn's digits, 1152 primary capsules straight from the pixels."""
    torch.manual_seed(0)
    train, test = cr.data.load("digits"), cr.data.load("digits", "test")
    primary = cr.layers.PrimaryCapsules(1, 32, 8, kernel_size=3)
    capsules = cr.layers.CapsuleLinear(1152, 10, 8, 16, routing=router, std=std)
    network = nn.ModuleList([primary, capsules])
    optimiser = torch.optim.Adam(network.parameters())
    for images, labels in cr.data.Batches(train, 16, seed=0):
        lengths = cr.routing.lengths(capsules(primary(images).poses).poses)
        optimiser.zero_grad()
        cr.losses.margin(lengths, labels).backward()
        optimiser.step()
    with torch.no_grad():
        poses = capsules(primary(test.images / 255).poses).poses
    return (cr.routing.lengths(poses).argmax(1) == test.labels).float().mean().item()


@pytest.mark.parametrize("std", [None, 0.001, 0.01], ids=["default", "smaller", "larger"])
def test_layers_train_from_every_reasonable_scale(std):
    assert accuracy_after_training(cr.layers.MaxMinRouter(), std) > 0.8


@pytest.mark.slow
def test_gradients_through_all_iterations_are_what_the_default_avoids():
    assert accuracy_after_training(cr.layers.MaxMinRouter(stop_gradient=False), None) < 0.8
