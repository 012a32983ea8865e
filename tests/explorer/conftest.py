"""Exhibits small enough to load at once: one digit, two digits, no decoder."""

import pytest
import torch

import capsroute as cr
from capsroute.explorer.exhibit import Exhibit


def exhibit(objects: int = 1, seed: int = 0, **options) -> Exhibit:
    torch.manual_seed(seed)
    model = cr.create_model("capsnet_small", **{"image_size": 8, "routing": "max_min", "std": 0.3, **options}).eval()
    samples = torch.randint(256, (4, *model.input_shape), dtype=torch.uint8)
    return Exhibit(
        title="Small one",
        model=model,
        master=None,
        classes=tuple("0123456789"),
        samples=samples,
        labels=("3", "1", "4", "1"),
        objects=objects,
    )


@pytest.fixture
def one_digit() -> Exhibit:
    return exhibit()


@pytest.fixture
def two_digits() -> Exhibit:
    return exhibit(objects=2)
