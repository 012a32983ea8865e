"""Slot attention (Locatello et al. 2020, algorithm 1): slots compete for inputs, a few times over.

k_i = LN(u_i) W_k,  v_i = LN(u_i) W_v,    s_j = mu + exp(log sigma) noise, or learned for each slot
t times:   q_j <- LN(s_j) W_q
           s_j <- GRU(sum_i A_ij v_i, s_j)        A: `cr.slot_routing`, softmax over slots, mean over inputs
           s_j <- s_j + MLP(LN(s_j))
"""

import torch
from torch import Tensor, nn

from capsroute.layers.pose import check_like
from capsroute.naming import check_one_of
from capsroute.routing import Routed, slot_routing
from capsroute.routing.checks import check_at_least

STARTS = ("gaussian", "learned")
UPDATES = ("gru", None)


class SlotAttention(nn.Module):
    """Inputs [b,i,in_features] -> Routed with poses [b,j,1,features], one for each slot.

    `start="gaussian"` draws slots from one learned normal distribution, so that their number may change at call time;
    `"learned"` gives each slot a start of its own. `update=None` takes the weighted mean itself in place of a GRU;
    `hidden=None` leaves out the MLP. `bias` gives q, k and v biases: the first released code has none.
    `stop_gradient=True` differentiates the last iteration only, and the start as if it were the last slots' own.
    `mask` [b,i] leaves out inputs where it is false: a sample in which all are left out keeps finite slots.

    >>> import torch, capsroute as cr
    >>> layer = cr.layers.SlotAttention(slots=5, features=64)
    >>> layer(torch.randn(2, 49, 64)).poses.shape, layer(torch.randn(2, 49, 64), slots=7).poses.shape
    (torch.Size([2, 5, 1, 64]), torch.Size([2, 7, 1, 64]))
    """

    # Starts are no weights: weight decay spares them.
    undecayed = ("mean", "log_deviation", "first")

    def __init__(
        self,
        slots: int,
        features: int,
        iterations: int = 3,
        hidden: int | None = 128,
        in_features: int | None = None,
        start: str = "gaussian",
        update: str | None = "gru",
        bias: bool = False,
        stop_gradient: bool = False,
        eps: float = 1e-8,
    ):
        super().__init__()
        for name, value in (("slots", slots), ("features", features), ("iterations", iterations)):
            check_at_least(name, value, 1)
        for name, size in (("hidden", hidden), ("in_features", in_features)):
            if size is not None:
                check_at_least(name, size, 1)
        check_one_of("start", start, STARTS)
        check_one_of("update", update, UPDATES)
        self.slots, self.features, self.iterations = slots, features, iterations
        self.start, self.stop_gradient, self.eps = start, stop_gradient, eps
        self.in_features = features if in_features is None else in_features
        self.norm_inputs = nn.LayerNorm(self.in_features)
        self.norm_slots = nn.LayerNorm(features)
        self.to_keys = nn.Linear(self.in_features, features, bias)
        self.to_values = nn.Linear(self.in_features, features, bias)
        self.to_queries = nn.Linear(features, features, bias)
        self.update = nn.GRUCell(features, features) if update == "gru" else None
        self.mlp = None
        if hidden is not None:
            wide = nn.Linear(features, hidden)
            self.mlp = nn.Sequential(nn.LayerNorm(features), wide, nn.ReLU(), nn.Linear(hidden, features))
        if start == "gaussian":
            self.mean = nn.Parameter(torch.empty(1, features))
            self.log_deviation = nn.Parameter(torch.empty(1, features))
        else:
            self.first = nn.Parameter(torch.empty(slots, features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh weights: uniform by fan-in and fan-out, as the released code has them."""
        for linear in (self.to_keys, self.to_values, self.to_queries):
            nn.init.xavier_uniform_(linear.weight)
        for start in (self.mean, self.log_deviation) if self.start == "gaussian" else (self.first,):
            nn.init.xavier_uniform_(start)

    def first_slots(self, batch: int, slots: int | None = None) -> Tensor:
        """Where slots start [b,j,d]: drawn anew in every call under "gaussian"."""
        slots = self.slots if slots is None else slots
        check_at_least("slots", slots, 1)
        if self.start == "learned":
            if slots != self.slots:
                raise ValueError(f"slots: a learned start has one vector for each of {self.slots} slots, got {slots}")
            return self.first.expand(batch, -1, -1)
        noise = torch.randn(batch, slots, self.features, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.log_deviation.exp() * noise

    def forward(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        slots: int | None = None,
        first: Tensor | None = None,
        return_coefficients: bool = False,
    ) -> Routed:
        """Route; `first` [b,j,d] gives the start, coefficients [b,i,j] of the last iteration come when asked for."""
        if inputs.dim() != 3 or inputs.shape[2] != self.in_features:
            raise ValueError(f"inputs: expected [b,i,{self.in_features}], got {list(inputs.shape)}")
        check_like("inputs", inputs, self.mean if self.start == "gaussian" else self.first)
        if first is None:
            first = self.first_slots(inputs.shape[0], slots)
        elif first.dim() != 3 or first.shape[0] != inputs.shape[0] or first.shape[2] != self.features:
            raise ValueError(f"first: expected [{inputs.shape[0]},j,{self.features}], got {list(first.shape)}")
        if mask is not None and mask.shape == inputs.shape[:2]:
            inputs = torch.where(mask.unsqueeze(2) > 0, inputs, 0.0)  # whatever stands in the padding, even NaN
        normed = self.norm_inputs(inputs)
        keys, values = self.to_keys(normed), self.to_values(normed)
        # A zero of the inputs: torch.func wants both that go into a GRU to be of one sample.
        poses, coefficients = first + inputs.new_zeros(()), None
        for iteration in range(self.iterations):
            last = iteration == self.iterations - 1
            if last and self.stop_gradient:
                poses = poses.detach() + (first - first.detach())
            poses, coefficients = self._step(keys, values, poses, mask, last and return_coefficients)
        return Routed(poses.unsqueeze(2), coefficients, None, None)

    def _step(
        self, keys: Tensor, values: Tensor, slots: Tensor, mask: Tensor | None, asked: bool
    ) -> tuple[Tensor, Tensor | None]:
        queries = self.to_queries(self.norm_slots(slots))
        routed = slot_routing(keys, values, queries, eps=self.eps, mask=mask, coefficients=asked)
        updates = routed.poses.squeeze(2).to(slots.dtype)
        if self.update is None:
            slots = updates
        else:
            slots = self.update(updates.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return (slots if self.mlp is None else slots + self.mlp(slots)), routed.coefficients

    def extra_repr(self) -> str:
        return f"slots={self.slots}, features={self.features}, iterations={self.iterations}, start={self.start!r}"
