"""What every routing algorithm is as a module: a name, options, and the few parameters that some algorithms learn."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from capsroute.routing import Routed
from capsroute.votes import Votes

__all__ = ["VARIANCE_FLOOR", "Router", "all_active"]

# Learned layers keep variances well above what float32 can lose to cancellation.
VARIANCE_FLOOR = 1e-4


class Router(nn.Module):
    """One routing algorithm with its options. `build` makes its parameters once a layer knows its sizes."""

    name: str
    # What scores the algorithm takes and gives: None, "logit" or "probability".
    score_kind: str | None = None
    # Whether the scores it gives say which class is there.
    scores_classes = False
    # Whether the poses it gives are squashed, so that their length is a probability.
    squashes = False
    # Its parameters that weight decay spares: benefits, costs and coefficients have no reason to be small.
    undecayed: tuple[str, ...] = ()
    # What primary capsules go through before it: an `activation` of PrimaryCapsules.
    child_activation: str | None = None
    # Whether it is faster where nobody looks at the coefficients: `forward(..., coefficients=False)`.
    spares_coefficients = False

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        """Make parameters for this many children (None: any number) and parents with poses of this size."""

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition) -> Routed:
        """Route: votes [b,i,j,a,o], scores [b,i] where the algorithm has them."""
        raise NotImplementedError

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None, coefficients: bool = True) -> Routed:
        """One step from the parents' poses of the previous step (None: the first); coefficients only if asked for."""
        self.check_steps()
        raise NotImplementedError

    def can_step(self) -> bool:
        """Whether the algorithm can be stepped from poses alone."""
        return type(self).step is not Router.step

    def check_steps(self) -> None:
        """Whether `step` makes sense for this algorithm; a ValueError that says why, if not."""
        if not self.can_step():
            raise ValueError(
                f"routing: {self.name!r} keeps state over its own iterations and cannot be stepped from poses alone; "
                "use schedule='sequential', or routing='inverted_attention' for schedule='concurrent'"
            )

    def config(self) -> dict:
        """Name and options, as plain data that `make_router` takes back."""
        options = [p for p in inspect.signature(type(self).__init__).parameters if p != "self"]
        return {"name": self.name, **{option: getattr(self, option) for option in options}}

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.config().items() if key != "name")


def all_active(votes: Votes) -> Tensor:
    """Scores [b,i] of children that are all active."""
    return torch.ones(votes.batch, votes.children, dtype=votes.statistics_dtype, device=votes.device)
