"""Test sets by length interval: natural texts first, then windows of longer texts, measured by the model's own tokenizer."""

import random
import re
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from whole_run import documented

from tempscale.model.tokens import Tokenizer
from tempscale.stats.enough import TOKENS_FOR_A_WINDOW
from tempscale_jobs.evaluate.windows import Chosen, Labelled, SplitText, TextsToTest, Window, by_interval, fitted

pytestmark = pytest.mark.proof

EDGES = [0, 32, 64, 100, 200, 300, 400, 500]
MOST = 55
WINDOW = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


@pytest.fixture(scope="module")
def tokenizer(minilm):
    return Tokenizer(minilm, "limit")


@pytest.fixture(scope="module")
def plain(minilm):
    """Lengths by transformers alone."""
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(minilm)
    return lambda texts: [len(found(text, truncation=True, max_length=512)["input_ids"]) for text in texts]


@pytest.fixture(scope="module")
def corpus(plain):
    """Docstrings of a package and their lengths: seven short ones and half of the 391 that have a hundred tokens or more."""
    texts = [Labelled(row["id"], row["text"], len(row["id"]) % 5) for row in documented("datasets")]
    lengths = plain([text.text for text in texts])
    short = [text for text, length in zip(texts, lengths, strict=True) if length < 32][:7]
    long = [text for text, length in zip(texts, lengths, strict=True) if length >= 100]
    return short + long[::2], dict(zip([text.id for text in texts], lengths, strict=True))


@pytest.fixture(scope="module")
def chosen(corpus, tokenizer):
    return by_interval(corpus[0], tokenizer, EDGES, TextsToTest(MOST, True, 0))


def interval(length, edges=EDGES):
    """The index of the last edge that is not above."""
    return max(k for k, edge in enumerate(edges) if edge <= length)


def source(window):
    """Id of the text, first word, end."""
    text_id, first, last = WINDOW.fullmatch(window.id).groups()
    return text_id, int(first), int(last)


def windows_of(chosen):
    return [text for text in chosen if text.window]


def test_every_text_lies_in_its_interval_and_intervals_come_in_order(corpus, chosen, plain, tokenizer):
    places = [interval(length) for length in plain([text.text for text in chosen])]
    assert places == sorted(places)
    for k in range(len(EDGES)):
        own = [text for text, place in zip(chosen, places, strict=True) if place == k]
        assert own == sorted(own, key=lambda text: (text.window, text.id))
    assert len({text.id for text in chosen}) == len(chosen)
    # A smaller set lies inside the larger; without windows there are the natural texts as they are, and of nothing none.
    assert set(by_interval(corpus[0], tokenizer, EDGES, TextsToTest(20, True, 0))) < set(chosen)
    natural = [text for text in chosen if not text.window]
    assert by_interval(corpus[0], tokenizer, EDGES, TextsToTest(MOST, False, 0)) == natural
    assert set(natural) <= {Chosen(*text, False) for text in corpus[0]}
    assert (
        by_interval([], tokenizer, EDGES, TextsToTest(MOST, True, 0))
        == by_interval(corpus[0], tokenizer, EDGES, TextsToTest(0, True, 0))
        == []
    )


def test_natural_texts_come_first_and_windows_fill_up(corpus, chosen, plain):
    texts, lengths = corpus
    there = Counter(interval(lengths[text.id]) for text in texts)
    natural = Counter(interval(lengths[text.id]) for text in chosen if not text.window)
    windows = Counter(interval(length) for length in plain([text.text for text in windows_of(chosen)]))
    for k in range(len(EDGES)):
        assert natural[k] == min(there[k], MOST)
        longer = sum(count for place, count in there.items() if place > k)
        assert natural[k] + windows[k] <= min(MOST, there[k] + longer)
        if there[k] + longer > 1.5 * MOST:
            assert natural[k] + windows[k] == MOST
    assert natural[0] == 7  # The corpus is such that each case occurs.
    assert natural[3] == MOST
    assert windows[1] == MOST
    assert 0 < windows[6] < MOST - natural[6]
    assert windows[len(EDGES) - 1] == 0


