"""Partial results added up, against float64: under the interpreter or on a GPU."""

import pytest
import torch

from tests.form.kernels import DEVICE, ROUNDING, error, needs_kernels, surrounded


@needs_kernels
@pytest.mark.parametrize("shape", [(3, 2, 5), (1030, 1, 5), (2, 41, 101)], ids=["few", "many parts", "many numbers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_sum_of_all_parts_scaled(dtype, shape, launched):
    from capsroute.form.rows.totals import total

    parts = surrounded(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE))
    found = total(parts, dtype, 0.5)
    assert found.dtype == dtype
    assert error(found, parts.double().sum(0) / 2) < ROUNDING[dtype]
    assert launched == ["add_parts"]


@needs_kernels
def test_one_part_that_is_it_already_launches_nothing(launched):
    from capsroute.form.rows.totals import total

    part = torch.ones(1, 2, 3, device=DEVICE)
    assert total(part).data_ptr() == part.data_ptr()
    assert not launched
