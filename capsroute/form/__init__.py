"""The capsule form: four contractions that every dot-product routing is made of.

u[b,i,a,k] children    W[i,j,k,o] transforms (or [1,j,k,o])    c[b,i,j] coefficients    q[b,j,a,o] parents
Phi(c, u, W, q) = sum c u W q,   agreement = dPhi/dc,   aggregate = dPhi/dq,   and the two gradients
"""

from torch import Tensor

from capsroute.form.checks import check_operands
from capsroute.form.contractions.operators import CONTRACTIONS, decompositions
from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.dispatch import BACKENDS, check_backend, explain, register_kernel

__all__ = [
    "BACKENDS", "aggregate", "agreement", "check_backend", "check_operands", "decompositions", "explain",
    "grad_children", "grad_transforms", "register_kernel", "statistics_dtype",
]  # fmt: skip


def agreement(u: Tensor, W: Tensor, q: Tensor, backend: str = "auto") -> Tensor:
    """dPhi/dc: the dot product of every child's vote with every parent, without storing the votes.

    u [b,i,a,k], W [i,j,k,o] or [1,j,k,o], q [b,j,a,o] -> [b,i,j]

    >>> import torch, capsroute as cr
    >>> cr.form.agreement(torch.ones(2, 3, 1, 4), torch.ones(3, 5, 4, 6), torch.ones(2, 5, 1, 6)).shape
    torch.Size([2, 3, 5])
    """
    check_operands(u=u, W=W, q=q)
    return CONTRACTIONS["agreement"](u, W, q, backend=backend)


def aggregate(c: Tensor, u: Tensor, W: Tensor, backend: str = "auto") -> Tensor:
    """dPhi/dq: the votes summed over children with weights c.

    c [b,i,j], u [b,i,a,k], W [i,j,k,o] or [1,j,k,o] -> [b,j,a,o]

    >>> import torch, capsroute as cr
    >>> cr.form.aggregate(torch.ones(2, 3, 5), torch.ones(2, 3, 1, 4), torch.ones(1, 5, 4, 6)).shape
    torch.Size([2, 5, 1, 6])
    """
    check_operands(c=c, u=u, W=W)
    return CONTRACTIONS["aggregate"](c, u, W, backend=backend)


def grad_children(c: Tensor, W: Tensor, q: Tensor, backend: str = "auto") -> Tensor:
    """dPhi/du: what the parents say back to the children.

    c [b,i,j], W [i,j,k,o] or [1,j,k,o], q [b,j,a,o] -> [b,i,a,k]

    >>> import torch, capsroute as cr
    >>> cr.form.grad_children(torch.ones(2, 3, 5), torch.ones(3, 5, 4, 6), torch.ones(2, 5, 1, 6)).shape
    torch.Size([2, 3, 1, 4])
    """
    check_operands(c=c, W=W, q=q)
    return CONTRACTIONS["grad_children"](c, W, q, backend=backend)


def grad_transforms(c: Tensor, u: Tensor, q: Tensor, shared: bool = False, backend: str = "auto") -> Tensor:
    """dPhi/dW, summed over the batch, and over children too when the transforms are shared.

    c [b,i,j], u [b,i,a,k], q [b,j,a,o] -> [i,j,k,o], or [1,j,k,o] when shared

    >>> import torch, capsroute as cr
    >>> cr.form.grad_transforms(torch.ones(2, 3, 5), torch.ones(2, 3, 1, 4), torch.ones(2, 5, 1, 6)).shape
    torch.Size([3, 5, 4, 6])
    """
    check_operands(c=c, u=u, q=q)
    return CONTRACTIONS["grad_transforms"](c, u, q, shared, backend=backend)
