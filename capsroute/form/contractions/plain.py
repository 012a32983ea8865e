"""The four contractions of the capsule form in plain torch, in the order that stores the least.

    Phi(c, u, W, q) = sum c[b,i,j] u[b,i,a,k] W[i,j,k,o] q[b,j,a,o]

Each function returns the derivative of Phi by the argument it leaves out. Transforms come per child, W[i,j,k,o], or
shared by all children, W[1,j,k,o].

- Shared transforms: parents are pulled back through W, or children summed before W, so nothing is larger than [b,i,j].
- Per-child transforms: one factor of size children x parents x pose is needed; it is made for a few children at a time
  (`chunk`) and on the narrower side of W: columns k of the child ("k-form") or columns o of the parent ("o-form").
- Coefficients that every sample shares (an expanded tensor: uniform, or a master's) fold into W: one matrix product.

Half-precision operands are widened here, so sums are always made in float32 or better.
"""

import torch
from torch import Tensor


def statistics_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype in which sums and statistics of these tensors are kept: at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    dtype = statistics_dtype(*tensors)
    return tuple(tensor.to(dtype) for tensor in tensors)


def agreement(u: Tensor, W: Tensor, q: Tensor, chunk: int | None = None) -> Tensor:
    """dPhi/dc [b,i,j]: the dot product of every vote with its parent."""
    u, W, q = _widen(u, W, q)
    if W.shape[0] == 1:
        return torch.bmm(u.flatten(2), _pull_back(W, q).flatten(2).mT)
    parts = [_agreement_per_child(u[:, s], W[s], q) for s in _slices(W.shape[0], chunk)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def aggregate(c: Tensor, u: Tensor, W: Tensor, chunk: int | None = None) -> Tensor:
    """dPhi/dq [b,j,a,o]: the sum of votes, weighted by the coefficients."""
    c, u, W = _widen(c, u, W)
    if W.shape[0] == 1:
        return torch.einsum("bjak,jko->bjao", _weighted_children(c, u), W[0])
    if one_for_all(c):
        return any_sample(c)[0, 0] * torch.einsum("biak,ijko->bjao", u, W)
    if same_for_all(c):
        return torch.einsum("biak,ijko->bjao", u, any_sample(c)[:, :, None, None] * W)
    slices = _slices(W.shape[0], chunk)
    return _total([_aggregate_per_child(c[:, s], u[:, s], W[s]) for s in slices])


def grad_children(c: Tensor, W: Tensor, q: Tensor, chunk: int | None = None) -> Tensor:
    """dPhi/du [b,i,a,k]."""
    c, W, q = _widen(c, W, q)
    if W.shape[0] == 1:
        return torch.bmm(c, _pull_back(W, q).flatten(2)).unflatten(2, (q.shape[2], W.shape[2]))
    if one_for_all(c):
        return torch.einsum("bjao,ijko->biak", any_sample(c)[0, 0] * q, W)
    if same_for_all(c):
        return torch.einsum("bjao,ijko->biak", q, any_sample(c)[:, :, None, None] * W)
    parts = [_grad_children_per_child(c[:, s], W[s], q) for s in _slices(W.shape[0], chunk)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def grad_transforms(c: Tensor, u: Tensor, q: Tensor, shared: bool, chunk: int | None = None) -> Tensor:
    """dPhi/dW [i,j,k,o], or [1,j,k,o] when the transforms are shared."""
    c, u, q = _widen(c, u, q)
    if shared:
        return torch.einsum("bjak,bjao->jko", _weighted_children(c, u), q).unsqueeze(0)
    if one_for_all(c):
        return torch.einsum("biak,bjao->ijko", u, any_sample(c)[0, 0] * q)
    if same_for_all(c):
        return any_sample(c)[:, :, None, None] * torch.einsum("biak,bjao->ijko", u, q)
    parts = [_grad_transforms_per_child(c[:, s], u[:, s], q) for s in _slices(u.shape[1], chunk)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 0)


def _pull_back(W: Tensor, q: Tensor) -> Tensor:
    return torch.einsum("bjao,jko->bjak", q, W[0])  # [b, j, a, k]


def _weighted_children(c: Tensor, u: Tensor) -> Tensor:
    return torch.bmm(c.mT, u.flatten(2)).unflatten(2, (u.shape[2], u.shape[3]))  # [b, j, a, k]


def same_for_all(c: Tensor) -> bool:
    """Whether every sample has the same coefficients: a tensor expanded over the batch."""
    return c.shape[0] > 0 and c.stride(0) == 0


def one_for_all(c: Tensor) -> bool:
    """Whether all coefficients are one number, expanded: as in the first iteration of most algorithms."""
    return c.numel() > 0 and all(stride == 0 for stride in c.stride())


def any_sample(c: Tensor) -> Tensor:
    """The coefficients [i,j] that every sample shares. Where a program is traced there may be no sample to take them
    from when it runs: a sum over one sample is zero then."""
    return c[:1].sum(0) if isinstance(c.shape[0], torch.SymInt) else c[0]


def _k_form(k: int, o: int) -> bool:
    return k <= o


def _agreement_per_child(u: Tensor, W: Tensor, q: Tensor) -> Tensor:
    if _k_form(W.shape[2], W.shape[3]):
        pulled = torch.einsum("bjao,ijko->jbaik", q, W)
        return torch.einsum("jbaik,biak->bij", pulled, u)
    votes = torch.einsum("biak,ijko->ibajo", u, W)
    return torch.einsum("ibajo,bjao->bij", votes, q)


def _aggregate_per_child(c: Tensor, u: Tensor, W: Tensor) -> Tensor:
    if _k_form(W.shape[2], W.shape[3]):
        weighted = c.permute(2, 0, 1)[:, :, None, :, None] * u.transpose(1, 2)  # [j, b, a, i, k]
        return torch.einsum("jbaik,ijko->bjao", weighted, W)
    votes = torch.einsum("biak,ijko->ibajo", u, W)
    return torch.einsum("bij,ibajo->bjao", c, votes)


def _grad_children_per_child(c: Tensor, W: Tensor, q: Tensor) -> Tensor:
    if _k_form(W.shape[2], W.shape[3]):
        pulled = torch.einsum("bjao,ijko->jbaik", q, W)
        return torch.einsum("bij,jbaik->biak", c, pulled)
    weighted = c.transpose(0, 1)[:, :, None, :, None] * q.transpose(1, 2)  # [i, b, a, j, o]
    return torch.einsum("ibajo,ijko->biak", weighted, W)


def _grad_transforms_per_child(c: Tensor, u: Tensor, q: Tensor) -> Tensor:
    if _k_form(u.shape[3], q.shape[3]):
        weighted = c.permute(2, 0, 1)[:, :, None, :, None] * u.transpose(1, 2)  # [j, b, a, i, k]
        return torch.einsum("jbaik,bjao->ijko", weighted, q)
    weighted = c.transpose(0, 1)[:, :, None, :, None] * q.transpose(1, 2)  # [i, b, a, j, o]
    return torch.einsum("ibajo,biak->ijko", weighted, u)


def _slices(children: int, chunk: int | None) -> list[slice]:
    if chunk is None or chunk >= children:
        return [slice(None)]
    return [slice(start, min(start + chunk, children)) for start in range(0, children, chunk)]


def _total(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def safe_sqrt(x: Tensor) -> Tensor:
    """sqrt; zero with gradient zero, not NaN, where x is not above zero. Differentiable twice."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)
