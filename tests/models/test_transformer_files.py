"""Transformers come from safetensors alone."""

import sys
import types

from capsroute.models import heinsen_text


def test_a_pickle_of_a_transformer_is_never_asked_for(monkeypatch):
    asked = {}
    stand_in = types.ModuleType("transformers")
    stand_in.AutoModel = types.SimpleNamespace(from_pretrained=lambda name, **options: asked.update(options, name=name))
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    heinsen_text._pretrained("some/name")
    assert asked == {"name": "some/name", "use_safetensors": True}
