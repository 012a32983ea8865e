"""Triton kernels for the capsule form; imported when the first CUDA tensor asks, so that torch alone is enough.

Importing this module plugs the kernels into `capsroute.form.dispatch`.
"""

from capsroute.form.dispatch import register_kernel
from capsroute.form.kernels import contractions, loop

__all__ = ["contractions", "loop"]

for _name, _reasons in contractions.REASONS.items():
    register_kernel(_name, getattr(contractions, _name), _reasons)
register_kernel("routing_loop", loop.loop_forward, loop.loop_reasons)
