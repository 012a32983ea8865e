"""How a class capsule's pose moves as the viewpoint moves (Heinsen 2019, figures 4, 6 and 7)."""

import warnings
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.analysis.figures import Made, Named, Run, along, has_class_capsules, run_figure, takes_images
from capsroute.analysis.style import COLOURS, HEAT, Figure, colour_bar, colour_map, drawing, grid, picture
from capsroute.data import ImageSet
from capsroute.extras import named_extra
from capsroute.inference.collect import evaluating
from capsroute.models import ImageModel
from capsroute.naming import check_one_of

FACTS = ("category", "instance", "elevation", "azimuth", "lighting")
BATCH = 64


@dataclass(frozen=True, eq=False)
class Trajectory(Named):
    """One sequence of poses, and the same drawn in the plane."""

    # Distances between them are as near as can be to those between pose vectors.
    points: Tensor = field(metadata=along("step, vector, coordinate"))
    poses: Tensor = field(metadata=along("step, vector, number"))  # rows of the activated class capsule's pose
    amounts: Tensor = field(metadata=along("step"))  # elevation or azimuth of each step
    stress: float  # Kruskal's stress-1: 0 is a perfect picture, 0.2 a poor one


@dataclass(frozen=True, eq=False)
class PoseChange(Named):
    """Change of each pose vector of the activated class capsule, against the first of its sequence."""

    # Euclidean distance to the first, divided by the norm of the first.
    distance: Tensor = field(metadata=along("sequence, vector, step"))
    norm: Tensor = field(metadata=along("sequence, vector, step"))  # divided by the norm of the first
    cosine: Tensor = field(metadata=along("sequence, vector, step"))  # similarity to the first
    amounts: Tensor = field(metadata=along("step"))
    # Whose capsule it is: the one activated by the first image of a sequence.
    classes: Tensor = field(metadata=along("sequence"))


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
        check_one_of("by", name, FACTS)
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


@named_extra
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


@drawing
def draw_pose_trajectory(numbers: Trajectory, varied: str = "elevation") -> Figure:
    """The pose vectors of each image as connected points; circles mark the first vector of the first and last image.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.pose_trajectory(model, torch.rand(5, 1, 8, 8))
    >>> figure = cr.analysis.draw_pose_trajectory(numbers, "azimuth")
    """
    figure = picture(4.2, 3.4)
    ((axes,),) = grid(figure, 1, 1)
    points, amounts = numbers.points.cpu().numpy(), numbers.amounts.cpu().double()
    span = (amounts - amounts.min()) / (amounts.max() - amounts.min()).clamp_min(1e-12)
    shades = colour_map(HEAT)(span.numpy())
    for vector in range(points.shape[1]):
        axes.plot(*points[:, vector].T, color="0.75", linewidth=0.8, zorder=1)
    for step, shade in zip(points, shades):
        axes.plot(*step.T, color=shade, linewidth=1.0, zorder=2)
    x, y = points.reshape(-1, 2).T
    drawn = axes.scatter(x, y, c=amounts.repeat_interleave(points.shape[1]).numpy(), cmap=HEAT, s=14, zorder=3)
    x, y = points[[0, -1], 0].T
    axes.scatter(x, y, s=90, facecolors="none", edgecolors=COLOURS[1], zorder=4)
    for at, word in ((0, "first"), (-1, "last")):
        axes.annotate(word, points[at, 0], (7, 5), textcoords="offset points", color=COLOURS[1])
    axes.set(xlabel="MDS 1", ylabel="MDS 2", title=f"stress {numbers.stress:.2f}")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)
    colour_bar(figure, drawn, axes, varied)
    return figure


@drawing
def draw_pose_change(numbers: PoseChange, varied: str = "azimuth", seen: Tensor | None = None) -> Figure:
    """Three rows: relative distance to the first pose, relative norm, cosine; a column for each pose vector.

    Every sequence is a thin line, their mean a thick one. Where only some amounts were `seen` in training, these are
    shaded.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_pose_change(cr.analysis.pose_change(model, torch.rand(3, 5, 1, 8, 8)))
    """
    vectors, amounts = numbers.size("vector"), numbers.amounts.cpu().numpy()
    figure = picture(1.9 * vectors + 1.2, 4.8)
    axes = grid(figure, 3, vectors, sharex=True, sharey="row")
    rows = (
        ("distance to first\n(relative)", numbers.distance),
        ("norm\n(relative)", numbers.norm),
        ("cosine with first", numbers.cosine),
    )
    shaded = () if seen is None or set(numbers.amounts.tolist()) <= set(seen.tolist()) else seen.tolist()
    for row, (label, values) in enumerate(rows):
        for vector in range(vectors):
            one, curves = axes[row][vector], values[:, vector].cpu()
            one.plot(amounts, curves.T.numpy(), color=COLOURS[5], alpha=0.45, linewidth=0.6)
            one.plot(amounts, curves.mean(0).numpy(), color=COLOURS[0], linewidth=2)
            one.grid(alpha=0.25, linewidth=0.5)
            if shaded:
                one.axvspan(min(shaded), max(shaded), color="0.9", linewidth=0, zorder=0)
        axes[row][0].set_ylabel(label)
    for vector in range(vectors):
        axes[0][vector].set_title(f"pose vector {vector + 1}")
        axes[2][vector].set_xlabel(varied)
    return figure


def has_viewpoints(run: Run) -> str | None:
    known = all(set(FACTS) <= set(test.metadata) for test in run.splits.test.values())
    return None if known else "no viewpoints are known of the test images"


@run_figure(
    "pose_trajectory",
    "A pose on its way",
    "Pose vectors of the activated class capsule while the elevation of one toy grows, by multidimensional scaling. "
    "After Heinsen 2019, figure 4.",
    takes_images,
    has_class_capsules,
    has_viewpoints,
    place=70,
)
def _pose_trajectory_of(run: Run) -> Made:
    pictures, amounts = run.sequences("elevation", azimuth=0, lighting=0)
    numbers = pose_trajectory(run.model, pictures[0], amounts)
    return numbers, draw_pose_trajectory(numbers, "elevation")


def _pose_change_of(run: Run, by: str, kept: str) -> Made:
    numbers = pose_change(run.model, *run.sequences(by, **{kept: 0, "lighting": 0}))
    return numbers, draw_pose_change(numbers, by, run.seen(by))


for _by, _kept, _figure in (("azimuth", "elevation", 6), ("elevation", "azimuth", 7)):
    run_figure(
        f"pose_by_{_by}",
        f"Poses by {_by}",
        f"Change of each pose vector of the activated class capsule as {_by} grows, one thin line per toy, the mean in "
        f"dark blue. After Heinsen 2019, supplementary figure {_figure}.",
        takes_images,
        has_class_capsules,
        has_viewpoints,
        place=65 + _figure,
    )(partial(_pose_change_of, by=_by, kept=_kept))
