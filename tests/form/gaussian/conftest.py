"""What tests of the Gaussian kernels get."""

import pytest


@pytest.fixture
def planned(monkeypatch):
    """Numbers of the plan, changed by name; launches are made anew."""
    pytest.importorskip("triton")
    from capsroute.form.gaussian import stored
    from capsroute.form.launches import gaussian_votes as plan

    def forget() -> None:
        walks = (plan.walk, plan.route_walk, plan.slopes_walk, plan.first_walk, plan.whole_walk, plan.columns)
        for made in (*walks, plan.over_betas, plan.over_plane, plan.put_together):
            made.cache_clear()
        stored._sequences.cache_clear()  # which a GPU keeps, and the interpreter does not make

    def change(**numbers: int) -> None:
        for name, number in numbers.items():
            monkeypatch.setattr(plan, name, number)
        forget()

    yield change
    forget()
