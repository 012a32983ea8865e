"""Where is it, and how is it turned?

A capsule's pose is a vector that can be trained to mean something: here the place and the angle of a bar.
"""

# %%
# Bars of 20 x 20 pixels at any place and any angle. A bar turned by half a circle is the same bar, so the angle is told
# by the cosine and the sine of its double.
import math

import torch

import capsroute as cr

torch.manual_seed(0)
torch.set_num_threads(1)


def bars(count):
    place, angle = torch.rand(count, 2) * 1.0 - 0.5, torch.rand(count) * math.pi
    y, x = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")
    dy, dx = y - place[:, 0, None, None], x - place[:, 1, None, None]
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    along, across = dx * cosine + dy * sine, dy * cosine - dx * sine
    images = (along.abs() < 0.5) & (across.abs() < 0.12)
    targets = torch.cat([place, torch.stack([(2 * angle).cos(), (2 * angle).sin()], 1)], 1)
    return images.float()[:, None], targets  # [n, 1, 20, 20], [n, 4]


images, targets = bars(2000)

# %%
# One class capsule; the first four numbers of its pose are the answer. Inverted attention does not squash poses, so they
# may be of any length; a linear map brings them to the scale of the targets.
model = cr.create_model(
    "tsai_simple_cifar10",
    in_channels=1,
    image_size=20,
    num_classes=1,
    backbone={"name": "simple", "channels": 16},
    primary_capsules=8,
    convolutions=((8, 3, 2),),
)
read_out = torch.nn.Linear(16, 4)
optimiser = torch.optim.Adam([*model.parameters(), *read_out.parameters()], lr=3e-3)
for epoch in range(5):
    for rows in torch.randperm(len(images)).split(60):
        poses = model(images[rows]).poses.flatten(1)  # [b, 16]: one capsule with a 4 x 4 pose
        loss = (read_out(poses) - targets[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: squared error {loss.item():.3f}")

# %%
# On new bars: how far off in place (the image is 2 wide) and in angle.
held_out, wanted = bars(500)
with torch.no_grad():
    answer = read_out(model.eval()(held_out).poses.flatten(1))
place = (answer[:, :2] - wanted[:, :2]).norm(dim=1).mean().item()
turn = torch.atan2(answer[:, 3], answer[:, 2]) - torch.atan2(wanted[:, 3], wanted[:, 2])
angle = (torch.atan2(turn.sin(), turn.cos()).abs() / 2).mean().item() * 180 / math.pi
print(f"place off by {place:.3f}, angle by {angle:.1f} degrees (chance: 45)")
assert angle < 15
