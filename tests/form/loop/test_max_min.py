"""Max-min normalisation in every kernel that has it: what is no number shows; under the interpreter or on a GPU."""

import pytest
import torch

from capsroute.form.launches.lists import loop_plan
from capsroute.form.loop.operators import LOOP
from tests.form.kernels import Sizes, needs_kernels
from tests.form.loop.cases import operands

SMALL = Sizes("more parents than two", 2, 5, 4, 2, 3, 4)
# What runs, and how it is made to run here.
PATHS = {
    "resident_loop": (),
    "split_step": ("parents_shared_out",),
    "kept_walk": ("votes_kept",),
    "forward_pass": ("in_passes",),
    "normalise_plane": ("in_passes", "planes"),
    "normalise_plane, walked": ("in_passes", "planes", "walked"),
    "shared_loop": (),
    "shared_walk": ("children_shared_out",),
}


@pytest.fixture
def planes(monkeypatch):
    """Parents in tiles, however few."""
    monkeypatch.setattr("capsroute.form.launches.lists.MOST_COLUMNS", 0)
    loop_plan.cache_clear()
    yield
    loop_plan.cache_clear()


@pytest.fixture
def walked(monkeypatch) -> None:
    """Two parents at a time are normalised, of two samples."""
    monkeypatch.setattr("capsroute.form.launches.lists.MOST_LOGITS", 4)


@needs_kernels
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_no_number_in_one_parents_transforms_shows_in_all_that_competes_with_it(request, launched, path, value):
    """Maxima and minima pass over NaN: other parents had coefficients, poses and gradients as if nothing was wrong."""
    for name in PATHS[path]:
        request.getfixturevalue(name)
    drawn = operands(SMALL)
    u, W = drawn["u"].clone(), drawn["W"][: 1 if "shared" in path else None].clone()
    W[0, 1, 0, 0] = value
    found = []
    for form in (lambda *given: LOOP.attempt("auto", *given), LOOP.plain):
        leaves = u.clone().requires_grad_(), W.clone().requires_grad_()
        poses, c = form(*leaves, 3, False, 0.0, 1.0, 1.0, False, True, None, "kept" in path)
        found.append([poses, c, *torch.autograd.grad(poses.sum() + c.sum(), leaves)])
        assert path.split(",")[0] in launched
    for mine, wanted in zip(*found, strict=True):
        assert torch.equal(mine.isfinite(), wanted.isfinite())
        assert not mine.isfinite().all()
