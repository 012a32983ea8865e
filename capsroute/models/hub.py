"""Models on the Hugging Face Hub, through the mixin of `huggingface_hub` (extra `hub`); folders need no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from capsroute.extras import naming_extras
from capsroute.models.base import CapsuleModel
from capsroute.models.files import CONFIG, WEIGHTS, load_model, save_model
from capsroute.models.pretrained import model_card

with naming_extras():
    from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download


class HubModel(ModelHubMixin, library_name="capsroute", tags=["capsule-network"], pipeline_tag="image-classification"):
    """What the mixin asks for, made of `save_model` and `load_model`."""

    def __init__(self, model: CapsuleModel):
        self.model = model

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(self.model, save_directory)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card that goes with the weights."""
        return ModelCard(model_card(self.model, name=kwargs.get("repo_id") or "FOLDER"))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubModel:
        if os.path.isdir(model_id):
            return cls(load_model(model_id))
        return cls(load_model(snapshot_download(model_id, allow_patterns=[CONFIG, WEIGHTS], **options)))
