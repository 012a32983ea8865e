"""Networks small enough to load at once: one digit, two digits, no decoder."""

import pytest
import torch

import capsroute as cr
from capsroute.explorer.network import Network


def network(objects: int = 1, seed: int = 0, **options) -> Network:
    torch.manual_seed(seed)
    model = cr.create_model("capsnet_small", **{"image_size": 8, "routing": "max_min", "std": 0.3, **options}).eval()
    samples = torch.randint(256, (4, *model.input_shape), dtype=torch.uint8)
    return Network(
        title="Small one",
        model=model,
        master=None,
        classes=tuple("0123456789"),
        samples=samples,
        labels=("3", "1", "4", "1"),
        objects=objects,
    )


@pytest.fixture
def one_digit() -> Network:
    return network()


@pytest.fixture
def two_digits() -> Network:
    return network(objects=2)
