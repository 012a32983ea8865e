"""The papers' figures as functions: numbers first (tensors with named axes), drawn second (`draw_*`)."""

import importlib
from typing import Any

from capsroute.analysis.capsules import (
    Perturbations,
    Reconstructions,
    Separation,
    draw_perturbations,
    draw_reconstructions,
    draw_separation,
    perturbations,
    reconstructions,
    separation,
)
from capsroute.analysis.convergence import (
    ByIterations,
    RoutingConvergence,
    by_iterations,
    draw_by_iterations,
    draw_routing_convergence,
    routing_convergence,
    schedules,
)
from capsroute.analysis.correlations import (
    ClassCorrelations,
    GroundTruthCorrelations,
    MasterCorrelations,
    class_correlations,
    draw_class_correlations,
    draw_gt_column_correlations,
    draw_master_correlations,
    gt_column_correlations,
    master_correlations,
)
from capsroute.analysis.coupling import (
    CouplingMaps,
    MasterMatrix,
    coupling_maps,
    draw_coupling_maps,
    draw_master_matrix,
    master_matrix,
)
from capsroute.analysis.faithfulness import Faithfulness, deletion_insertion, gradient_times_input
from capsroute.analysis.figures import Named, run_figure
from capsroute.analysis.parse_tree import ParseTree, draw_parse_tree, parse_tree
from capsroute.analysis.poses import (
    PoseChange,
    Trajectory,
    draw_pose_change,
    draw_pose_trajectory,
    pose_change,
    pose_trajectory,
    viewpoint_sequences,
)
from capsroute.analysis.probabilities import (
    ClassProbabilities,
    Confusions,
    TuningCurves,
    class_probabilities,
    confusions,
    draw_class_probabilities,
    draw_confusions,
    draw_tuning_curves,
    tuning_curves,
)
from capsroute.analysis.robustness import Robustness, draw_robustness, robustness
from capsroute.analysis.slots import ari, draw_slots
from capsroute.analysis.style import save_figure
from capsroute.analysis.tracing import LayerTrace, Places, Step, Traced, child_places, spread, trace_routing
from capsroute.analysis.training_curves import TrainingCurves, draw_training_curves, training_curves

# Looking into runs needs the training room, which stands above this one.
_ABOVE = {"draw_run": "capsroute.training.report"}

__all__ = [
    "ByIterations",
    "ClassCorrelations",
    "ClassProbabilities",
    "Confusions",
    "CouplingMaps",
    "Faithfulness",
    "GroundTruthCorrelations",
    "LayerTrace",
    "MasterCorrelations",
    "MasterMatrix",
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
    "TrainingCurves",
    "Trajectory",
    "TuningCurves",
    "ari",
    "by_iterations",
    "child_places",
    "class_correlations",
    "class_probabilities",
    "confusions",
    "coupling_maps",
    "deletion_insertion",
    "draw_by_iterations",
    "draw_class_correlations",
    "draw_class_probabilities",
    "draw_confusions",
    "draw_coupling_maps",
    "draw_gt_column_correlations",
    "draw_master_correlations",
    "draw_master_matrix",
    "draw_parse_tree",
    "draw_perturbations",
    "draw_pose_change",
    "draw_pose_trajectory",
    "draw_reconstructions",
    "draw_robustness",
    "draw_routing_convergence",
    "draw_run",
    "draw_separation",
    "draw_slots",
    "draw_training_curves",
    "draw_tuning_curves",
    "gradient_times_input",
    "gt_column_correlations",
    "master_correlations",
    "master_matrix",
    "parse_tree",
    "perturbations",
    "pose_change",
    "pose_trajectory",
    "reconstructions",
    "robustness",
    "routing_convergence",
    "run_figure",
    "save_figure",
    "schedules",
    "separation",
    "spread",
    "trace_routing",
    "training_curves",
    "tuning_curves",
    "viewpoint_sequences",
]


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(importlib.import_module(_ABOVE[name]), name)
    raise AttributeError(f"module 'capsroute.analysis' has no attribute {name!r}")
