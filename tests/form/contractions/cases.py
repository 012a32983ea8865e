"""The four contractions: random operands, and the definition by loops that implementations are held to."""

import numpy as np
import torch

from tests.kinds import Sizes

NAMES = ("agreement", "aggregate", "grad_children", "grad_transforms")
ORDER = {"agreement": "uWq", "aggregate": "cuW", "grad_children": "cWq", "grad_transforms": "cuq"}

# Each row says why it is there.
SIZES = {
    "one of everything": Sizes(1, 1, 1, 1, 1, 1),
    "one child, which looks like shared transforms": Sizes(2, 1, 3, 2, 3, 4),
    "one parent": Sizes(2, 5, 1, 2, 3, 4),
    "primes: narrower on the child's side": Sizes(2, 7, 5, 3, 2, 11),
    "primes: narrower on the parent's side": Sizes(2, 7, 5, 3, 11, 2),
    "equal sizes: swapped axes would fit": Sizes(3, 3, 3, 3, 3, 3),
    "an empty batch": Sizes(0, 4, 3, 2, 3, 2),
    "no children": Sizes(2, 0, 3, 2, 3, 2),
}


def operands(s: Sizes, shared: bool, seed: int = 0, dtype=torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"c": (s.b, s.i, s.j), "u": (s.b, s.i, s.a, s.k), "W": (1 if shared else s.i, s.j, s.k, s.o)}
    shapes["q"] = (s.b, s.j, s.a, s.o)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()
    }


def arguments(name: str, parts: dict[str, torch.Tensor], shared: bool) -> list:
    return [parts[letter] for letter in ORDER[name]] + ([shared] if name == "grad_transforms" else [])


def by_loops(name: str, parts: dict[str, torch.Tensor], s: Sizes, shared: bool) -> torch.Tensor:
    """The derivative of Phi = sum of c u W q by the operand that is left out, one product at a time."""
    c, u, W, q = (parts[letter].numpy() for letter in "cuWq")
    out = np.zeros(
        {
            "agreement": (s.b, s.i, s.j),
            "aggregate": (s.b, s.j, s.a, s.o),
            "grad_children": (s.b, s.i, s.a, s.k),
            "grad_transforms": (1 if shared else s.i, s.j, s.k, s.o),
        }[name]
    )
    for b, i, j, a, k, o in np.ndindex(*s):
        w = 0 if shared else i
        if name == "agreement":
            out[b, i, j] += u[b, i, a, k] * W[w, j, k, o] * q[b, j, a, o]
        elif name == "aggregate":
            out[b, j, a, o] += c[b, i, j] * u[b, i, a, k] * W[w, j, k, o]
        elif name == "grad_children":
            out[b, i, a, k] += c[b, i, j] * W[w, j, k, o] * q[b, j, a, o]
        else:
            out[w, j, k, o] += c[b, i, j] * u[b, i, a, k] * q[b, j, a, o]
    return torch.from_numpy(out)
