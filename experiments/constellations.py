"""Votes that must be told apart: objects among 0 to 32 points of clutter, found by every head from the same votes.

    python experiments/constellations.py --out results/when_routing_helps/constellations.csv
    python experiments/constellations.py --draw results/when_routing_helps/constellations.csv

Every head gets the same votes, the same embedding of them, as many parents of a kind and as many parameters. Search is
the same for all: three rates and two settings, one seed, a third of the steps, on validation scenes; then five seeds.
Beside them stands what an exhaustive search finds. Started again, it goes on with what is missing.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

import capsroute as cr
from experiments import scenes as world
from experiments.heads import HEADS, Refined, count
from experiments.training import Stack, read, run_all

KINDS, PARENTS, FEATURES, FREQUENCIES, HIDDEN = len(world.NAMES), 4, 32, 32, 128
BUDGET = 16_000  # parameters of a head and its refinement; embedding and read-out are the same for all
BANDWIDTHS = (0.06, 0.3)  # of the first frequencies, half of them each
METHODS = tuple(name for name in HEADS if name != "average")  # Deep Sets is more than an average
CLUTTERS = (0, 2, 4, 8, 16, 32)
RATES, SETTINGS, SEEDS, SEARCH_SEED = (2e-3, 6e-3, 2e-2), (0, 1), (1, 2, 3, 4, 5), 100
FAR = 0.5  # the pose error of an object that was not found at all
PIECE = 64  # scenes at once: children that attend to each other take room
NEAR = 0.15  # points further than this from all corners belong to nothing


class Network(nn.Module):
    """Votes [b,kind,i,p] -> presence [b,kind,j] (logits) and poses [b,kind,j,p] of PARENTS parents of each kind."""

    def __init__(self, method: str, setting: int, variant: str, budget: int = BUDGET):
        super().__init__()
        p = 2 if variant == "shifted" else 5
        widths = torch.tensor(BANDWIDTHS).repeat_interleave(FREQUENCIES // 2)
        self.frequencies = nn.Parameter(torch.randn(p, FREQUENCIES) / widths)
        embed = torch.randn(p + 2 * FREQUENCIES, FEATURES) / math.sqrt(FREQUENCIES)
        embed[:p], embed[:, :p] = 0.0, 0.0
        embed[:p, :p] = 3 * torch.eye(p)  # a vote is seen as it is, and by its waves
        self.embed = nn.Parameter(embed.expand(KINDS, -1, -1).clone())
        self.shift = nn.Parameter(torch.zeros(KINDS, 1, FEATURES))
        self.head = Refined(method, FEATURES, PARENTS, setting, budget)
        self.read = nn.Sequential(nn.Linear(FEATURES + 2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1 + p))
        self.straight = nn.Linear(FEATURES + 2, 1 + p)

    def forward(self, votes: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        waves = votes @ self.frequencies
        children = torch.cat([votes, waves.sin(), waves.cos()], -1) @ self.embed + self.shift  # [b, kind, i, d]
        parents = self.head(children.flatten(0, 1), there.flatten(0, 1))
        parents = torch.cat(parents, -1)
        found = (self.read(parents) + self.straight(parents)).unflatten(0, (-1, KINDS))
        return found[..., 0], found[..., 1:]


def set_loss(found: tuple[Tensor, Tensor], pose: Tensor, present: Tensor) -> Tensor:
    """Of the best match of true objects (two places a kind) and parents: how far they are, and who is there."""
    presence, poses = found
    far = 10 * F.smooth_l1_loss(
        poses[:, :, None].expand(-1, -1, world.PER_KIND, -1, -1), pose[:, :, :, None].expand(-1, -1, -1, PARENTS, -1),
        beta=0.05, reduction="none",
    ).sum(-1)  # [b, kind, 2, j]  # fmt: skip
    cost = (far - F.logsigmoid(presence)[:, :, None]) * present[..., None]
    both = cost[:, :, 0, :, None] + cost[:, :, 1, None, :] + 1e6 * torch.eye(PARENTS, device=cost.device)
    best = both.detach().flatten(2).argmin(2)  # [b, kind]
    mine = torch.stack([best // PARENTS, best % PARENTS], 2)[..., None] == torch.arange(PARENTS, device=cost.device)
    match = mine * present[..., None]  # [b, kind, 2, j]
    wanted = match.sum(2)
    told = F.binary_cross_entropy_with_logits(presence, wanted, reduction="none").sum((1, 2))
    return ((match * far).sum((1, 2, 3)) + told).mean()


def chosen(presence: Tensor, poses: Tensor) -> tuple[Tensor, Tensor]:
    """The three parents that are most surely there: kinds [n, 3], poses [n, 3, p]."""
    best = presence.flatten(1).topk(world.OBJECTS, 1).indices
    return best // PARENTS, poses.flatten(1, 2).gather(1, best[..., None].expand(-1, -1, poses.shape[-1]))


def scores(scenes: world.Scenes, variant: str, kinds: Tensor, poses: Tensor) -> dict[str, float]:
    """ARI of point to object (of object points; of all, clutter as one part), pose error, share of objects found.

    A point belongs to the object with the nearest corner. The pose error is the mean distance of a true corner to the
    nearest corner of an object of its kind, FAR at most; found is one with an error below 0.1.
    """
    corners = world.corners_of(poses, kinds)  # [n, 3, 5]
    distance = (scenes.points[:, :, None, None] - corners[:, None]).abs().amin(3)  # [n, points, 3]
    nearest, owner = distance.min(2)
    owner = torch.where(nearest < NEAR, owner, world.OBJECTS)
    mine = torch.where(scenes.there, scenes.owner, -1)
    objects = cr.analysis.ari(mine.clamp_min(0), owner, ignore=0)
    everything = cr.analysis.ari(mine + 1, owner, ignore=0)
    true = world.corners_of(world.to_pose(scenes.scale, scenes.centre, scenes.kind, variant), scenes.kind)
    off = (true[:, :, :, None, None] - corners[:, None, None]).abs().amin(4).mean(2)  # [n, true, found]
    off = off.masked_fill(scenes.kind[:, :, None] != kinds[:, None], FAR).amin(2).clamp_max(FAR)
    return {
        "ari": objects.mean().item(), "ari_all": everything.mean().item(),
        "pose_error": off.mean().item(), "found": (off < 0.1).float().mean().item(),
    }  # fmt: skip


def prepared(scenes: world.Scenes, variant: str, piece: int = 1024) -> list[Tensor]:
    """Votes, whether they are there, targets and whether those are, made a piece at a time."""
    parts = []
    for at in range(0, len(scenes.kind), piece):
        some = world.Scenes(*(tensor[at : at + piece] for tensor in scenes))
        parts.append((*world.votes(some, variant), *world.targets(some, variant)))
    return [torch.cat(tensors) for tensors in zip(*parts)]


def work(job: tuple[str, str], size: argparse.Namespace) -> list[dict]:
    """Search and seeds of one method in one variant (or the exhaustive search): its rows."""
    variant, method = job
    device = torch.device(size.device)
    tests = {c: world.draw(size.test, variant, c, "test", c).to(device) for c in CLUTTERS}
    begin = time.monotonic()
    if method == "exhaustive":
        rows = []
        for clutter, scenes in tests.items():
            parts = [world.Scenes(*(t[at : at + 32] for t in scenes)) for at in range(0, size.test, 32)]
            fits = [world.exhaustive_fit(part, variant) for part in parts]
            found = scores(scenes, variant, *(torch.cat(tensors) for tensors in zip(*fits)))
            rows += _rows(job, "test", 0, 0, 0.0, clutter, found, 0, time.monotonic() - begin)
        return rows
    train = prepared(world.draw(size.train, variant, None, "train").to(device), variant)
    held = prepared(world.draw(size.test, variant, None, "validation").to(device), variant)
    rows, trials = [], []
    for setting in SETTINGS:
        begin = time.monotonic()
        make = partial(Network, method, setting, variant)
        stack = Stack(make, [SEARCH_SEED] * len(RATES), RATES, train, 2, set_loss, max(1, size.steps // 3), size.batch)
        stack.train(stack.steps)
        presence, poses = stack.outputs(*held[:2], piece=PIECE)
        for m, rate in enumerate(RATES):
            loss = set_loss((presence[m], poses[m]), *held[2:]).item()
            loss = loss if math.isfinite(loss) else math.inf
            trials.append((loss, setting, rate))
            seconds = (time.monotonic() - begin) / len(RATES)
            rows += _rows(job, "search", setting, SEARCH_SEED, rate, "any", {"loss": loss}, count(make()), seconds)
    _, setting, rate = min(trials)
    begin = time.monotonic()
    make = partial(Network, method, setting, variant)
    stack = Stack(make, SEEDS, [rate] * len(SEEDS), train, 2, set_loss, size.steps, size.batch)
    stack.train(stack.steps)
    seconds = (time.monotonic() - begin) / len(SEEDS)
    for clutter, scenes in tests.items():
        presence, poses = stack.outputs(*world.votes(scenes, variant), piece=PIECE)
        for m, seed in enumerate(SEEDS):
            found = scores(scenes, variant, *chosen(presence[m].nan_to_num(-1e9), poses[m].nan_to_num(9.0)))
            rows += _rows(job, "test", setting, seed, rate, clutter, found, count(make()), seconds)
    return rows


def _rows(job, phase, setting, seed, rate, clutter, found, parameters, seconds) -> list[dict]:
    same = {"variant": job[0], "method": job[1], "phase": phase, "setting": setting, "seed": seed, "rate": rate}
    end = {"parameters": parameters, "seconds": round(seconds, 2)}
    return [{**same, "clutter": clutter, "metric": k, "value": f"{v:.5f}", **end} for k, v in found.items()]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/when_routing_helps/constellations.csv"))
    parser.add_argument("--draw", type=Path, help="draw the figure of this CSV beside it, and train nothing")
    parser.add_argument("--methods", nargs="+", default=["exhaustive", *METHODS], choices=["exhaustive", *METHODS])
    parser.add_argument("--variants", nargs="+", default=world.VARIANTS, choices=world.VARIANTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in (("steps", 2500), ("batch", 32), ("train", 16384), ("test", 1024), ("at-once", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then; the next call goes on")
    return parser


def main(given: argparse.Namespace) -> None:
    if given.draw:
        from experiments.figures import draw_constellations

        draw_constellations(given.draw)
        return
    done = {(row["variant"], row["method"]) for row in read(given.out) if row["phase"] == "test"}
    jobs = [(variant, method) for variant in given.variants for method in given.methods]
    jobs = [job for job in jobs if job not in done]
    run_all(partial(work, size=given), jobs, given.out, given.at_once, given.seconds)


if __name__ == "__main__":
    main(arguments().parse_args())
