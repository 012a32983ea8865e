"""What a child says to a parent: votes V[b,i,j,a,o], stored, or lazy so that they never exist.

A routing algorithm asks votes five questions (agreement, aggregate, norms, log_density, moments) and never how they are
stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from capsroute import form
from capsroute.form.checks import check_same, check_shape
from capsroute.form.contractions.plain import any_sample, one_for_all, safe_sqrt, same_for_all
from capsroute.form.cost import LEAST_ROWS, few_rows, is_wide, loops_over_votes, votes_fit
from capsroute.form.dispatch import autocast_is_on, insists, outside_autocast, reachable
from capsroute.form.gaussian.operators import gaussian_density, gaussian_moments
from capsroute.form.gaussian.plain import ChildMoments, dense_log_density, dense_moments, moments_pay, sums_dtype
from capsroute.form.rows.squash import plain_lengths
from capsroute.form.sizes import sizes_of
from capsroute.form.window import Window

__all__ = ["DenseVotes", "Factors", "IdentityVotes", "LinearVotes", "MapFactors", "Votes", "check_votes", "one_dtype"]

Factors = tuple[Tensor, Tensor, Tensor | None]
MapFactors = tuple[Tensor, Tensor, Window | None]

# Votes of one sample up to this many numbers are stored, not made again in every pass (per-child transforms only);
# and those of all samples up to that many.
STORE_ELEMENTS = 1 << 19
STORE_TOTAL = 1 << 25

_QUESTIONS = ("agreement", "aggregate", "aggregate_folded", "aggregate_alike", "norms", "log_density", "moments")


class Votes:
    """The interface: `batch`, `children`, `parents`, `rows` (a), `columns` (o), `dtype`, `device`; five questions.

    >>> import torch, capsroute as cr
    >>> votes = cr.DenseVotes(torch.ones(2, 6, 3, 4))  # [b,i,j,o]: vector poses
    >>> votes.children, votes.parents, votes.norms().shape
    (6, 3, torch.Size([2, 6, 3]))
    """

    batch: int
    children: int
    parents: int
    rows: int
    columns: int
    dtype: torch.dtype
    device: torch.device
    backend: str = "auto"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Whoever asks, under autocast too, gets statistics: a router of one's own asks outside of our functions.
        for name in _QUESTIONS:
            if name in vars(cls):
                setattr(cls, name, outside_autocast(vars(cls)[name]))

    def dense(self) -> Tensor:
        """The textbook tensor [b,i,j,a,o], for tests and for looking."""
        raise self._unanswered("dense")

    def agreement(self, q: Tensor) -> Tensor:
        """Dot product of each vote with its parent: q [b,j,a,o] -> [b,i,j]."""
        raise self._unanswered("agreement")

    def aggregate(self, c: Tensor) -> Tensor:
        """Weighted sum of votes over children: c [b,i,j] -> [b,j,a,o]."""
        raise self._unanswered("aggregate")

    def aggregate_folded(self, C: Tensor) -> Tensor:
        """The same for coefficients C [i,j] that all samples share, which fold into transforms where there are any."""
        return self.aggregate(C.expand(self.batch, self.children, self.parents))

    def aggregate_alike(self, weight: float) -> Tensor:
        """The same for one number as the coefficient of every child and parent, as algorithms start."""
        return self.aggregate(self.filled(weight))

    def norms(self) -> Tensor:
        """Euclidean length of each vote [b,i,j]; gradient zero where the vote is zero."""
        raise self._unanswered("norms")

    def log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        """log N(vote; mean, variance) up to a constant: two [b,j,a,o] -> [b,i,j]."""
        raise self._unanswered("log_density")

    def moments(self, weights: Tensor, eps: float = 0.0) -> tuple[Tensor, Tensor]:
        """Weighted mean and variance of the votes over children, divided by (sum of weights + eps): two [b,j,a,o]."""
        raise self._unanswered("moments")

    def _unanswered(self, question: str) -> NotImplementedError:
        name = type(self).__name__
        return NotImplementedError(f"votes: a routing asks {name}.{question}, which {name} does not define")

    def keeping(self) -> Votes:
        """The same votes for one computation that asks many times: what its questions share is made once and kept."""
        return self

    def for_loop(self) -> Votes:
        """The same votes, as a loop is to ask them: stored, where it is faster so than by its kernels."""
        return self

    # What operations with kernels of their own ask (`capsroute.form`); None where votes are not of that kind.

    def factors(self) -> Factors | None:
        """u [b,i,a,k], W and bias (or None) of linear votes: both of the latter per child, or both shared by all."""
        return None

    def map_factors(self) -> MapFactors | None:
        """u [b,i,a,k], W with the bias folded in, and None; or a map [b,n,a,k,h,w], W and the window over it."""
        return None

    def table(self) -> Tensor | None:
        """The votes [b,j,i,a*o], where they are stored."""
        return None

    def children_as_votes(self) -> Tensor | None:
        """u [b,i,a,k], where every vote is the child itself."""
        return None

    def tensors(self) -> dict[str, Tensor | None]:
        """What the votes are made of, by the names of their arguments."""
        return {}

    @property
    def statistics_dtype(self) -> torch.dtype:
        """What coefficients, sums and poses are kept in: at least float32."""
        return torch.promote_types(torch.float32, self.dtype)

    def __repr__(self) -> str:
        shape = (self.batch, self.children, self.parents, self.rows, self.columns)
        return f"{type(self).__name__}([b,i,j,a,o] = {list(shape)}, {self.dtype}, {self.device})"

    def _describe(self, tensor: Tensor, children: int, parents: int, rows: int, columns: int) -> None:
        self.batch, self.children, self.parents = tensor.shape[0], children, parents
        self.rows, self.columns = rows, columns
        self.dtype, self.device = tensor.dtype, tensor.device

    def filled(self, value: float | Tensor) -> Tensor:
        """Coefficients [b,i,j] that are all `value`, or expanded from it; a number is filled in on the device."""
        wide, device = self.statistics_dtype, self.device
        c = value.to(device, wide) if isinstance(value, Tensor) else torch.full((), value, dtype=wide, device=device)
        return c.expand(self.batch, self.children, self.parents)


class DenseVotes(Votes):
    """Votes that are there already: V [b,i,j,a,o], or [b,i,j,o] for vector poses.

    >>> import torch, capsroute as cr
    >>> cr.DenseVotes(torch.randn(2, 6, 3, 4))
    DenseVotes([b,i,j,a,o] = [2, 6, 3, 1, 4], torch.float32, cpu)
    """

    def __init__(self, V: Tensor):
        if not isinstance(V, Tensor) or V.dim() not in (4, 5) or not V.is_floating_point():
            given = f"{V.dtype} {tuple(V.shape)}" if isinstance(V, Tensor) else repr(V)
            raise ValueError(f"V: expected a floating-point tensor [b,i,j,a,o] or [b,i,j,o], got {given}")
        V = V.unsqueeze(3) if V.dim() == 4 else V
        self._describe(V, V.shape[1], V.shape[2], V.shape[3], V.shape[4])
        # Parents before children: both sums over the pose and sums over children are then batched matrix products.
        self.by_parent = V.to(self.statistics_dtype).transpose(1, 2).flatten(3).contiguous()  # [b, j, i, a*o]

    def tensors(self) -> dict[str, Tensor | None]:
        return {"V": self.by_parent.transpose(1, 2).unflatten(3, (self.rows, self.columns))}  # as it was given

    def table(self) -> Tensor:
        return self.by_parent

    @property
    def V(self) -> Tensor:
        """The votes [b,i,j,a,o]."""
        return self.dense()

    def dense(self) -> Tensor:
        return self.by_parent.transpose(1, 2).unflatten(3, (self.rows, self.columns)).to(self.dtype)

    def agreement(self, q: Tensor) -> Tensor:
        # A row times a transposed matrix is faster than a matrix times a column.
        q = q.to(self.statistics_dtype).flatten(2).unsqueeze(2)
        return torch.matmul(q, self.by_parent.mT).squeeze(2).mT

    def aggregate(self, c: Tensor) -> Tensor:
        total = torch.matmul(c.to(self.statistics_dtype).mT.unsqueeze(2), self.by_parent)
        return total.squeeze(2).unflatten(2, (self.rows, self.columns))

    def norms(self) -> Tensor:
        return plain_lengths(self.by_parent, 3).mT

    def log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        return dense_log_density(self.by_parent, mean.flatten(2), variance.flatten(2)).mT

    def moments(self, weights: Tensor, eps: float = 0.0) -> tuple[Tensor, Tensor]:
        mean, variance = dense_moments(self.by_parent, weights.mT, eps)
        pose = (self.rows, self.columns)
        return mean.unflatten(2, pose), variance.unflatten(2, pose)


class LinearVotes(Votes):
    """Votes that are a linear map of the children, V = u W + bias, kept as u and W.

    u [b,i,a,k] (or [b,i,k] for vector poses), W [i,j,k,o] or [1,j,k,o], bias [i,j,a,o] or [1,j,a,o].

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 3, 8, 4))
    >>> votes.agreement(torch.randn(2, 3, 1, 4)).shape
    torch.Size([2, 6, 3])
    """

    def __init__(self, u: Tensor, W: Tensor, bias: Tensor | None = None, backend: str = "auto"):
        u = u.unsqueeze(2) if isinstance(u, Tensor) and u.dim() == 3 else u
        form.check_operands(u=u, W=W)
        self.u, self.W, self.bias = one_dtype(u, W, bias)
        self.backend = form.check_backend(backend)
        self._describe(u, u.shape[1], W.shape[1], u.shape[2], W.shape[3])
        self.dtype = self.u.dtype
        if self.bias is not None:
            check_shape("bias", self.bias, (self.children, self.parents, self.rows, self.columns), "ijao", shared=True)
        self._kept: dict[str, Any] | None = None  # None: nothing outlives a question, so nothing can go stale

    def tensors(self) -> dict[str, Tensor | None]:
        return {"u": self.u, "W": self.W, "bias": self.bias}

    @property
    def shared(self) -> bool:
        """Whether one set of transforms (and biases) serves all children."""
        return self.W.shape[0] == 1 and (self.bias is None or self.bias.shape[0] == 1)

    def operands(self) -> tuple[Tensor, Tensor]:
        """u and W with the bias folded in: a bias is a transform of a constant one-hot row, so k grows by a."""
        return (self.u, self.W) if self.bias is None else self._keep("operands", self._with_bias)

    def _with_bias(self) -> tuple[Tensor, Tensor]:
        assert self.bias is not None
        one_hot = torch.eye(self.rows, dtype=self.u.dtype, device=self.u.device)
        u = torch.cat([self.u, one_hot.expand(self.batch, self.children, self.rows, self.rows)], 3)
        children = 1 if self.shared else self.children
        W = torch.cat([t.expand(children, -1, -1, -1) for t in (self.W, self.bias)], 2)
        return u, W

    def dense(self) -> Tensor:
        return self._votes(self.dtype)

    def _votes(self, dtype: torch.dtype) -> Tensor:
        """One matrix product per child, in the order of operands that is fastest forwards and backwards."""
        (batch, children, rows, k), (parents, columns) = self.u.shape, self.W.shape[1::2]
        W = self.W.to(dtype).transpose(1, 2).flatten(2)  # [i or 1, k, j*o]
        if self.W.shape[0] == 1:
            votes = torch.matmul(self.u.to(dtype), W[0])  # [b, i, a, j*o]
            votes = votes.unflatten(3, (parents, columns)).transpose(2, 3)
        else:
            votes = torch.bmm(self.u.to(dtype).transpose(0, 1).reshape(children, batch * rows, k), W)
            votes = votes.view(children, batch, rows, parents, columns).permute(1, 0, 3, 2, 4)
        return votes if self.bias is None else votes + self.bias.to(dtype)

    def agreement(self, q: Tensor) -> Tensor:
        votes = self.stored_if_faster()
        return form.agreement(*self.operands(), q, self.backend) if votes is self else votes.agreement(q)

    def aggregate(self, c: Tensor) -> Tensor:
        # Coefficients that all samples share fold into the transforms, which pays when many rows read the result.
        # A compiled or exported graph must not depend on the batch size.
        folds = same_for_all(c) and (torch.compiler.is_compiling() or self.batch * self.rows >= self.W.shape[2])
        votes = self if folds else self.stored_if_faster()
        return form.aggregate(c, *self.operands(), self.backend) if votes is self else votes.aggregate(c)

    def aggregate_folded(self, C: Tensor) -> Tensor:
        """One matrix product, of children and C W. That is as large as the votes where transforms are shared, and more
        than kernels hold where it serves one sample alone, or few rows: those ask for the weighted sum as it is."""
        u, W = self.operands()
        if self.shared or (self.backend != "torch" and reachable(self.device) and self._reads_once(u, W)):
            return super().aggregate_folded(C)
        folded = (C[:, :, None, None] * W.to(C.dtype)).transpose(1, 2).flatten(2).flatten(0, 1)  # [i * k, j * o]
        children = u.to(C.dtype).transpose(1, 2).flatten(2).flatten(0, 1)  # [b * a, i * k]
        return (children @ folded).view(self.batch, self.rows, self.parents, self.columns).transpose(1, 2)

    def _reads_once(self, u: Tensor, W: Tensor) -> bool:
        alone = self.batch == 1 and self.rows <= self.W.shape[2]
        return alone or (not torch.compiler.is_compiling() and few_rows(sizes_of(u, W)))

    def norms(self) -> Tensor:
        votes = self.stored_if_faster()
        return self._norms_from_squares() if votes is self else votes.norms()

    def _norms_from_squares(self) -> Tensor:
        """|V|^2 = u (W W^T) u needs no votes; its rounding is that of |u|^2 |W|^2, so short votes want float64."""
        u, W = (t.to(sums_dtype(self.device)) for t in self.operands())
        outer = torch.einsum("biak,bial->bikl", u, u)
        gram = torch.einsum("ijko,ijlo->ijkl", W, W)
        shared = W.shape[0] == 1
        squares = torch.einsum("bikl,jkl->bij" if shared else "bikl,ijkl->bij", outer, gram[0] if shared else gram)
        return safe_sqrt(squares).to(self.statistics_dtype)

    def log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        found = gaussian_density.attempt(self.backend, *self.factors(), mean, variance)
        return self._gaussian().log_density(mean, variance) if found is None else found

    def moments(self, weights: Tensor, eps: float = 0.0) -> tuple[Tensor, Tensor]:
        found = gaussian_moments.attempt(self.backend, *self.factors(), weights, None, float(eps))
        return self._gaussian().moments(weights, eps) if found is None else found[:2]

    def factors(self) -> Factors:
        if self.bias is None or self.bias.shape[0] == self.W.shape[0]:
            return self.u, self.W, self.bias
        # Children's gradients of a bias they share all but cancel: they are added before they are rounded.
        bias = self.bias.to(self.statistics_dtype) if self.bias.shape[0] == 1 else self.bias
        W, bias = (t.expand(self.children, -1, -1, -1) for t in (self.W, bias))
        return self.u, W, bias

    def map_factors(self) -> MapFactors:
        return *self.operands(), None

    def table(self) -> Tensor | None:
        votes = self.stored_if_faster()
        return None if votes is self else votes.table()

    def keeping(self) -> LinearVotes:
        if self._kept is not None:
            return self
        # A copy without the checks, which torch.compile before 2.13 cannot trace.
        if torch.compiler.is_compiling():
            votes = self.again()
        else:
            votes = object.__new__(type(self))  # what `copy.copy` does, by way of pickling
            votes.__dict__.update(self.__dict__)
        votes._kept = {}
        return votes

    def again(self) -> LinearVotes:
        """The same votes, made anew. By name: torch.compile of torch 2.6 traces no class that `type` gives."""
        if type(self) is LinearVotes:
            return LinearVotes(self.u, self.W, self.bias, self.backend)
        return type(self)(self.u, self.W, self.bias, self.backend)

    def stored(self) -> DenseVotes:
        """The same votes, stored."""
        return self._keep("stored", lambda: DenseVotes(self._votes(self.statistics_dtype)))

    def stored_if_faster(self) -> Votes:
        """The stored votes where they are asked again and small, or on a GPU too wide for kernels; else these."""
        asked_again = self._kept is not None and not self.shared and self.device.type in ("cpu", "cuda")
        if not asked_again or insists(self.backend):
            return self  # before sizes are compared: an exported graph would be bound to this number of children
        if self.device.type == "cuda":
            return self.stored() if self.backend == "auto" and self._wide() else self
        votes = self.children * self.parents * self.rows * self.columns
        small = votes <= STORE_ELEMENTS or (not torch.compiler.is_compiling() and votes * self.batch <= STORE_TOTAL)
        return self.stored() if small else self

    def for_loop(self) -> Votes:
        if self.backend != "auto" or self.shared or self.device.type != "cuda":
            return self
        s = sizes_of(*self.operands())
        if torch.compiler.is_compiling():  # not to be bound to a number of samples
            s = s._replace(b=LEAST_ROWS)
        if not isinstance(s.i, int):  # nor to one of children, where an exported program is for any
            return self
        return self.stored() if loops_over_votes(s, self.dtype) and self._fit() else self

    def _wide(self) -> bool:
        """Whether no kernel of a whole loop takes these poses, and votes fit."""
        u, W = self.operands()
        return is_wide(u.shape[2], *W.shape[2:]) and self._fit()

    def _fit(self) -> bool:
        """Whether votes fit the memory. A compiled graph, not to be bound to a number of samples, does not ask."""
        if torch.compiler.is_compiling():
            return True
        return votes_fit(sizes_of(*self.operands()), torch.cuda.get_device_properties(self.device).total_memory)

    def _gaussian(self) -> ChildMoments | DenseVotes:
        many = self.shared and self.children > 1
        if not (many and moments_pay(self.dtype, self.rows, self.W.shape[2], self.columns)):
            return self.stored()
        return self._keep("moments", lambda: ChildMoments(self.u, self.W, self.bias))

    def _keep(self, name: str, make: Callable[[], Any]) -> Any:
        if self._kept is None:
            return make()
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


class IdentityVotes(Votes):
    """Pooling: every child's vote for every parent is the child itself. u [b,i,a,k] or [b,i,k].

    On CUDA one kernel pools, where it applies: `cr.form.explain("pooling", u, parents, iterations)` says why not.

    >>> import torch, capsroute as cr
    >>> cr.pooling_routing(cr.IdentityVotes(torch.randn(2, 49, 16))).poses.shape
    torch.Size([2, 1, 1, 16])
    """

    def __init__(self, u: Tensor, parents: int = 1, backend: str = "auto"):
        self.backend = form.check_backend(backend)
        u = u.unsqueeze(2) if isinstance(u, Tensor) and u.dim() == 3 else u
        form.check_operands(u=u)
        if isinstance(parents, bool) or not isinstance(parents, int) or parents < 1:
            raise ValueError(f"parents: expected a whole number >= 1, got {parents!r}")
        self.u = u
        self._describe(u, u.shape[1], parents, u.shape[2], u.shape[3])

    def tensors(self) -> dict[str, Tensor | None]:
        return {"u": self.u}

    def children_as_votes(self) -> Tensor:
        return self.u

    def _children(self) -> Tensor:
        return self.u.to(self.statistics_dtype).flatten(2)  # [b, i, a*k]

    def dense(self) -> Tensor:
        return self.u.unsqueeze(2).expand(-1, -1, self.parents, -1, -1)

    def agreement(self, q: Tensor) -> Tensor:
        return torch.bmm(self._children(), q.to(self.statistics_dtype).flatten(2).mT)

    def aggregate(self, c: Tensor) -> Tensor:
        c, children = c.to(self.statistics_dtype), self._children()
        if one_for_all(c):  # not a product: those of expanded tensors are made one sample at a time
            total = (any_sample(c)[0, 0] * children.sum(1, keepdim=True)).expand(-1, self.parents, -1)
        else:
            total = torch.bmm(c.mT, children)
        return total.unflatten(2, (self.rows, self.columns))

    def norms(self) -> Tensor:
        return plain_lengths(self._children(), 2).unsqueeze(2).expand(-1, -1, self.parents)

    def log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        return DenseVotes(self.dense()).log_density(mean, variance)

    def moments(self, weights: Tensor, eps: float = 0.0) -> tuple[Tensor, Tensor]:
        return DenseVotes(self.dense()).moments(weights, eps)


def one_dtype(u: Tensor, W: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Under autocast operands take autocast's dtype; elsewhere a mixture is an error."""
    if bias is not None and not isinstance(bias, Tensor):
        raise ValueError(f"bias: expected a tensor [i or 1,j,a,o] or None, got {bias!r}")
    given = {"u": u, "W": W} if bias is None else {"u": u, "W": W, "bias": bias}
    check_same("device", **given)
    if autocast_is_on(u.device) and u.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(u.device.type)
        return u.to(dtype), W.to(dtype), None if bias is None else bias.to(dtype)
    check_same("dtype", **given)
    return u, W, bias


def check_votes(votes: object) -> None:
    """These are votes, of at least one parent."""
    if not isinstance(votes, Votes):
        raise ValueError(
            f"votes: expected DenseVotes, LinearVotes or IdentityVotes, got {type(votes).__name__} "
            "(wrap a tensor [b,i,j,a,o] as cr.DenseVotes(V))"
        )
    if votes.parents < 1:
        raise ValueError(f"votes: expected at least one parent, got {votes}")
