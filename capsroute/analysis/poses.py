"""How a class capsule's pose moves as the viewpoint moves (003, figure 4 and supplementary figures 6 and 7)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.analysis.named import Named
from capsroute.data import ImageSet
from capsroute.inference.collect import evaluating
from capsroute.models import ImageModel

__all__ = ["PoseChange", "Trajectory", "pose_change", "pose_trajectory", "viewpoint_sequences"]

FACTS = ("category", "instance", "elevation", "azimuth", "lighting")
BATCH = 64


@dataclass(frozen=True, eq=False)
class Trajectory(Named):
    """One sequence of poses, and the same drawn in the plane."""

    axes: ClassVar = {
        "points": ("step", "vector", "coordinate"),
        "poses": ("step", "vector", "number"),
        "amounts": ("step",),
    }
    points: Tensor  # distances between them are as near as can be to those between pose vectors
    poses: Tensor  # rows of the activated class capsule's pose
    amounts: Tensor  # elevation or azimuth of each step
    stress: float  # Kruskal's stress-1: 0 is a perfect picture, 0.2 a poor one


@dataclass(frozen=True, eq=False)
class PoseChange(Named):
    """Change of each pose vector of the activated class capsule, against the first of its sequence."""

    axes: ClassVar = {
        "distance": ("sequence", "vector", "step"),
        "norm": ("sequence", "vector", "step"),
        "cosine": ("sequence", "vector", "step"),
        "amounts": ("step",),
        "classes": ("sequence",),
    }
    distance: Tensor  # Euclidean distance to the first, divided by the norm of the first
    norm: Tensor  # divided by the norm of the first
    cosine: Tensor  # similarity to the first
    amounts: Tensor
    classes: Tensor  # whose capsule it is: the one activated by the first image of a sequence


def viewpoint_sequences(data: ImageSet, by: str = "azimuth", **fixed: int) -> tuple[Tensor, Tensor]:
    """Images that differ only in `by`, in its order: rows of the set [sequence, step], and the amounts [step].

    The set has the metadata of NORB. `fixed` chooses sequences, such as `lighting=0`.

    >>> import capsroute as cr
    >>> toys = cr.data.load("toynorb", "test", size=8, azimuths=(0, 2), lightings=(0,))
    >>> rows, elevations = cr.analysis.viewpoint_sequences(toys, "elevation", azimuth=0)
    >>> rows.shape, elevations.tolist()
    (torch.Size([25, 9]), [0, 1, 2, 3, 4, 5, 6, 7, 8])
    """
    missing = [name for name in FACTS if name not in data.metadata]
    if missing:
        raise ValueError(f"data: expected the metadata {', '.join(FACTS)}, {data.name!r} lacks {', '.join(missing)}")
    for name in (by, *fixed):
        if name not in FACTS:
            raise ValueError(f"by: expected one of {', '.join(FACTS)}, got {name!r}")
    facts = {name: data.metadata[name].cpu().numpy() for name in FACTS}
    chosen = np.arange(len(data))
    for name, value in fixed.items():
        chosen = chosen[facts[name][chosen] == value]
    # Sorted by everything else first and by the varied fact last, each sequence is a run of neighbours.
    keys = [facts[by][chosen], *(facts[name][chosen] for name in reversed(FACTS) if name != by)]
    order = chosen[np.lexsort(keys)]
    amounts = np.unique(facts[by][chosen])
    rows = order.reshape(-1, len(amounts)) if len(amounts) and len(order) % len(amounts) == 0 else order[:0, None]
    if not rows.size or not (facts[by][rows] == amounts).all():
        raise ValueError(f"data: expected every toy to be there at each {by}, some are missing")
    return torch.from_numpy(rows), torch.from_numpy(amounts)


def pose_trajectory(model: ImageModel, images: Tensor, amounts: Tensor | None = None, seed: int = 0) -> Trajectory:
    """The activated class capsule's pose vectors over a sequence of images [n,c,h,w], by multidimensional scaling.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> cr.analysis.pose_trajectory(model, torch.rand(5, 1, 8, 8)).points.shape
    torch.Size([5, 1, 2])
    """
    poses, _ = _activated(model, images[None])
    poses = poses[0]  # [n, a, o]
    points, stress = plane(poses.flatten(0, 1), seed)
    amounts = torch.arange(len(images)) if amounts is None else amounts
    return Trajectory(points.unflatten(0, poses.shape[:2]), poses, amounts, stress)


def pose_change(model: ImageModel, images: Tensor, amounts: Tensor | None = None) -> PoseChange:
    """How pose vectors change over sequences of images [s,n,c,h,w].

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> change = cr.analysis.pose_change(model, torch.rand(3, 5, 1, 8, 8))
    >>> change.distance.shape, change.norm[:, :, 0].unique().tolist()
    (torch.Size([3, 1, 5]), [1.0])
    """
    poses, classes = _activated(model, images)
    vectors = poses.transpose(1, 2).double()  # [s, a, n, o]
    first, norms = vectors[:, :, :1], vectors.norm(dim=3)
    tiny = torch.finfo(torch.float64).tiny
    start = norms[:, :, :1].clamp_min(tiny)
    cosine = (vectors * first).sum(3) / (norms * start).clamp_min(tiny)
    distance = (vectors - first).norm(dim=3) / start
    amounts = torch.arange(images.shape[1]) if amounts is None else amounts
    return PoseChange(distance, norms / start, cosine, amounts, classes)


def plane(vectors: Tensor, seed: int = 0) -> tuple[Tensor, float]:
    """Vectors [n,d] as points [n,2] of the plane by metric multidimensional scaling (SMACOF), and the stress-1."""
    from sklearn.manifold import MDS

    distances = torch.cdist(vectors.double(), vectors.double()).cpu().numpy()
    start = _principal(vectors.double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # names of arguments differ between versions
        scaling = MDS(2, n_init=1, max_iter=1000, eps=1e-9, random_state=seed, dissimilarity="precomputed")
        points = torch.from_numpy(scaling.fit_transform(distances, init=start.cpu().numpy()))
    wanted = torch.from_numpy(distances)
    error = (torch.cdist(points, points) - wanted).square().sum()
    return points.float(), float((error / wanted.square().sum().clamp_min(1e-300)).sqrt())


def _principal(vectors: Tensor) -> Tensor:
    """The two directions of largest variance: the start that needs no luck."""
    centred = vectors - vectors.mean(0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    flat = (left * values)[:, :2]
    return F.pad(flat, (0, 2 - flat.shape[1]))


def _activated(model: ImageModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Poses [s,n,a,o] of the class capsule that the first image of each sequence [s,n,c,h,w] activates most."""
    sequences, steps = images.shape[:2]
    with torch.no_grad(), evaluating(model):
        outputs = [model(part) for part in images.flatten(0, 1).split(BATCH)]
    if outputs[0].poses is None:
        raise ValueError(f"model: expected one with class capsules, {model.name!r} gives no poses")
    scores = torch.cat([output.scores for output in outputs]).unflatten(0, (sequences, steps))
    poses = torch.cat([output.poses for output in outputs]).unflatten(0, (sequences, steps))  # [s, n, j, a, o]
    classes = scores[:, 0].argmax(1)
    return poses[torch.arange(sequences), :, classes], classes
