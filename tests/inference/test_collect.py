import torch

import capsroute as cr
from tests.inference.networks import OneLayer, TwoLayers, make_batches


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
