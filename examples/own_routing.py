"""Your own routing.

An algorithm is a function of votes and a router that says what others need to know. Registered, it goes by name everywhere.
"""

# %%
# The five words are questions to the votes: `votes.agreement(q)` [b,i,j], `votes.aggregate(c)` [b,j,a,o]. Here: dynamic routing that forgets half of what it agreed on before.
import torch

import capsroute as cr
from capsroute.routing import lengths


def forgetful_routing(votes, iterations=3, memory=0.5):
    """Like dynamic routing, with b <- memory * b + V . v."""
    logits = votes.filled(0.0)  # [b,i,j], where the votes are
    for iteration in range(iterations):
        c = logits.softmax(2)  # over parents
        v = cr.squash(votes.aggregate(c), (2, 3))
        if iteration < iterations - 1:
            logits = memory * logits + votes.agreement(v)
    return cr.Routed(v, c, None, None)


# %%
# The router holds the options, and declares: what it does to the weighted sum, and that parents compete. It does not say whether given coefficients can take the place of its own, so fast inference refuses it, with the reason.
@cr.layers.register_routing("forgetful")
class ForgetfulRouter(cr.layers.Router):
    activation, competes_over = "squash", "parents"

    def __init__(self, iterations: int = 3, memory: float = 0.5):
        super().__init__()
        self.iterations, self.memory = iterations, memory

    def forward(self, votes, scores=None, **competition):
        return forgetful_routing(votes, self.iterations, self.memory)


# %%
# By name, in a model of the library.
torch.manual_seed(0)
model = cr.create_model("capsnet_small", image_size=8, routing={"name": "forgetful", "memory": 0.9})
output = model(torch.rand(2, 1, 8, 8), return_coefficients=True)
print({name: list(c.shape) for name, c in output.coefficients.items()})

# %%
# A check that every algorithm here passes: a sample alone gives what it gives in a batch.
votes = cr.DenseVotes(torch.randn(4, 6, 3, 5, dtype=torch.float64))
alone = cr.DenseVotes(votes.V[:1])
assert torch.allclose(lengths(forgetful_routing(votes).poses)[:1], lengths(forgetful_routing(alone).poses))