def test_a_window_is_a_verbatim_run_of_whole_words_with_its_texts_label(corpus, chosen):
    texts = {text.id: text for text in corpus[0]}
    several_lines = 0
    for window in windows_of(chosen):
        text_id, first, last = source(window)
        whole = texts[text_id]
        assert window.text.split() == whole.text.split()[first:last]
        assert window.text == window.text.strip()
        assert window.text in whole.text
        assert window.label == whole.label
        several_lines += "\n    " in window.text
    assert several_lines > 30  # Whitespace is as it was.
    assert len({window.label for window in windows_of(chosen)}) > 1


def test_a_source_gives_one_window_an_interval_and_none_where_it_lies_itself(corpus, chosen, plain):
    windows = windows_of(chosen)
    places = [interval(length) for length in plain([window.text for window in windows])]
    taken = Counter((source(window)[0], place) for window, place in zip(windows, places, strict=True))
    assert set(taken.values()) == {1}
    assert all(interval(corpus[1][text_id]) > place for text_id, place in taken)
    # Intervals take different sources: as many alike as by chance, or few more.
    sets = [{text_id for text_id, place in taken if place == k} for k in (0, 1, 2)]
    for one, other in pairwise(sets):
        assert len(one & other) < 1.6 * len(one) * len(other) / (len(corpus[0]) - 7)


def test_lengths_and_places_are_spread_evenly(tokenizer, plain, corpus):
    texts = corpus[0]
    words = {text.id: len(text.text.split()) for text in texts}
    found = windows_of(by_interval(texts, tokenizer, [0, 20, 90], TextsToTest(10_000, True, 3)))
    lengths = np.array(plain([window.text for window in found]))
    assert TOKENS_FOR_A_WINDOW == 8
    for low, high in ((8, 20), (20, 90)):
        own = (lengths >= low) & (lengths < high)
        assert own.sum() > 180
        error = (high - low) / np.sqrt(12 * own.sum())
        assert abs(lengths[own].mean() - (low + high - 1) / 2) < 4 * error
        assert lengths[own].min() <= low + 1
        assert lengths[own].max() >= high - 2
    # First word over the last that could be first: uniform on [0, 1], but for words of unequal length.
    places = [first / max(1, words[text_id] - (last - first)) for text_id, first, last in map(source, found)]
    assert abs(np.mean(places) - 0.5) < 4 / np.sqrt(12 * len(places)) + 0.02
    assert np.std(places) == pytest.approx(12**-0.5, rel=0.1)


def test_the_order_of_the_texts_does_not_matter(corpus, tokenizer):
    texts = corpus[0][:90]
    found = by_interval(texts, tokenizer, EDGES, TextsToTest(20, True, 0))
    assert 40 < len(windows_of(found)) < len(found) - 20
    random.Random(1).shuffle(texts)
    assert by_interval(texts, tokenizer, EDGES, TextsToTest(20, True, 0)) == found
    repeated = [text._replace(id=str(k % 3)) for k, text in enumerate(corpus[0][:30])]
    found = by_interval(repeated, tokenizer, EDGES, TextsToTest(4, True, 0))
    assert by_interval(repeated[::-1], tokenizer, EDGES, TextsToTest(4, True, 0)) == found


def test_another_seed_chooses_other_texts_and_windows(corpus, chosen, tokenizer):
    other = by_interval(corpus[0], tokenizer, [0, 32, 64, 100, 200], TextsToTest(MOST, True, 1))
    naturals = [{text.id for text in found if not text.window and corpus[1][text.id] < 200} for found in (chosen, other)]
    assert len(naturals[0]) == len(naturals[1])
    assert naturals[0] != naturals[1]
    windows = [{text.id for text in windows_of(found)} for found in (chosen, other)]
    assert len(windows[0] & windows[1]) < 0.02 * len(windows[0])


