"""Routing by agreement: one short file per algorithm. Functions only; parameters live in `capsroute.layers`."""

from capsroute.form.rows.squash import lengths, squash, unit
from capsroute.routing.dynamic import dynamic_routing
from capsroute.routing.em import em_routing, hinton_temperature
from capsroute.routing.fast import fast_routing
from capsroute.routing.heinsen import heinsen_routing
from capsroute.routing.inverted_attention import inverted_attention_routing, pose_layer_norm
from capsroute.routing.max_min import max_min_routing
from capsroute.routing.pooling import pooling_routing
from capsroute.routing.routed import Routed
from capsroute.routing.self_attention import exponential_squash, self_attention_routing
from capsroute.routing.self_routing import self_routing
from capsroute.routing.slots import slot_routing
from capsroute.routing.uniform import uniform_routing
from capsroute.routing.variational_bayes import vb_routing

__all__ = [
    "Routed",
    "dynamic_routing",
    "em_routing",
    "exponential_squash",
    "fast_routing",
    "heinsen_routing",
    "hinton_temperature",
    "inverted_attention_routing",
    "lengths",
    "max_min_routing",
    "pooling_routing",
    "pose_layer_norm",
    "self_attention_routing",
    "self_routing",
    "slot_routing",
    "squash",
    "uniform_routing",
    "unit",
    "vb_routing",
]
