"""A head on a frozen transformer.

An encoder that is not trained any more gives tokens; a small head of capsules reads them out. Here the encoder is a little
transformer of torch's own, so that nothing is fetched; with timm or Hugging Face only the first cell changes.
"""

# %%
# The encoder: tokens [b, n, c] of a sentence, and a mask that says which of them are padding. A Hugging Face encoder's output can be given to
# the head as it is (`head(encoder(**inputs), mask=inputs["attention_mask"])`), a timm ViT's with `model.forward_features(images)`.
import torch
from torch import nn
from torch.nn import functional as F

import capsroute as cr

torch.manual_seed(0)
WORDS, LENGTH, WIDTH = 50, 12, 32
encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
)
embedding = nn.Embedding(WORDS, WIDTH)
for parameter in (*encoder.parameters(), *embedding.parameters()):
    parameter.requires_grad_(False)


def tokens(words, there):
    return encoder(embedding(words), src_key_padding_mask=~there)


# %%
# The task: sentences of different lengths, and which of three kinds of word is the most frequent one (words 1 to 3 are of the first kind, 4 to 6 of the second,
# 7 to 9 of the third). Features of a frozen encoder are made once and kept.
def sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    words = torch.randint(10, WORDS, (count, LENGTH), generator=generator)
    there = torch.arange(LENGTH) < torch.randint(6, LENGTH + 1, (count, 1), generator=generator)
    for row, label in enumerate(labels.tolist()):
        places = torch.randperm(6, generator=generator)
        words[row, places[:3]] = 1 + 3 * label + torch.randint(3, (3,), generator=generator)
        words[row, places[3]] = 1 + 3 * ((label + 1) % 3)  # a word of another kind, once
    return words, there, labels


with torch.no_grad():
    train, test = [
        (tokens(words, there), there, labels) for words, there, labels in (sentences(150, 1), sentences(90, 2))
    ]

# %%
# The head. `routing` is the name of any algorithm here ("vector" routes the tokens themselves); `pooling="mean"` and others read out without routing, on
# equal terms: always train one of them too.
for how in ({"routing": "heinsen"}, {"pooling": "mean"}):
    torch.manual_seed(0)
    head = cr.models.RoutingHead(WIDTH, num_classes=3, **how)
    optimiser = torch.optim.AdamW(head.parameters(), lr=2e-2)
    for _ in range(50):
        features, there, labels = train
        loss = F.cross_entropy(head(features, mask=there).scores, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    features, there, labels = test
    with torch.no_grad():
        right = (head.eval()(features, mask=there).scores.argmax(1) == labels).float().mean()
    print(how, f"{sum(p.numel() for p in head.parameters()):,} parameters, {right:.0%} of the test sentences are right")
