"""The papers' figures as functions: numbers first (tensors with named axes), drawn second (`draw_*`)."""

import importlib

from capsroute.analysis.capsules import (
    Perturbations,
    Reconstructions,
    Separation,
    perturbations,
    reconstructions,
    separation,
)
from capsroute.analysis.coefficients import (
    ClassCorrelations,
    ClassProbabilities,
    GroundTruthCorrelations,
    MasterCorrelations,
    TuningCurves,
    class_correlations,
    class_probabilities,
    gt_column_correlations,
    master_correlations,
    tuning_curves,
)
from capsroute.analysis.convergence import RoutingConvergence, routing_convergence
from capsroute.analysis.epochs import TrainingCurves, training_curves
from capsroute.analysis.heatmaps import CouplingMaps, coupling_maps
from capsroute.analysis.iterations import ByIterations, by_iterations, schedules
from capsroute.analysis.named import Named
from capsroute.analysis.parse_tree import ParseTree, parse_tree
from capsroute.analysis.places import Places, child_places, spread
from capsroute.analysis.poses import PoseChange, Trajectory, pose_change, pose_trajectory, viewpoint_sequences
from capsroute.analysis.robustness import Robustness, robustness
from capsroute.analysis.tracing import LayerTrace, Step, Traced, trace_routing
from capsroute.inference.segmentation import ari

# Drawing needs matplotlib, looking into runs needs the training room; numbers need neither. Both load when asked for.
_LATE = {"draw_run": "capsroute.training.figures"}
_DRAWN = {
    "draw_tuning_curves": "coefficients",
    "draw_master_correlations": "coefficients",
    "draw_gt_column_correlations": "coefficients",
    "draw_class_probabilities": "coefficients",
    "draw_class_correlations": "coefficients",
    "draw_by_iterations": "curves",
    "draw_coupling_maps": "routing",
    "draw_parse_tree": "routing",
    "draw_perturbations": "capsules",
    "draw_pose_change": "poses",
    "draw_pose_trajectory": "poses",
    "draw_reconstructions": "capsules",
    "draw_robustness": "curves",
    "draw_routing_convergence": "routing",
    "draw_separation": "capsules",
    "draw_slots": "slots",
    "draw_training_curves": "curves",
    "save_figure": "style",
}

__all__ = [
    "ClassCorrelations",
    "ClassProbabilities",
    "GroundTruthCorrelations",
    "MasterCorrelations",
    "TrainingCurves",
    "TuningCurves",
    "class_correlations",
    "class_probabilities",
    "gt_column_correlations",
    "master_correlations",
    "training_curves",
    "tuning_curves",
    "ByIterations",
    "CouplingMaps",
    "LayerTrace",
    "Named",
    "ParseTree",
    "Perturbations",
    "Places",
    "PoseChange",
    "Reconstructions",
    "Robustness",
    "RoutingConvergence",
    "Separation",
    "Step",
    "Traced",
    "Trajectory",
    "ari",
    "by_iterations",
    "child_places",
    "coupling_maps",
    "parse_tree",
    "perturbations",
    "pose_change",
    "pose_trajectory",
    "reconstructions",
    "robustness",
    "routing_convergence",
    "schedules",
    "separation",
    "spread",
    "trace_routing",
    "viewpoint_sequences",
    *_DRAWN,
    *_LATE,
]


def __getattr__(name: str):
    if name in _DRAWN:
        return getattr(importlib.import_module(f"capsroute.analysis.draw.{_DRAWN[name]}"), name)
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'capsroute.analysis' has no attribute {name!r}")
