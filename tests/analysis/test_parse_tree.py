"""Shares of primary capsules against loops over children, positions and paths."""

from dataclasses import replace

import pytest
import torch

from capsroute.analysis import draw_parse_tree, parse_tree, trace_routing
from tests.analysis.small import Stacked, images, small


def shares_of(votes, weights):
    """Shares [i,j] from dense votes [i,j,d] and weights [i,j], one number at a time."""
    children, parents, _ = votes.shape
    result = torch.zeros(children, parents, dtype=votes.dtype)
    for j in range(parents):
        total = sum(weights[i, j] * votes[i, j] for i in range(children))
        for i in range(children):
            result[i, j] = weights[i, j] * (votes[i, j] @ total) / (total @ total)
    return result


@pytest.mark.parametrize("routing", ["dynamic", "max_min", "em", "heinsen"])
def test_one_layer(routing):
    model, image = small(routing), images(1)[0]
    tree = parse_tree(model, image)
    step = trace_routing(model, image[None]).layers["class_capsules"].steps[-1]
    weights = step.routed.coefficients[0]
    if routing == "em":
        weights = weights * step.scores[0][:, None]
    if routing == "heinsen":
        weights = weights * torch.sigmoid(step.scores[0])[:, None]
    expected = shares_of(step.votes.dense()[0].flatten(2), weights)  # [n*h*w, j]
    torch.testing.assert_close(tree.shares.flatten(1).T, expected)
    torch.testing.assert_close(tree.shares.sum((1, 2, 3)), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize(("padding", "schedule"), [(0, "sequential"), (1, "sequential"), (0, "concurrent")])
def test_paths_through_a_convolutional_layer(padding, schedule):
    model, image = Stacked(schedule, padding), images(1, 7)[0]
    conv, linear = trace_routing(model, image[None]).layers.values()
    top = shares_of(linear.steps[-1].votes.dense()[0].flatten(2), linear.steps[-1].routed.coefficients[0])
    side = 2 if padding == 0 else 3
    expected = torch.zeros(3, 2, 5, 5, dtype=torch.float64)  # [class, type, row, column]
    for y in range(side):
        for x in range(side):
            place = y * side + x
            votes = conv.steps[-1].votes.dense()[place].flatten(2)  # [n*K, m, d]
            down = shares_of(votes, conv.steps[-1].routed.coefficients[place])
            for kind in range(2):
                for at in range(9):
                    row, column = 2 * y + at // 3 - padding, 2 * x + at % 3 - padding
                    if not (0 <= row < 5 and 0 <= column < 5):
                        continue
                    for parent in range(3):
                        path = top[parent * side * side + place] * down[kind * 9 + at, parent]
                        expected[:, kind, row, column] += path
    torch.testing.assert_close(parse_tree(model, image).shares, expected)


def test_the_picture_is_the_shares_at_the_places():
    model, image = small(kernel_size=2), images(1)[0]
    tree = parse_tree(model, image)
    assert tree.rows.tolist() == tree.columns.tolist() == [1.5, 3.5, 5.5]
    coarse = tree.shares.sum(1)
    torch.testing.assert_close(tree.maps[:, 1, 1], coarse[:, 0, 0])
    torch.testing.assert_close(tree.maps[:, 2, 1], coarse[:, 0, 0] * 0.75 + coarse[:, 1, 0] * 0.25)


def test_more_capsules_are_drawn_than_there_are_colours():
    many = 8
    tree = parse_tree(small(), images(1)[0])
    shares, maps = (torch.rand(many, *given.shape[1:]) for given in (tree.shares, tree.maps))
    tree = replace(tree, scores=torch.rand(many), shares=shares, maps=maps)
    texts = draw_parse_tree(tree, tops=many).subfigs[0].axes[0].texts
    assert len(texts) == many
    with pytest.raises(ValueError, match="tops: expected a whole number >= 1, got 0"):
        draw_parse_tree(tree, tops=0)
