"""Results know the names and sizes of their axes, and can be written down."""

import json
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch

from capsroute.analysis import Named
from capsroute.analysis.named_tensors import along


@dataclass(frozen=True, eq=False)
class Heights(Named):
    axes: ClassVar = {"metres": ("person", "year"), "years": ("year",), "names": ("person",)}
    metres: torch.Tensor
    years: torch.Tensor
    names: torch.Tensor | None = None


def test_size_is_found_by_name():
    result = Heights(torch.rand(3, 2), torch.arange(2))
    assert (result.size("person"), result.size("year")) == (3, 2)
    with pytest.raises(ValueError, match="axis: expected one of person, year, got 'month'"):
        result.size("month")


def test_a_missing_axis_is_an_error():
    with pytest.raises(ValueError, match="metres: expected the axes person, year"):
        Heights(torch.rand(3), torch.arange(2))


def test_axes_of_one_name_have_one_size():
    with pytest.raises(ValueError, match="years: expected 2 along 'year' as elsewhere, got 5"):
        Heights(torch.rand(3, 2), torch.arange(5))


def test_saved_numbers_come_back_with_their_axes(tmp_path):
    result = Heights(torch.rand(3, 2), torch.arange(2))
    result.save(tmp_path / "heights.npz")
    with np.load(tmp_path / "heights.npz") as stored:
        assert json.loads(str(stored["axes"])) == {"metres": ["person", "year"], "years": ["year"]}
        np.testing.assert_array_equal(stored["metres"], result.metres.numpy())
        assert "names" not in stored


def test_axes_can_stand_with_the_fields():
    @dataclass(frozen=True, eq=False)
    class Weights(Named):
        grams: torch.Tensor = field(metadata=along("person, shoe size"))
        sizes: torch.Tensor = field(metadata=along("shoe size"))
        unit: str

    assert Weights.axes == {"grams": ("person", "shoe size"), "sizes": ("shoe size",)}
    assert Weights(torch.rand(3, 2), torch.arange(2), "g").size("shoe size") == 2
    with pytest.raises(ValueError, match="sizes: expected 2 along 'shoe size' as elsewhere, got 5"):
        Weights(torch.rand(3, 2), torch.arange(5), "g")
