"""A routing layer in your CNN.

Routing pooling takes the place of global average pooling in one line; a capsule layer takes the place of a classifier.
"""

# %%
# Any network with an average pooling over the whole map. Routing pooling keeps the shape of what it replaces.
import torch
from torch import nn

import capsroute as cr

torch.manual_seed(0)
cnn = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
pooled = cr.layers.replace_pooling(cnn, capsule_size=16, sharpness=0.5)
print(pooled(torch.randn(2, 3, 32, 32)).shape)

# %%
# Class capsules on top of features: primary capsules cut the map into vectors, `CapsuleLinear` routes them to one capsule a class. The length of a class capsule is its score.
features = nn.Sequential(nn.Conv2d(3, 32, 5, stride=2), nn.ReLU())
primary = cr.layers.PrimaryCapsules(in_channels=32, capsules=4, pose=8, kernel_size=5, stride=2)
maps = primary(features(torch.randn(1, 3, 32, 32))).poses  # [b,n,a,k,h,w]
children = maps.shape[1] * maps.shape[4] * maps.shape[5]
classes = cr.layers.CapsuleLinear(children, 10, in_pose=8, out_pose=16, routing="max_min")


class Net(nn.Module):
    """Returns scores [b, classes], as any classifier does."""

    def __init__(self):
        super().__init__()
        self.features, self.primary, self.classes = features, primary, classes

    def forward(self, images):
        return cr.routing.lengths(self.classes(self.primary(self.features(images)).poses).poses)


# %%
# It trains like any other module.
net = Net()
optimiser = torch.optim.Adam(net.parameters(), 1e-3)
images, labels = torch.rand(16, 3, 32, 32), torch.randint(10, (16,))
losses = []
for _ in range(10):
    loss = cr.losses.margin(net(images), labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(f"{losses[0]:.3f} -> {losses[-1]:.3f}")
assert losses[-1] < losses[0]
