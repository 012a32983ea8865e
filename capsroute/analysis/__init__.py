"""The papers' figures as functions: numbers first, drawn second (`draw_*`)."""

from capsroute.analysis.capsules import (
    Perturbations,
    Reconstructions,
    Separation,
    perturbations,
    reconstructions,
    separation,
)
from capsroute.analysis.convergence import RoutingConvergence, routing_convergence
from capsroute.analysis.heatmaps import CouplingMaps, coupling_maps
from capsroute.analysis.iterations import ByIterations, by_iterations, schedules
from capsroute.analysis.named import Named
from capsroute.analysis.parse_tree import ParseTree, parse_tree
from capsroute.analysis.places import Places, child_places, spread
from capsroute.analysis.poses import PoseChange, Trajectory, pose_change, pose_trajectory, viewpoint_sequences
from capsroute.analysis.robustness import Robustness, robustness
from capsroute.analysis.tracing import LayerTrace, Step, Traced, trace_routing
