import pytest
import torch

from capsroute.inference import CorrectFilter, Examples

SCORES = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.1, 0.3, 0.6], [0.4, 0.5, 0.1]])
LABELS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("margin", "kept"),
    [(0.0, [True, False, False, True]), (0.2, [True, False, False, False])],
)
def test_keeps_what_is_right_by_a_margin(margin, kept):
    assert CorrectFilter(margin).keep(Examples(torch.zeros(4, 0), SCORES, LABELS)).tolist() == kept


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_refuses_other_margins(margin):
    with pytest.raises(ValueError, match="margin: expected a number >= 0"):
        CorrectFilter(margin)
