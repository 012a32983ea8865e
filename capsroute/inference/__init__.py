"""Fast inference: master coefficients accumulated over training data, folded into plain layers, exported."""

from capsroute.inference.accumulation import accumulate
from capsroute.inference.children import Children, keep_children
from capsroute.inference.coefficients import (
    MasterCoefficients,
    class_layer,
    pretrained_coefficients,
    refusal,
    uniform_coefficients,
    with_coefficients,
)
from capsroute.inference.collect import Observed, collect
from capsroute.inference.exporting import Exported, export, load_exported
from capsroute.inference.filters import (
    ClusteringFilter,
    CorrectFilter,
    Examples,
    Filter,
    SimilarityFilter,
    list_filters,
    make_filter,
)
from capsroute.inference.folding import FoldedCapsuleConv2d, FoldedCapsuleLinear, fold
from capsroute.inference.learning import dynamic_then_fast, finetune, given_coefficients

__all__ = [
    "Children",
    "ClusteringFilter",
    "CorrectFilter",
    "Examples",
    "Exported",
    "Filter",
    "FoldedCapsuleConv2d",
    "FoldedCapsuleLinear",
    "MasterCoefficients",
    "Observed",
    "SimilarityFilter",
    "accumulate",
    "class_layer",
    "collect",
    "dynamic_then_fast",
    "export",
    "finetune",
    "fold",
    "given_coefficients",
    "keep_children",
    "list_filters",
    "load_exported",
    "make_filter",
    "pretrained_coefficients",
    "refusal",
    "uniform_coefficients",
    "with_coefficients",
]
