"""Every model of the papers, by name."""

from capsroute.models.base import CapsuleModel, ModelOutput
from capsroute.models.files import load_model, save_model
from capsroute.models.registry import create_model, list_models, register_model
from capsroute.models.sabour import CapsNet

__all__ = [
    "CapsNet",
    "CapsuleModel",
    "ModelOutput",
    "create_model",
    "list_models",
    "load_model",
    "register_model",
    "save_model",
]
