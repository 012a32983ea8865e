import pytest
import torch
from torch import nn

from experiments.heads import HEADS, Refined, Slots, count, gru

SIZES = [(name, setting) for name in HEADS for setting in (0, 1)]


@pytest.mark.parametrize(("name", "setting"), SIZES)
def test_a_head_is_of_a_set_and_children_that_are_not_there_do_not_count(name, setting):
    torch.manual_seed(0)
    head = Refined(name, 32, 4, setting, 16_000)
    children, there = torch.randn(2, 9, 32), torch.ones(2, 9)
    there[:, 6:] = 0
    poses, evidence = head(children, there)
    assert poses.shape == (2, 4, 32)
    assert evidence.shape == (2, 4, 2)
    order = torch.randperm(9)
    other = torch.where(there[..., None] > 0, children, torch.randn(2, 9, 32))
    again = head(other[:, order], there[:, order])
    assert torch.allclose(poses, again.poses, atol=1e-4)
    assert torch.allclose(evidence, again.evidence, atol=1e-4)


@pytest.mark.parametrize("parents", [4, 5, 10])
def test_all_heads_have_as_many_parameters(parents):
    counts = [count(Refined(name, 32, parents, setting, 16_000)) for name, setting in SIZES]
    assert max(counts) <= 16_000
    assert min(counts) >= 0.99 * 16_000


def test_a_head_too_large_for_the_budget_is_refused():
    with pytest.raises(ValueError, match="budget: set_transformer alone has"):
        Refined("set_transformer", 32, 4, 1, 10_000)


def test_what_slots_do_here_is_what_their_layer_does():
    torch.manual_seed(0)
    head = Slots(32, 3, 0)
    children, there = torch.randn(2, 7, 32), (torch.rand(2, 7) > 0.3).float()
    assert torch.allclose(head(children, there).poses, head.layer(children, mask=there).poses.squeeze(2), atol=1e-5)
    cell, x, h = nn.GRUCell(4, 4), torch.randn(3, 4), torch.randn(3, 4)
    assert torch.allclose(gru(cell, x, h), cell(x, h), atol=1e-6)
