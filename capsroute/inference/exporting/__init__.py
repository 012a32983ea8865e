"""A trained network as one file for elsewhere: ONNX, torch.export, AOTInductor or plain weights; dynamic or folded."""

from capsroute.inference.exporting.export import FORMATS, Exported, export
from capsroute.inference.exporting.weights import load_exported

__all__ = ["FORMATS", "Exported", "export", "load_exported"]
