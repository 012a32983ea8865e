"""Fast inference: master coefficients accumulated over training data, folded into plain layers, exported."""

from capsroute.inference.accumulation import accumulate
from capsroute.inference.collect import Observed, collect
from capsroute.inference.eligible import class_layer, refusal
from capsroute.inference.fast import uniform_coefficients, with_coefficients
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
from capsroute.inference.master import MasterCoefficients

__all__ = [
    "ClusteringFilter",
    "CorrectFilter",
    "Examples",
    "Filter",
    "FoldedCapsuleConv2d",
    "FoldedCapsuleLinear",
    "MasterCoefficients",
    "Observed",
    "SimilarityFilter",
    "accumulate",
    "class_layer",
    "collect",
    "fold",
    "list_filters",
    "make_filter",
    "refusal",
    "uniform_coefficients",
    "with_coefficients",
]
