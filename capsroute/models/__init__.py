"""Every model of the papers, by name."""

from capsroute.models import cnn, convert, tsai
from capsroute.models.base import CapsuleModel, ImageModel, ModelOutput
from capsroute.models.convert import load_published
from capsroute.models.efficient import EfficientCapsNet
from capsroute.models.files import ModelFileError, load_model, save_model
from capsroute.models.hahn import SelfRoutingResNet
from capsroute.models.head import RoutingHead, VectorRoutingHead
from capsroute.models.heinsen import HeinsenCNN, HeinsenVision
from capsroute.models.heinsen_text import AttentionPooledText, HeinsenText, MeanPooledText, TransformerClassifier
from capsroute.models.preprocessing import Preprocessing
from capsroute.models.pretrained import Pretrained, list_pretrained, model_card, pretrained_weights
from capsroute.models.registry import (
    create_model,
    list_models,
    register_model,
    small_options,
    summarise,
    unregister_model,
)
from capsroute.models.ribeiro import VBCapsNet
from capsroute.models.sabour import CapsNet
from capsroute.models.slots import SlotAutoencoder, SlotOutput
from capsroute.models.tsai import ConvCapsNet
from capsroute.models.unrouted import HVC, AffCapsNet
from capsroute.models.warming import warm_up
from capsroute.models.zhao_huang import PooledCNN, PooledResNet, ResidualCapsNet

__all__ = [
    "HVC",
    "AffCapsNet",
    "AttentionPooledText",
    "CapsNet",
    "CapsuleModel",
    "ConvCapsNet",
    "EfficientCapsNet",
    "HeinsenCNN",
    "HeinsenText",
    "HeinsenVision",
    "ImageModel",
    "MeanPooledText",
    "ModelFileError",
    "ModelOutput",
    "PooledCNN",
    "PooledResNet",
    "Preprocessing",
    "Pretrained",
    "ResidualCapsNet",
    "RoutingHead",
    "SelfRoutingResNet",
    "SlotAutoencoder",
    "SlotOutput",
    "TransformerClassifier",
    "VBCapsNet",
    "VectorRoutingHead",
    "cnn",
    "convert",
    "create_model",
    "list_models",
    "list_pretrained",
    "load_model",
    "load_published",
    "model_card",
    "pretrained_weights",
    "register_model",
    "save_model",
    "small_options",
    "summarise",
    "tsai",
    "unregister_model",
    "warm_up",
]
