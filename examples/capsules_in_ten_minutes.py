"""Capsules in ten minutes.

What a capsule layer does, by hand; then a small network that learns handwritten digits.
"""

# %%
# A capsule is a small vector. A *child* predicts the pose of every *parent*: its pose times a transform. That prediction is a *vote*.
import torch

import capsroute as cr

torch.manual_seed(0)
children = torch.randn(2, 6, 1, 4)  # [b,i,a,k]: two samples, six children, poses of four numbers
transforms = torch.randn(6, 3, 4, 5)  # [i,j,k,o]: to three parents with poses of five
votes = cr.LinearVotes(children, transforms)
print(votes.dense().shape)  # [b,i,j,a,o]: made for us to look at; routing never stores it

# %%
# Routing by agreement: parents start as the mean of all votes; a child whose vote agrees with a parent sends it more.
for iterations in (1, 2, 3):
    routed = cr.dynamic_routing(votes, iterations=iterations)
    print(iterations, routed.coefficients[0, 0].tolist())  # of the first child: which share goes to which parent

# %%
# The coefficients of a child sum to 1 over the parents, and the length of a parent's pose is below 1: a probability that it is there.
print(routed.coefficients.sum(2)[0, 0].item(), cr.routing.lengths(routed.poses)[0].tolist())

# %%
# A network is a CNN that makes primary capsules, and a layer of class capsules. This one is for images of 8 x 8.
digits = cr.data.load("digits", "train")
model = cr.create_model("capsnet_small", image_size=8, routing="dynamic")
optimiser = torch.optim.Adam(model.parameters(), 3e-3)
images, labels = digits.images[:256].float() / 255, digits.labels[:256]
for _ in range(30):
    loss = cr.losses.margin(model(images).scores, labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"loss {loss.item():.3f}")

# %%
# On digits it has not seen. What routing adds is another question: `capsroute evaluate RUN` puts the network as trained beside the same weights with uniform coefficients.
model.eval()
test = cr.data.load("digits", "test")
held_out = test.images.float() / 255
with torch.no_grad():
    as_trained = (model(held_out).scores.argmax(1) == test.labels).float().mean()
print(f"{as_trained:.1%} of {len(test)} digits it has not seen")
