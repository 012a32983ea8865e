"""Self-routing (Hahn, Pyeon & Kim 2019) as one operation: two calls a training step, of a few kernels each.

A recorded graph has its plain form, which a compiler fuses with what is around it.
"""

from torch import Tensor

from capsroute.form.contractions.operators import CONTRACTIONS
from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.dispatch import reachable
from capsroute.form.operations import Operation
from capsroute.form.self_routing.plain import plain_self_routing


def self_routing(votes, activations: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares r [b,i,j], poses [b,j,a,o] and scores [b,j], of activations [b,i] and logits [b,i,j] in any dtype.

    `cr.form.explain("self_routing", u, W, activations, logits)` says why there are no kernels for linear votes.
    """
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is not None and factors[2] is None:
        found = SELF_ROUTING.attempt(votes.backend, *factors[:2], activations, logits)
        if found is not None:
            return found
    wide = votes.statistics_dtype
    return plain_self_routing(votes.aggregate, activations.to(wide), logits.to(wide))


def _plain(u: Tensor, W: Tensor, activations: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = statistics_dtype(u, W)
    return plain_self_routing(lambda c: CONTRACTIONS["aggregate"](c, u, W), activations.to(wide), logits.to(wide))


# The gradient reads all but the shares, which it makes again of the logits: mostly nobody keeps them.
SELF_ROUTING = Operation(
    "self_routing", _plain, tensors=4, asks=(0, 1, 2, 3), results=3, kept=slice(1, None), falls_back=True, seldom=(0,)
)
