"""From CapsNet-Keras or gram-ai to here.

What the most used capsule code calls its parts, and what they are called here; then weights of gram-ai's PyTorch CapsNet in a model of this library.

| CapsNet-Keras | gram-ai/capsule-networks | here |
|---|---|---|
| `PrimaryCap(x, dim_capsule=8, n_channels=32, ...)` | `CapsuleLayer(8, -1, 256, 32, kernel_size=9, stride=2)` | `cr.layers.PrimaryCapsules` |
| `CapsuleLayer(num_capsule=10, dim_capsule=16, routings=3)` | `CapsuleLayer(num_capsules=10, num_route_nodes=1152, ...)` | `cr.layers.CapsuleLinear(1152, 10, in_pose=8, out_pose=16)` |
| `Length()` | `(x ** 2).sum(dim=-1) ** 0.5` | `cr.routing.lengths(poses)`, a gradient at zero included |
| `squash(x, axis=-1)` | `squash(tensor, dim=-1)` | `cr.squash(x, dims)` |
| `Mask()` and the decoder | `y * classes` and the decoder | `cr.layers.Decoder` |
| `margin_loss`, `lam_recon=0.392` times the mean | `CapsuleLoss`, 0.0005 times the sum | `cr.losses.margin`, `cr.losses.reconstruction(..., weight=0.0005)`: the same number at 784 pixels |
| `python capsulenet.py --routings 3` | `python capsule_network.py` | `capsroute train sabour-mnist` |

Mind: gram-ai's routing takes its softmax over *children*; Sabour et al. 2017, CapsNet-Keras and this library take it over parents. Weights that were trained with one
are not right for the other: see "Bugs in capsule code you may be using".
"""

# %%
# A state dict with the names and shapes of gram-ai's CapsuleNet; `torch.load("epoch_500.pt", weights_only=True)` would be yours.
import torch

import capsroute as cr

torch.manual_seed(0)
theirs = {"conv1.weight": torch.randn(256, 1, 9, 9) * 0.05, "conv1.bias": torch.zeros(256)}
for k in range(8):  # eight convolutions: number k of every primary capsule's pose
    theirs[f"primary_capsules.capsules.{k}.weight"] = torch.randn(32, 256, 9, 9) * 0.01
    theirs[f"primary_capsules.capsules.{k}.bias"] = torch.zeros(32)
theirs["digit_capsules.route_weights"] = torch.randn(10, 1152, 8, 16) * 0.1
for layer, (rows, columns) in zip((0, 2, 4), ((512, 160), (1024, 512), (784, 1024))):
    theirs[f"decoder.{layer}.weight"], theirs[f"decoder.{layer}.bias"] = (
        torch.randn(rows, columns) * 0.02,
        torch.zeros(rows),
    )

# %%
# The converter: names and order of axes change, no number does. A tensor that is missing, left over or of another shape is an error with its name.
model = cr.models.load_published(cr.create_model("capsnet"), theirs)
scores = model(torch.rand(2, 1, 28, 28)).scores
print("lengths of the class capsules", tuple(scores.shape))

# %%
# Their routing is the paper's with the softmax over the other axis, a few lines here: the same votes, routed as they were trained.
u, W = torch.randn(2, 1152, 1, 8), model.class_capsules.W.detach()
votes = cr.LinearVotes(u, W)
logits = torch.zeros(2, 1152, 10)
for _ in range(3):
    poses = cr.squash(votes.aggregate(logits.softmax(1)), (2, 3))  # over children, as gram-ai
    logits = logits + votes.agreement(poses)
print("over children", tuple(poses.shape), "over parents", tuple(cr.dynamic_routing(votes).poses.shape))

# %%
# From here on it is a model like any other: `cr.save_model` writes safetensors, `capsroute export` ONNX, and training goes on with `cr.training.fit`.
print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters, as in the paper")
