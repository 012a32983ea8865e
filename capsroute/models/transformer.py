"""A model of the `transformers` library under Heinsen's network for text (extra `text`; Heinsen 2019, section 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.extras import naming_extras
from capsroute.models.base import ModelOutput
from capsroute.models.text import HeinsenText
from capsroute.routing.checks import can_look


class TransformerClassifier(nn.Module):
    """Token ids -> the transformer's hidden states at every depth -> routed to labels.

    `transformer` is a model of `transformers`, or the name of a pretrained one. `frozen=True` trains the routing only.
    `end_of_text=True` puts the transformer's end-of-text token after the last token of each text, as the authors of
    Heinsen 2019 do in their code; the paper does not say so.
    Further options are those of `HeinsenText`; save the `head` with `cr.save_model`.

    >>> import torch, capsroute as cr
    >>> from transformers import GPT2Config, GPT2Model  # doctest: +SKIP
    >>> model = cr.models.TransformerClassifier("gpt2-large", num_classes=5)  # doctest: +SKIP
    >>> tiny = GPT2Model(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50))  # doctest: +SKIP
    >>> cr.models.TransformerClassifier(tiny, num_classes=5)(torch.tensor([[7, 8, 9]])).scores.shape  # doctest: +SKIP
    torch.Size([1, 5])
    """

    def __init__(
        self,
        transformer: str | nn.Module,
        num_classes: int,
        frozen: bool = True,
        end_of_text: bool = False,
        **options: Any,
    ):
        super().__init__()
        self.transformer: Any = _pretrained(transformer) if isinstance(transformer, str) else transformer
        config: Any = self.transformer.config
        # Every layer's output, and the embeddings that go into the first.
        sizes = {"depth": config.num_hidden_layers + 1, "width": config.hidden_size, "num_classes": num_classes}
        self.head = HeinsenText(**sizes, **options)
        self.frozen = frozen
        self.end_of_text: int | None = config.eos_token_id if end_of_text else None
        if end_of_text and self.end_of_text is None:
            raise ValueError("end_of_text: this transformer's config names no end-of-text token")
        if frozen:
            self.transformer.requires_grad_(False)
        self.train(self.training)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        if self.end_of_text is not None:
            input_ids, attention_mask = append_token(input_ids, attention_mask, self.end_of_text)
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


def append_token(ids: Tensor, mask: Tensor | None, token: int) -> tuple[Tensor, Tensor]:
    """Token ids [b,t] that are padded at their end, with one more token after the last of each text, and their mask.

    >>> import torch
    >>> from capsroute.models.transformer import append_token
    >>> append_token(torch.tensor([[5, 6], [7, 0]]), torch.tensor([[1, 1], [1, 0]]), token=9)
    (tensor([[5, 6, 9],
            [7, 9, 0]]), tensor([[1, 1, 1],
            [1, 1, 0]]))
    """
    mask = torch.ones_like(ids) if mask is None else mask
    lengths = mask.sum(1, keepdim=True).long()  # [b, 1]
    if ids.shape[1] > 1 and can_look(mask) and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ValueError("attention_mask: expected padding at the end of each text, found some before its tokens")
    places = torch.arange(ids.shape[1] + 1, device=ids.device)
    longer = torch.cat([ids, torch.zeros_like(ids[:, :1])], 1)
    return torch.where(places == lengths, token, longer), (places <= lengths).to(mask.dtype)


def _pretrained(name: str) -> nn.Module:
    with naming_extras():
        from transformers import AutoModel
    # Never a pickle: a transformer that has no safetensors file is refused.
    return AutoModel.from_pretrained(name, use_safetensors=True)
