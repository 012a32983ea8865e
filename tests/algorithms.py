"""Every routing function with tensor arguments only, so that transforms can be tried on all of them alike."""

import torch

import capsroute as cr
from tests.kinds import Sizes

# name -> (shapes of the tensor arguments besides votes, by index letter; the call)
ALGORITHMS = {
    "dynamic": ((), cr.dynamic_routing),
    "max_min": ((), cr.max_min_routing),
    "fast": (("ij",), cr.fast_routing),
    "pooling": ((), lambda votes: cr.pooling_routing(votes, iterations=2)),
    "inverted_attention": (("bjao",), cr.inverted_attention_routing),
    "em": (("bi", "j", "j"), lambda votes, a, *betas: cr.em_routing(votes, a.sigmoid(), *betas)),
    "heinsen": (("bi", "ij", "1j"), cr.heinsen_routing),
    "self_routing": (("bi", "bij"), lambda votes, a, logits: cr.self_routing(votes, a.sigmoid(), logits)),
    "self_attention": (("ij",), cr.self_attention_routing),
    "vb": (("bi", "j", "j"), lambda votes, a, *betas: cr.vb_routing(votes, a.sigmoid(), *betas)),
}


def arguments(algorithm: str, s: Sizes, seed: int = 3, dtype=torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [[1 if x == "1" else getattr(s, x) for x in letters] for letters in ALGORITHMS[algorithm][0]]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def route(algorithm: str, votes: cr.Votes, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The parts of Routed that the algorithm has."""
    return tuple(part for part in ALGORITHMS[algorithm][1](votes, *tensors) if part is not None)
