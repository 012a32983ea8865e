import pytest
import torch

from capsroute.inference import Filter, list_filters, make_filter
from tests.inference.networks import OneLayer, make_batches, quiet_accumulate


@pytest.mark.parametrize("name", list_filters())
def test_every_filter_is_made_from_its_own_config(name):
    assert make_filter(make_filter(name).config()).config() == make_filter(name).config()


@pytest.mark.parametrize("options", [{"columns": "ground_truth"}, {"iteration": 2}, {"normalise": "none"}])
@pytest.mark.parametrize("name", ["similarity", "clustering"])
def test_every_filter_goes_with_every_option(name, options):
    master = quiet_accumulate(OneLayer(), make_batches(), filter=name, **options)
    assert master["capsules"].isfinite().all()
    assert master.how["filter"]["name"] == name


def test_a_filter_of_ones_own():
    class First(Filter):
        name = "first of each batch"

        def keep(self, examples):
            return torch.arange(len(examples.labels)) < 4

    model, first = OneLayer(), make_batches()[0]
    master = quiet_accumulate(model, [first], filter=First())
    alone = quiet_accumulate(model, [(first[0][:4], first[1][:4])])
    torch.testing.assert_close(master["capsules"], alone["capsules"], rtol=0, atol=1e-6)
    assert master.how["filter"] == {"name": "first of each batch"}


def test_refuses_unknown_options():
    with pytest.raises(ValueError, match="'correct' has options margin, got least"):
        make_filter({"name": "correct", "least": 1})
