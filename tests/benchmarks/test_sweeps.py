"""Sweeps: one size doubled at a time, and the exponent that fits."""

import math

import pytest

from benchmarks import sweeps
from benchmarks.sweeps import SweepRow, SweepTask, exponent, sweep
from capsroute.bench.cases import Case
from capsroute.bench.measure import Row

CASE = Case("dynamic", "test", 2, 6, 3, k=4, o=4)


def test_a_sweep_doubles_one_size():
    assert [case.parents for case in sweep(CASE, "parents", 3)] == [3, 6, 12, 24]
    assert [(case.k, case.o, case.children) for case in sweep(CASE, "pose", 1)] == [(4, 4, 6), (8, 8, 6)]


def test_the_exponent_leaves_out_what_was_not_measured():
    assert exponent([1, 2, 4], [5.0, 10.0, math.nan]) == pytest.approx(1.0)
    assert math.isnan(exponent([1, 2], [1.0, math.nan]))


def test_exponents_are_fitted_a_sweep():
    def row(place: int, axis: str, time: float) -> SweepRow:
        case = ("case", "", "dynamic", 1, 6, 3, "", 3, "float32", "capsroute")
        return SweepRow(*case, step_ms=time, peak_mib=2.0**place, axis=axis, doublings=place)

    found = sweeps.fitted([row(p, "batch", 4.0**p) for p in range(4)] + [row(p, "pose", 7.0) for p in range(4)], print)
    assert [round(each.time_exponent, 6) for each in found] == [2.0] * 4 + [0.0] * 4
    assert [round(each.memory_exponent, 6) for each in found] == [1.0] * 8


def swept(times: dict[str, list[float]], monkeypatch) -> list[tuple[str, int]]:
    """Implementation and doublings of the rows of a sweep whose steps take so long, NaN where memory runs out."""

    def measured(case, dtype, device, routes, quick):
        for name in routes:
            time = times[name][case.batch.bit_length() - 1]
            note = "out of memory" if math.isnan(time) else ""
            yield Row(case.name, "", "dynamic", case.batch, 6, 3, "", 3, "float32", name, step_ms=time, note=note)

    monkeypatch.setattr(sweeps, "measure_case", measured)
    cases = [Case("dynamic", "test", 2**power, 6, 3) for power in range(4)]
    return [(row.implementation, row.doublings) for row in SweepTask("batch", cases, "float32", "cuda").measure()]


def test_a_sweep_goes_on_until_memory_or_patience_is_out(monkeypatch):
    found = swept({"capsroute": [1.0, 2.0, 51.0, 99.0], "textbook": [1.0, math.nan, 1.0, 1.0]}, monkeypatch)
    # What ended it is a row, too.
    assert found == [("capsroute", 0), ("textbook", 0), ("capsroute", 1), ("textbook", 1), ("capsroute", 2)]
