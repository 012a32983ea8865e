"""The thirteen algorithms are where a reader looks for them."""

from pathlib import Path

import pytest

import capsroute as cr
from capsroute.layers import list_routings

DOCS = Path(__file__).parents[2] / "docs"
# What `routing=` takes, and the two that are layers of their own.
ALGORITHMS = {
    "dynamic", "max_min", "fast", "pooling", "inverted_attention", "em", "heinsen", "uniform", "self_routing",
    "self_attention", "vb", "SlotAttention", "VectorRouting",
}  # fmt: skip


def test_there_are_thirteen():
    ours = {name for name in list_routings() if cr.layers.make_router(name).__module__.startswith("capsroute.")}
    assert ours | {"SlotAttention", "VectorRouting"} == ALGORITHMS
    assert len(ALGORITHMS) == 13


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_is_in_the_table_of_which_routing(name):
    rows = [line for line in (DOCS / "which_routing.md").read_text().splitlines() if line.startswith("|")]
    assert any(f"`{name}`" in row or f"`cr.layers.{name}`" in row for row in rows)
