"""Model cards: what a network is, what it was trained on and reaches, what it needs, and its limits, on one page."""

from __future__ import annotations

from capsroute.models.base import CapsuleModel
from capsroute.models.pretrained import Pretrained

__all__ = ["model_card"]

HEAD = """---
library_name: capsroute
pipeline_tag: image-classification
tags: [capsule-network]
---
"""
VARIANTS = {
    "as_trained": "as trained",
    "fast": "folded: master coefficients, no routing left",
    "uniform": "uniform coefficients",
}


def model_card(model: CapsuleModel, weights: Pretrained | None = None, name: str = "FOLDER") -> str:
    """The card of a model as Markdown; with `weights` of the package, what they reach and how they were made.

    >>> import capsroute as cr
    >>> card = cr.models.model_card(cr.create_model("capsnet_small", image_size=8))
    >>> card.splitlines()[6]
    '# capsnet_small'
    """
    preprocessing = getattr(model, "preprocessing", None)
    record = {} if preprocessing is None else preprocessing.record()
    classes = record.get("classes") or ["not named"]
    normalised = "mean and deviation inside the model" if record.get("mean") else "none"
    routings = sorted({str(layer.routing.config()) for layer in model.routed_layers().values()})
    lines = [
        HEAD,
        f"# {weights.tag if weights else model.name}\n",
        f"`{model.name}` of capsroute: {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"images {list(model.input_shape)} in [0, 1] or bytes.\n",
        f'```python\nimport capsroute as cr\n\nmodel = cr.load_model("{name}")\n```\n',
        f"- Classes: {', '.join(classes)}.",
        f"- Preprocessing: normalisation {normalised}; `cr.predict` resizes by {record.get('resize', '-')!r}, "
        f"polarity {record.get('polarity', '-')!r}.",
        f"- Routing: {'; '.join(routings) or 'none'}.",
    ]
    if weights is not None:
        lines += [
            f"- Data: {weights.data}. Made by `{weights.command}`, seed {weights.seed}, "
            f"{weights.train_seconds:.0f} s on {weights.hardware}; stored as {weights.stored}.",
            "\n| | run, per cent of the test images | as stored |\n|---|---|---|",
            *(
                f"| {VARIANTS.get(key, key)} | {value:.2f} | {weights.check['stored'].get(key, float('nan')):.2f} |"
                for key, value in weights.accuracy.items()
            ),
            f"\nAs stored: on {weights.check['images']:,} test images, {weights.check['hardware']}. One seed.",
        ]
    lines += [
        "\n## Limits\n",
        "It knows its classes and nothing else: an image of anything gets one of them. Scores that are capsule lengths "
        "are no calibrated probabilities. Weights: Apache-2.0; the data have terms of their own.",
    ]
    return "\n".join(lines) + "\n"
