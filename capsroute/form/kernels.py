"""Triton kernels for the capsule form; imported when the first CUDA tensor asks, so that torch alone is enough.

Importing this module plugs the kernels into `capsroute.form.dispatch`.
"""

from capsroute.form.attention import calls as attention
from capsroute.form.attention import self_attention, whole
from capsroute.form.contractions import kernels as contractions
from capsroute.form.dispatch import register_kernel
from capsroute.form.gaussian import loop as gaussian_loop
from capsroute.form.gaussian import passes as gaussian
from capsroute.form.gaussian.registers import betas
from capsroute.form.gaussian.registers import calls as registers
from capsroute.form.loop import calls as loop
from capsroute.form.pooling import calls as pooling
from capsroute.form.rows import kernels as rows
from capsroute.form.self_routing import calls as self_routing

for _name, _reasons in contractions.REASONS.items():
    register_kernel(_name, getattr(contractions, _name), _reasons)
register_kernel("routing_loop", loop.loop_forward, loop.loop_reasons, loop.loop_backward)
register_kernel(
    "attention_step", attention.attention_forward, attention.attention_reasons, attention.attention_backward
)
register_kernel("self_routing", self_routing.forward, self_routing.reasons, self_routing.backward)
register_kernel("attention_loop", whole.whole_forward, whole.whole_reasons, whole.whole_backward)
register_kernel("self_attention", self_attention.forward, self_attention.reasons, self_attention.backward)
register_kernel("gaussian_density", gaussian.density_forward, gaussian.stored_reasons, gaussian.density_backward)
register_kernel("gaussian_moments", gaussian.moments_forward, gaussian.stored_reasons, gaussian.moments_backward)
register_kernel("first_moments", registers.moments_forward, registers.step_reasons, registers.moments_backward)
register_kernel("gaussian_step", registers.step_forward, registers.step_reasons, registers.step_backward)
register_kernel("gaussian_loop", gaussian_loop.loop_forward, gaussian_loop.loop_reasons, gaussian_loop.loop_backward)
register_kernel("weighted_betas", betas.sums_forward, betas.sums_reasons, betas.sums_backward)
register_kernel("layer_norm", rows.layer_norm_forward, rows.row_reasons, rows.layer_norm_backward)
register_kernel("pooling", pooling.pooling_forward, pooling.pooling_reasons, pooling.pooling_backward)
register_kernel("lengths", rows.lengths_forward, rows.pose_reasons, rows.lengths_backward)
register_kernel("squash", rows.squash_forward, rows.squash_reasons, rows.squash_backward)
