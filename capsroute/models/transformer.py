"""A model of the `transformers` library under Heinsen's network for text (extra `text`; 003, section 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.models.base import ModelOutput
from capsroute.models.text import HeinsenText

__all__ = ["TransformerClassifier"]


class TransformerClassifier(nn.Module):
    """Token ids -> the transformer's hidden states at every depth -> routed to labels.

    `transformer` is a model of `transformers`, or the name of a pretrained one. `frozen=True` trains the routing only.
    Further options are those of `HeinsenText`; save the `head` with `cr.save_model`.

    >>> import torch, capsroute as cr
    >>> from transformers import GPT2Config, GPT2Model  # doctest: +SKIP
    >>> model = cr.models.TransformerClassifier("gpt2-large", num_classes=5)  # doctest: +SKIP
    >>> tiny = GPT2Model(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50))  # doctest: +SKIP
    >>> cr.models.TransformerClassifier(tiny, num_classes=5)(torch.tensor([[7, 8, 9]])).scores.shape  # doctest: +SKIP
    torch.Size([1, 5])
    """

    def __init__(self, transformer: str | nn.Module, num_classes: int, frozen: bool = True, **options: Any):
        super().__init__()
        self.transformer: Any = _pretrained(transformer) if isinstance(transformer, str) else transformer
        config: Any = self.transformer.config
        # Every layer's output, and the embeddings that go into the first.
        sizes = {"depth": config.num_hidden_layers + 1, "width": config.hidden_size, "num_classes": num_classes}
        self.head = HeinsenText(**sizes, **options)
        self.frozen = frozen
        if frozen:
            self.transformer.requires_grad_(False)
        self.train(self.training)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            output = self.transformer(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        hidden = torch.stack(output.hidden_states, 2)  # [b, tokens, depth, width]
        return self.head(hidden, return_coefficients=return_coefficients, mask=attention_mask)

    def train(self, mode: bool = True) -> TransformerClassifier:
        """As for any module, but a frozen transformer stays in evaluation mode: no dropout."""
        super().train(mode)
        if self.frozen:
            self.transformer.eval()
        return self


def _pretrained(name: str) -> nn.Module:
    try:
        from transformers import AutoModel
    except ModuleNotFoundError as error:
        message = "transformers is missing; install it with: pip install 'capsroute[text]'"
        raise ModuleNotFoundError(message, name="transformers") from error
    return AutoModel.from_pretrained(name)