def test_the_models_limit_is_the_longest_there_is(corpus, minilm, plain):
    short = Tokenizer(minilm, 128)
    found = by_interval(corpus[0], short, [0, 100, 128, 200, 600], TextsToTest(200, True, 0))
    lengths = [min(length, 128) for length in plain([text.text for text in found])]
    places = Counter((interval(length, [0, 100, 128]), text.window) for length, text in zip(lengths, found, strict=True))
    natural = Counter(min(corpus[1][text.id], 128) // 128 for text in corpus[0])
    # Every text past the limit counts as 128 tokens: it is natural in [128, 200), and [200, 600) and on are empty.
    assert places[2, False] == natural[1] > 120
    assert places[2, True] == 0
    assert 0.95 * natural[1] < places[1, True] <= natural[1]
    assert by_interval(corpus[0], short, [129, 300], TextsToTest(200, True, 0)) == []
    assert by_interval(corpus[0], short, [128], TextsToTest(200, True, 0)) == [text for text in found if text.text in {
        whole.text for whole in corpus[0] if corpus[1][whole.id] >= 128
    } and not text.window]  # fmt: skip


def test_a_tokenizer_that_chunks_is_measured_as_cut(corpus, minilm, tokenizer):
    texts = corpus[0][:60]
    assert max(corpus[1][text.id] for text in texts) == 512
    found = by_interval(texts, Tokenizer(minilm, "limit", long="chunk"), [0, 32, 500, 520], TextsToTest(20, True, 0))
    assert found == by_interval(texts, tokenizer, [0, 32, 500, 520], TextsToTest(20, True, 0))


@pytest.mark.parametrize("text", ["長" * 400, "a" * 3000, ".,;:" * 200])
def test_a_text_of_one_word_gives_no_window(text, tokenizer):
    assert windows_of(by_interval([Labelled("x", text, 0)], tokenizer, EDGES, TextsToTest(MOST, True, 0))) == []


def test_windows_are_no_word_or_two_and_keep_clear_of_one_that_does_not_fit(corpus, tokenizer, plain):
    found = windows_of(by_interval(corpus[0], tokenizer, [0, 5, 8, 9], TextsToTest(1000, True, 0)))
    assert len(found) > 180
    assert set(plain([window.text for window in found])) == {8}
    text = " ".join(["plain words"] * 15 + ["." * 3000] + ["other things"] * 15)
    texts = [Labelled(str(k), text, 0) for k in range(60)]
    found = windows_of(by_interval(texts, tokenizer, [0, 16, 24], TextsToTest(100, True, 0)))
    assert len(found) > 100
    assert not any("." in window.text for window in found)
    # Short texts give long intervals nothing.
    short = [text for text in corpus[0] if corpus[1][text.id] < 200]
    assert not windows_of(by_interval(short, tokenizer, [0, 1, 200, 300], TextsToTest(MOST, True, 0)))


def test_words_that_the_tokenizer_writes_otherwise_after_a_space(corpus, tmp_path):
    """Byte pairs: a word's tokens depend on what stands before it, so that ends have to be moved. No special tokens."""
    from tokenizers import Tokenizer as Pairs
    from tokenizers import models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    pairs = Pairs(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<s>", "<pad>", "</s>"])
    pairs.train_from_iterator([text.text for text in corpus[0]], trainer)
    (tmp_path / "config.json").write_text('{"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}')
    PreTrainedTokenizerFast(
        tokenizer_object=pairs, bos_token="<s>", pad_token="<pad>", eos_token="</s>", model_max_length=512
    ).save_pretrained(tmp_path)  # fmt: skip
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    edges = [0, 30, 36, 100, 110, 300, 310]
    found = by_interval(corpus[0], Tokenizer(tmp_path), edges, TextsToTest(40, True, 0))
    places = Counter(interval(len(loaded(text.text)["input_ids"]), edges) for text in found)
    assert len(loaded("")["input_ids"]) == 0
    assert [places[k] for k in range(6)] == [40] * 6
    assert len(windows_of(found)) > 150
    texts = {text.id: text.text.split() for text in corpus[0]}
    for window in windows_of(found):
        text_id, first, last = source(window)
        assert window.text.split() == texts[text_id][first:last]


def test_a_window_whose_text_ends_before_it_is_long_enough_is_given_up():
    """Three words were taken for ten tokens and are three: there is no fourth word to go on with."""
    split = SplitText(Labelled("x", "a b c", 0), [(0, 1), (2, 3), (4, 5)], np.array([0, 4, 7, 10]))
    window = Window(split, 0, 3, 10)
    measure = SimpleNamespace(tokens=lambda texts: np.array([len(text.split()) for text in texts]))
    assert window.moved(3) is None
    assert fitted([window], measure, 8, 12) == []
    assert fitted([window], measure, 3, 12) == [window]
