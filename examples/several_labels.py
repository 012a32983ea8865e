"""Several objects in one image.

Each class capsule answers for itself, so an image can show several classes: the margin loss takes a mask of those there.
"""

# %%
# Digits of 8 x 8 pixels, two of them side by side.
import torch

import capsroute as cr

torch.manual_seed(0)
torch.set_num_threads(1)
digits = cr.data.load("digits")


def pairs(count, seed):
    chosen = torch.randint(len(digits), (2, count), generator=torch.Generator().manual_seed(seed))
    images = torch.cat([digits.images[rows] for rows in chosen], 3)  # [n, 1, 8, 16]
    return images, cr.data.multi_hot(digits.labels[chosen].T, classes=10)  # [n, 10]


images, targets = pairs(2000, seed=0)

# %%
# Lengths in [0, 1] for each class, and the loss of Sabour et al. 2017 on all of them.
model = cr.create_model("capsnet_small", image_size=(8, 16), decoder=None, routing="dynamic")
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(4):
    order = torch.randperm(len(images))
    for rows in order.split(50):
        loss = cr.losses.margin(model(images[rows]).scores, targets[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

# %%
# Every class whose capsule is longer than one half is said to be there.
held_out, wanted = pairs(500, seed=1)
with torch.no_grad():
    found = model.eval()(held_out).scores > 0.5
right = (found == wanted.bool()).double().mean().item()
print(f"{right:.1%} of the decisions on new images are right; always saying no gives {1 - wanted.mean():.1%}")
assert right > 0.93
