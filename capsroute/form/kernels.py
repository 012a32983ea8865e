"""Triton kernels for the capsule form; imported when the first CUDA tensor asks, so that torch alone is enough.

Importing this module plugs the kernels into `capsroute.form.dispatch`.
"""

from capsroute.form.attention import calls as attention_step
from capsroute.form.contractions import kernels as contractions
from capsroute.form.dispatch import register_kernel
from capsroute.form.gaussian import passes as gaussian_passes
from capsroute.form.gaussian import plan as gaussian_plan
from capsroute.form.loop import calls as loop
from capsroute.form.pooling import kernels as pooling
from capsroute.form.rows import kernels as rows

__all__ = ["attention_step", "contractions", "gaussian_passes", "loop", "pooling", "rows"]

for _name, _reasons in contractions.REASONS.items():
    register_kernel(_name, getattr(contractions, _name), _reasons)
register_kernel("routing_loop", loop.loop_forward, loop.loop_reasons)
register_kernel("attention_step", attention_step.attention_forward, attention_step.attention_reasons)
register_kernel("gaussian_density", gaussian_passes.density_forward, gaussian_plan.gaussian_reasons)
register_kernel("gaussian_moments", gaussian_passes.moments_forward, gaussian_plan.gaussian_reasons)
register_kernel("gaussian_step", gaussian_passes.step_forward, gaussian_plan.step_reasons)
register_kernel("layer_norm", rows.layer_norm_forward, rows.row_reasons)
register_kernel("pooling", pooling.pooling_forward, pooling.pooling_reasons)
register_kernel("squash", rows.squash_forward, rows.row_reasons)
