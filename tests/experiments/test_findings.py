"""What the page says in words is what the CSVs hold."""

import re
from math import isfinite
from pathlib import Path
from statistics import mean, stdev

import pytest

from experiments.figures import by_clutter, curves, read_matched
from experiments.readout import summary
from experiments.training import read
from tools.evidence import collect

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "results" / "when_routing_helps"
PAGE = " ".join((REPOSITORY / "docs" / "when_routing_helps.md").read_text(encoding="utf-8").split())


def said(pattern):
    """The numbers of the one place that a pattern finds."""
    found = re.findall(pattern, PAGE)
    assert len(found) == 1, f"{pattern}: {len(found)} places"
    return [float(number) for number in (found[0] if isinstance(found[0], tuple) else found)]


@pytest.fixture(scope="module")
def ari():
    return by_clutter(read(RESULTS / "constellations.csv"), "ari")


NUMBER = r"(\d+\.\d+)"


def test_how_heads_fall_as_clutter_grows(ari):
    def at(head, clutter):
        return round(mean(ari["shifted", head][clutter]), 2)

    fall = rf"fall from an ARI of {NUMBER} and {NUMBER} without clutter to {NUMBER} and {NUMBER} with 32"
    assert said(fall) == [at("mean", 0), at("uniform", 0), at("mean", 32), at("uniform", 32)]
    routed = (
        rf"pooling falls from {NUMBER} to {NUMBER}, EM from {NUMBER} to {NUMBER}, Heinsen's from {NUMBER} to {NUMBER}"
    )
    assert said(routed) == [at(head, clutter) for head in ("pooling", "em", "heinsen") for clutter in (0, 32)]
    kept = [mean(ari["shifted", h][32]) / mean(ari["shifted", h][0]) for h in ("pooling", "em", "heinsen", "mean")]
    assert said(r"keep more \((\d+), (\d+) and (\d+) %, a mean (\d+) %\)") == [round(100 * share) for share in kept]


def test_what_agreement_adds_to_the_gate(ari):
    gains = [
        mean(ari["shifted", head][clutter]) - mean(ari["shifted", "self_routing"][clutter])
        for head in ("em", "heinsen")
        for clutter in (8, 32)
    ]
    assert said(rf"Agreement itself adds {NUMBER} to {NUMBER} to the gate") == [
        round(min(gains), 2),
        round(max(gains), 2),
    ]


def test_heads_that_add_nothing_to_the_gate(ari):
    def at(head, clutter):
        values = ari["shifted", head][clutter]
        return [round(mean(values), 2), round(stdev(values), 2)]

    falls = r"variational Bayes falls from (\S+) ± (\S+) to (\S+) ± (\S+), below"
    assert said(falls) == [*at("vb", 0), *at("vb", 32)]
    below = [mean(ari["shifted", "self_routing"][c]) - mean(values) for c, values in ari["shifted", "vb"].items()]
    assert said(r"below its gate everywhere \(by (\S+) to (\S+)\)") == [round(min(below), 2), round(max(below), 2)]
    assert said(r"Self-attention is there too \((\S+) ± (\S+)\)") == at("self_attention", 32)
    above = [mean(ari["shifted", "self_attention"][c]) - mean(ari["shifted", "uniform"][c]) for c in (4, 8, 16)]
    assert {round(gain, 2) for gain in above} == set(said(rf"without clutter and {NUMBER} above them with 4 to 16"))


@pytest.mark.parametrize(
    ("task", "pattern", "heads"),
    [
        ("elevation", r"Deep Sets is the best \((\S+) ± (\S+); .*?self-attention, (\S+) ± (\S+)\)",
         ("mean", "self_attention")),
        ("azimuth", r"it is routing as pooling \((\S+) ± (\S+)\), and the best control is Deep Sets \((\S+) ± (\S+)\)",
         ("pooling", "mean")),
        ("affine", r"the Set Transformer \((\S+) ± (\S+)\), attention pooling and self-routing \((\S+) ± (\S+)\)",
         ("set_transformer", "self_routing")),
    ],
)  # fmt: skip
def test_novel_accuracy_at_matched_familiar_accuracy(task, pattern, heads):
    matched = read_matched(curves(read(RESULTS / "viewpoints.csv"))[task])[1]
    novel = [[100 * seed["novel"] for seed in matched[head]] for head in heads]
    assert said(pattern) == [round(number(values), 1) for values in novel for number in (mean, stdev)]
    assert next(iter(matched)) == heads[0]


@pytest.mark.parametrize(
    ("head", "pattern"),
    [("em", r"novel: EM by (\d+), (\d+) and (\d+) points"), ("vb", r"variational Bayes by (\d+), (\d+) and (\d+)\)")],
)
def test_how_far_heads_end_below_deep_sets(head, pattern):
    found = curves(read(RESULTS / "viewpoints.csv"))
    below = []
    for task in ("elevation", "azimuth", "affine"):
        ends = {m: mean(run.last()["novel"] for run in found[task][m].values()) for m in ("mean", head)}
        below.append(round(100 * (ends["mean"] - ends[head])))
    assert said(pattern) == below


def test_no_run_of_the_files_ended_in_nan():
    points = [row["value"] for row in read(RESULTS / "constellations.csv") if row["phase"] == "test"]
    views = [
        row[key] for row in read(RESULTS / "viewpoints.csv") if row["phase"] == "test" for key in ("familiar", "novel")
    ]
    assert all(isfinite(float(value)) for value in points + views)


def test_read_outs_of_the_last_layer():
    told = {data: {line.head: line for line in lines} for data, lines in summary(RESULTS / "readout.csv").items()}
    best = [told[data]["self_routing"] for data in ("sst2", "sst5")]
    pattern = r"best head of all on both sets \((\S+) ± (\S+) and (\S+) ± (\S+)\)"
    assert said(pattern) == [round(number, 1) for line in best for number in (line.mean, line.spread)]
    for data, line in zip(("sst2", "sst5"), best):
        assert all(line.mean >= other.mean for head, other in told[data].items() if "all depths" not in head)
        assert round(line.mean - told[data]["attention"].mean, 1) == 1.4


def test_rows_of_the_tables_that_have_all_three_numbers():
    evidence = collect(REPOSITORY / "results")

    def told(recipe, routing):
        values = [run.accuracy[""][routing] for run in evidence[recipe]]
        return [round(mean(values), 2), round(stdev(values), 2)]

    inverted, few = "tsai-cifar10-resnet-inverted-short", "mnist-few-capsules"
    three = (
        r"(\S+) ± (\S+) as trained, (\S+) ± (\S+) with equal coefficients and (\S+) ± (\S+) trained without routing:"
    )
    assert said(three) == [
        *told(inverted, "as_trained"),
        *told(inverted, "uniform"),
        *told("tsai-cifar10-resnet-without-routing-short", "as_trained"),
    ]
    softmax = r"MNIST has (\S+) ± (\S+) with 20 .*?, (\S+) ± (\S+) with its .*?, and (\S+) ± (\S+) trained without"
    assert said(softmax) == [
        *told(f"{few}-softmax", "as_trained"),
        *told(f"{few}-softmax", "uniform"),
        *told(f"{few}-without-routing", "as_trained"),
    ]
