"""Networks of Tsai 2020 and Heinsen 2019 in the layout of their published state dicts, computed slowly and literally.

They exist to make synthetic state dicts with published names and shapes, and the numbers those must give.
"""

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.routing import oracles


class Block(nn.Module):
    """A residual block under the names that Tsai 2020's released code has."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if (before, stride) != (after, 1):
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class Backbone(nn.Module):
    """Tsai 2020's backbones keep their layers one level down, under a second `pre_caps`."""

    def __init__(self, kind, channels):
        super().__init__()
        if kind == "simple":
            self.pre_caps = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU())
            return
        first = nn.Sequential(*(Block(6, 6, 1) for _ in range(3)))
        second = nn.Sequential(Block(6, channels, 2), *(Block(channels, channels, 1) for _ in range(3)))
        stem = [nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU()]
        self.pre_caps = nn.Sequential(*stem, first, second)

    def forward(self, x):
        return self.pre_caps(x)


class Layer(nn.Module):
    """One capsule layer of Tsai 2020: `w` in its published shape, `nonlinear_act` a LayerNorm over the flat pose."""

    def __init__(self, w_shape, numbers):
        super().__init__()
        self.w = nn.Parameter(torch.randn(w_shape) / 4)
        self.nonlinear_act = nn.LayerNorm(numbers)


class InvertedAttention(nn.Module):
    """A convolutional and two linear capsule layers, concurrent routing twice; children, parents one vote at a time."""

    def __init__(self, matrix: bool, backbone: str, pose: int = 4, channels: int = 5, types: int = 2, classes: int = 3):
        super().__init__()
        self.matrix, self.pose, self.types = matrix, pose, types
        side = int(pose**0.5)
        self.pre_caps = Backbone(backbone, channels)
        self.pc_layer = nn.Conv2d(channels, types * pose, 1, bias=False)
        self.nonlinear_act = nn.LayerNorm(pose)
        children = types * 3 * 3  # a map of 3 x 3 after the convolution of stride 2

        def shape(n, m):  # [n, x, d, m] for matrix poses, [n, x, m, d] for vectors
            return (n, side, side, m) if matrix else (n, pose, m, pose)

        sizes = [(3, 3, *shape(types, types)), shape(children, 4), shape(4, classes)]
        self.capsule_layers = nn.ModuleList(Layer(size, pose) for size in sizes)
        self.final_fc = nn.Linear(pose, 1)

    def vote(self, pose, w):
        """A flat pose through one transform: w[x, d], applied to the rows of a matrix pose."""
        rows = pose.view(-1, w.shape[0])
        return (rows @ w).flatten()

    def transform(self, w, child, parent):
        return w[child][:, :, parent] if self.matrix else w[child][:, parent, :]

    def step(self, layer, children, parents):
        """Procedure 1: children is a list of (index into w, pose [d])."""
        count = layer.w.shape[-1] if self.matrix else layer.w.shape[-2]
        votes = [[self.vote(p, self.transform(layer.w, i, j)) for j in range(count)] for i, p in children]
        agreement = torch.stack([torch.stack([(v * parents[j]).sum() for j, v in enumerate(row)]) for row in votes])
        shares = (agreement / self.pose**0.5).softmax(1)
        sums = [sum(shares[i, j] * votes[i][j] for i in range(len(votes))) for j in range(count)]
        return [layer.nonlinear_act(total) for total in sums]

    def patch(self, poses, y, x):
        cells = itertools.product(range(self.types), range(3), range(3))
        return [((r, c, n), poses[n, 2 * y + r, 2 * x + c]) for n, r, c in cells]

    def update(self, states):
        """Every layer steps from the poses of the previous iteration."""
        primary, conv, hidden, top = states
        new_conv = {at: self.step(self.capsule_layers[0], self.patch(primary, *at), conv[at]) for at in conv}
        flat = [
            ((k,), conv[y, x][n])
            for k, (n, y, x) in enumerate(itertools.product(range(self.types), range(3), range(3)))
        ]
        new_hidden = self.step(self.capsule_layers[1], flat, hidden)
        new_top = self.step(self.capsule_layers[2], [((k,), pose) for k, pose in enumerate(hidden)], top)
        return [primary, new_conv, new_hidden, new_top]

    def forward(self, images):
        features = self.pc_layer(self.pre_caps(images))
        return torch.stack([self.classify(feature) for feature in features])

    def classify(self, feature):
        poses = self.nonlinear_act(feature.unflatten(0, (self.types, self.pose)).permute(0, 2, 3, 1))  # [n, h, w, d]
        zero = torch.zeros(self.pose)
        states = [
            poses,
            {at: [zero] * self.types for at in itertools.product(range(3), repeat=2)},
            [zero] * 4,
            [zero] * 3,
        ]
        # The first pass goes layer by layer: each sees the new poses of the one below.
        for layer in (1, 2, 3):
            states[layer] = self.update(states)[layer]
        states = self.update(states)
        return torch.stack([self.final_fc(pose)[0] for pose in states[3]])


