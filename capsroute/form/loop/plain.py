"""The loop of dynamic and max-min routing, one question to the votes at a time.

The logits are linear in the parents, b_ij = V_ij . (v_1 + ... + v_t), so the loop carries one accumulated query
[b,j,a,o] instead of logits [b,i,j].
"""

from collections.abc import Callable

from torch import Tensor

from capsroute.form.loop.normalise import MaxMin, Softmax
from capsroute.form.rows.squash import squash

Normalise = Softmax | MaxMin


def plain_loop(
    agreement: Callable[[Tensor], Tensor], aggregate: Callable[[Tensor], Tensor], c: Tensor, normalise: Normalise,
    iterations: int, stop_gradient: bool, backend: str = "auto",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Poses [b,j,a,o] and coefficients, from the first coefficients c [b,i,j] (expanded)."""
    poses = query = squash(aggregate(c), (2, 3), backend)
    for iteration in range(1, iterations):
        if iteration > 1:
            query = query + poses
        logits = agreement(query.detach() if stop_gradient else query)
        c = normalise.__call__(logits)  # by its name: torch.compile of torch 2.6 traces no call of a named tuple
        poses = squash(aggregate(c.detach() if stop_gradient else c), (2, 3), backend)
    return poses, c
