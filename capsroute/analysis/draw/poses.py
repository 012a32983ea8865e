"""Pictures of a pose under a moving viewpoint (003, figure 4 and supplementary figures 6 and 7)."""

from __future__ import annotations

from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from capsroute.analysis.draw.style import COLOURS, HEAT, colour_bar, drawing, grid, picture
from capsroute.analysis.poses import PoseChange, Trajectory

__all__ = ["draw_pose_change", "draw_pose_trajectory"]


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
    shades = colormaps[HEAT](span.numpy())
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