def heinsen_routings(d_cov, d_inp, d_out, parts, classes) -> dict[str, torch.Tensor]:
    """The part of Heinsen 2019's state dicts that its two networks share."""
    state = {}
    for layer, (inputs, outputs, width) in enumerate([(1, parts, d_inp), (parts, classes, d_out)]):
        shapes = {"W": (width, d_out), "B": (d_cov, d_out), "beta_use": (), "beta_ign": ()}
        for name, shape in shapes.items():
            state[f"routings.{layer}.{name}"] = torch.randn(inputs, outputs, *shape) / 2
        state[f"routings.{layer}.CONST_one"] = torch.tensor(1.0)
    return state


def heinsen_route(state, scores, poses) -> np.ndarray:
    """Algorithm 1 of Heinsen 2019, twice, in loops: scores [b, i], poses [b, i, d_cov, d_inp] -> [b, classes]."""
    scores, poses = (tensor.detach().double().numpy() for tensor in (scores, poses))
    for layer in range(2):
        W, B, use, ignore = (
            state[f"routings.{layer}.{name}"].double().numpy() for name in ("W", "B", "beta_use", "beta_ign")
        )
        routed = oracles.heinsen(oracles.votes(poses, W, B), scores, beta_use=use, beta_ignore=ignore)
        scores, poses = routed.scores, routed.poses
    return scores


def vision_state(channels=4, parts=3, classes=2) -> dict[str, torch.Tensor]:
    """The network for images: `convolve` of BatchNorm, convolution, Swish, six times; `compute_a`; `compute_mu`."""
    layers = []
    for before, stride in zip([4] + [channels] * 5, [1, 2] * 3):
        layers += [nn.BatchNorm2d(before), nn.Conv2d(before, channels, 3, stride), nn.SiLU()]
    heads = {"compute_a": parts, "compute_mu": parts * 16}
    network = nn.ModuleDict({"convolve": nn.Sequential(*layers)})
    network.update({k: nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n, 1)) for k, n in heads.items()})
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight)
    return {**network.state_dict(), **heinsen_routings(4, 4, 4, parts, classes)}


def vision_scores(state, images) -> np.ndarray:
    """What Heinsen 2019's network for images gives, from its state dict alone."""

    def norm(x, name):
        values = [state[f"{name}.{field}"] for field in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *values)

    size = images.shape[-1]
    steps = torch.linspace(-1, 1, size)
    grid = torch.stack([steps[:, None].expand(size, size), steps[None, :].expand(size, size)])
    x = torch.cat([images, grid.expand(len(images), -1, -1, -1)], 1)
    for n in range(6):
        x = norm(x, f"convolve.{3 * n}")
        name = f"convolve.{3 * n + 1}"
        x = F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride=1 + n % 2)
        x = x * x.sigmoid()
    a, mu = (
        F.conv2d(norm(x, f"{name}.0"), state[f"{name}.1.weight"], state[f"{name}.1.bias"])
        for name in ("compute_a", "compute_mu")
    )
    scores, poses = [], []
    for n, y, z in itertools.product(range(a.shape[1]), range(x.shape[2]), range(x.shape[3])):
        scores.append(a[:, n, y, z])
        poses.append(mu[:, 16 * n : 16 * n + 16, y, z].view(-1, 4, 4))
    return heinsen_route(state, torch.stack(scores, 1), torch.stack(poses, 1))


def text_state(depth=2, width=6, features=4, parts=3, classes=2) -> dict[str, torch.Tensor]:
    """Heinsen 2019's network for text: `detect_parts` is affine, Swish, LayerNorm."""
    shapes = {
        "depth_emb": (depth, width),
        "detect_parts.0.weight": (features, width),
        "detect_parts.0.bias": (features,),
        "detect_parts.2.weight": (features,),
        "detect_parts.2.bias": (features,),
    }
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    return {**state, **heinsen_routings(1, features, 2, parts, classes)}


def text_scores(state, hidden) -> np.ndarray:
    """What Heinsen 2019's network for text gives, all tokens present, from its state dict alone."""
    x = F.linear(hidden + state["depth_emb"], state["detect_parts.0.weight"], state["detect_parts.0.bias"])
    x = x * x.sigmoid()
    x = F.layer_norm(x, x.shape[-1:], state["detect_parts.2.weight"], state["detect_parts.2.bias"])
    poses = x.flatten(1, 2).unsqueeze(2)
    # The logistic function of 40 is one in float64.
    return heinsen_route(state, torch.full(poses.shape[:2], 40.0), poses)
