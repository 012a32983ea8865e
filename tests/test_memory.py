"""Peak memory: with shared transforms it grows with children x parents, and never with votes; of kernels, what a GPU
would hold."""

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import capsroute as cr
from capsroute.bench.grid import GridRow, points
from capsroute.bench.measure import DTYPES, forward_backward, read_rows
from tests.algorithms import ALGORITHMS, arguments, route
from tests.kinds import KINDS, Sizes


def peak_bytes(run) -> int:
    """The most that was allocated at once while this ran, beyond what was there before, by the profiler's count."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = run()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del result
    return peak


def test_the_measure_sees_what_is_allocated_inside():
    def three_megabytes_for_a_moment():
        return (torch.ones(1 << 18) + torch.ones(1 << 18) * 2).sum()

    assert 3 << 20 <= peak_bytes(three_megabytes_for_a_moment) < 4 << 20


def routing_peak(name: str, kind: str, s: Sizes, backward: bool) -> int:
    leaves = [leaf.requires_grad_(backward) for leaf in KINDS[kind].leaves(s, dtype=torch.float32)]
    rest = arguments(name, s, dtype=torch.float32)

    def run():
        poses = route(name, KINDS[kind].votes(s.j, *leaves), *rest)[0]
        return torch.autograd.grad(poses.square().sum(), leaves) if backward else poses

    return peak_bytes(run)


# Children and parents so many that their product outweighs what each of them needs alone.
SMALL, LARGE = Sizes(1, 1024, 512, 2, 2, 2), Sizes(1, 1024, 512, 4, 4, 4)
PAIRS, VOTES = 4 * 1024 * 512, 4 * 1024 * 512 * 16  # bytes of [b,i,j], and of [b,i,j,a,o] with 4x4 poses


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward+backward"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_shared_transforms_need_children_times_parents(name, backward):
    before, after = (routing_peak(name, "shared+bias", s, backward) for s in (SMALL, LARGE))
    assert after < VOTES, f"{after / PAIRS:.1f} tensors [b,i,j], as many as the votes would be"
    assert after - before < 4 * PAIRS, f"{before / PAIRS:.1f} tensors [b,i,j] grew to {after / PAIRS:.1f} with the pose"


@pytest.mark.parametrize("routing", ["dynamic", "max_min", "pooling", "inverted_attention", "em", "heinsen"])
def test_a_layer_with_shared_transforms_needs_children_times_parents(routing):
    layers = [cr.layers.CapsuleLinear(None, s.j, (s.a, s.k), (s.a, s.o), routing=routing) for s in (SMALL, LARGE)]
    poses = [torch.randn(s.b, s.i, s.a, s.k) for s in (SMALL, LARGE)]
    with torch.no_grad():
        before, after = (peak_bytes(lambda layer=layer, u=u: layer(u)) for layer, u in zip(layers, poses))
    assert after < VOTES / 2, f"{after / PAIRS:.1f} tensors [b,i,j]; the votes would be 16"
    assert after - before < 2 * PAIRS, f"{before / PAIRS:.1f} tensors [b,i,j] grew to {after / PAIRS:.1f} with the pose"


def test_stored_votes_would_be_seen():
    assert routing_peak("dynamic", "dense", LARGE, False) >= VOTES


def test_per_child_transforms_are_cut_into_chunks(monkeypatch):
    s = Sizes(64, 256, 10, 1, 8, 16)
    votes = 4 * s.b * s.i * s.j * s.o
    whole = routing_peak("dynamic", "per-child-never-stored", s, False)
    monkeypatch.setattr("capsroute.form.contractions.operators.CHUNK_ELEMENTS", 1 << 14)
    cut = routing_peak("dynamic", "per-child-never-stored", s, False)
    assert whole >= votes / 2  # the narrower side of the transforms
    assert cut < votes / 2


GRID = Path(__file__).parent.parent / "results/bench/grid-cuda.csv"


KEPT = {  # votes, since these were measured
    "dynamic 8192x4x4 -> 10x4, batch 1, bfloat16",
    "dynamic 8192x8 -> 10x16, batch 1, float32",
    "max_min 1152x8 -> 100x16, batch 1, bfloat16",
    "self_attention 8192x4x4 -> 2x4, batch 1, float32",  # as many as transforms, and so made again
}


def close_points() -> list:
    """Layers of the grid whose memory came closest to the textbook form's on a GPU, but for the largest."""
    measured = {row.point: row for row in read_rows(GRID, GridRow)}
    found = [(point, measured[point.name].textbook_mib) for point in points() if point.name in measured]
    return [
        pytest.param(point, mib, id=point.name)
        for point, mib in found
        if (measured[point.name].memory < 1.15 and mib < 32) or point.name in KEPT
    ]


@pytest.mark.parametrize(("point", "textbook"), close_points())
def test_kernels_take_no_more_memory_than_the_textbook_form_did_on_a_gpu(point, textbook, monkeypatch):
    """Tensors are allocated as for a GPU, and no kernel is launched: the count is what a GPU's allocator says."""
    pytest.importorskip("triton")
    from capsroute.form import ahead, dispatch, sizes
    from capsroute.form.launch import Kernel

    monkeypatch.setattr(dispatch, "INTERPRETED", True)  # kernels apply on a CPU
    monkeypatch.setattr(dispatch, "_known", {})
    monkeypatch.setattr(ahead, "INTERPRETED", True)
    monkeypatch.setattr(sizes, "INTERPRETED", False)  # products are made as on a GPU
    monkeypatch.setattr(Kernel, "_compile", lambda self, launch, args, options: (None, options))
    monkeypatch.setattr(cr.LinearVotes, "stored_if_faster", lambda votes: votes)  # which is for a CPU
    for name in ("check_no_nan", "check_probabilities"):
        monkeypatch.setattr(f"capsroute.routing.checks.{name}", lambda *_: None)
    monkeypatch.setattr("capsroute.routing.routed.check_no_nan", lambda *_: None)
    tensors, route = list(point.case.tensors(DTYPES[point.dtype], "cpu").values()), point.case.ours()
    step = forward_backward(route, tensors, torch.zeros_like(route(*tensors)))
    step()  # what is kept for other calls is made now
    assert peak_bytes(step) / 2**20 <= textbook
