"""Token ids from tokie: equal to the tokenizer's own in every family that is taken, and left at the first difference."""

import copy
import random
import string
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tempscale.model import tokens as module
from tempscale.model.fast_tokens import FastTokenizer, NotFast
from tempscale.model.tokens import NOT_ASKED
from tempscale.model.tokens import Tokenizer as Ours

pytest.importorskip("tokie", reason="tokie is not installed")

SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x4FF), (0x590, 0x6FF), (0x890, 0x97F), (0xE00, 0xE7F),
    (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x23FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xF900, 0xFFEF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1F), (0, 0x1F), (0x7F, 0x9F), (0xE000, 0xE010),
    (0x10FFF0, 0x10FFFF), (0xE0000, 0xE007F),
]  # fmt: skip
BLANK = ["\n", "\r\n", "\t", "  ", "\u3000", "\u00a0", "\u200b", "\ufeff", "\u00ad", "\u2028", "\x00"]
SPECIAL = ["[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "<s>", "</s>", "<mask>", "<pad>"]


def strange(count, seed=0):
    """Texts of words, characters of many scripts, blanks, special tokens and long words."""
    generator = random.Random(seed)
    return ["".join(_piece(generator) for _ in range(generator.randint(1, 25))) for _ in range(count)]


def _piece(generator):
    kind = generator.random()
    if kind < 0.05:
        return generator.choice(SPECIAL)
    if kind < 0.1:
        return generator.choice(BLANK)
    if kind < 0.11:
        return "a" * generator.choice([99, 100, 101, 1000])
    if kind < 0.7:
        return "".join(generator.choices(string.ascii_letters, k=generator.randint(1, 9))) + " "
    low, high = generator.choice(SCRIPTS)
    return "".join(chr(generator.randint(low, high)) for _ in range(generator.randint(1, 5)))


def trained(folder, model, trainer, *, normalizer=None, before=None, after=None):
    """A folder with a tokenizer of 400 tokens, and the configuration of a small BERT."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, before
    tokenizer.train_from_iterator(strange(400, seed=1), trainer)
    if after is not None:
        tokenizer.post_processor = after(tokenizer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", mask_token="<mask>", model_max_length=64
    )
    wrapped.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "bert", "vocab_size": 9000, "max_position_embeddings": 64}')
    return folder


def _roberta(tokenizer):
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    return processors.RobertaProcessing(*ends)


USUAL = {"vocab_size": 400, "special_tokens": ["<pad>", "<s>", "</s>", "<unk>", "<mask>"], "show_progress": False}
BYTES = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "max_token_length": 64}
GPT4 = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILIES = {
    "roberta": lambda folder: trained(
        folder, models.BPE(), trainers.BpeTrainer(**USUAL, **BYTES), before=pre_tokenizers.ByteLevel(add_prefix_space=False),
        after=_roberta,
    ),
    "modernbert": lambda folder: trained(
        folder, models.BPE(), trainers.BpeTrainer(**USUAL, **BYTES), normalizer=normalizers.NFC(),
        before=pre_tokenizers.ByteLevel(add_prefix_space=False),
    ),
}  # fmt: skip
OTHERS = {
    "xlm-roberta": lambda folder: trained(
        folder, models.Unigram(), trainers.UnigramTrainer(**USUAL | {"vocab_size": 6000}, unk_token="<unk>"),
        before=pre_tokenizers.Metaspace(),
    ),
    "qwen3": lambda folder: trained(
        folder, models.BPE(), trainers.BpeTrainer(**USUAL, **BYTES), normalizer=normalizers.NFC(),
        before=pre_tokenizers.Sequence([pre_tokenizers.Split(GPT4, "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]),
    ),
    "long tokens": lambda folder: trained(
        folder, models.BPE(), trainers.BpeTrainer(**USUAL, **BYTES | {"max_token_length": 400}),
        before=pre_tokenizers.ByteLevel(add_prefix_space=False),
    ),
    "llama": lambda folder: trained(
        folder, models.BPE(byte_fallback=True, unk_token="<unk>"), trainers.BpeTrainer(**USUAL),
        before=pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "lower-cased words": lambda folder: trained(
        folder, models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(**USUAL), normalizer=normalizers.Lowercase(),
        before=pre_tokenizers.BertPreTokenizer(),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory, request):
    """The folder of a family's tokenizer, by name."""

    def folder(name):
        if name in ("minilm", "mpnet"):
            return Path(request.getfixturevalue(name))
        return (FAMILIES | OTHERS)[name](tmp_path_factory.mktemp("family"))

    return folder


def expected(folder, texts, window, long):
    """Ids, whether a text is cut and its length before, from the ids without special tokens by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    framed, letter = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    place = framed.index(letter[0])
    before, after = framed[:place], framed[place + len(letter) :]
    room, ids, cut, whole = window - len(before) - len(after), [], [], []
    for text in texts:
        inner = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        pieces = [inner[k : k + room] for k in range(0, max(1, len(inner)), room)]
        ids += [[*before, *piece, *after] for piece in (pieces[:1] if long == "truncate" else pieces)]
        cut.append(len(pieces) > 1 and long == "truncate")
        whole.append(len(before) + len(inner) + len(after))
    return ids, cut, whole


@pytest.mark.parametrize("family", ["minilm", "mpnet", *FAMILIES])
@pytest.mark.parametrize("long", ["truncate", "chunk"])
def test_ids_are_those_of_the_tokenizer(folders, family, long):
    texts, folder = [*strange(700), "", " ", "\n", "a b"], folders(family)
    ours = Ours(folder, 24, long)
    tokens = ours(texts)
    assert ours.tokenised_by.startswith("tokie ")
    ids, cut, whole = expected(folder, texts, 24, long)
    assert tokens.ids == ids
    assert tokens.truncated == cut
    assert tokens.whole == (whole if long == "truncate" else None)
    assert ours(texts) == tokens
    assert Ours(folder, 24, long, fast=False)(texts) == tokens
    assert ours.differing_text is None


@pytest.mark.parametrize("family", OTHERS)
def test_other_kinds_of_tokenizers_are_left_alone(folders, family):
    texts, folder = strange(300), folders(family)
    ours = Ours(folder, 24)
    assert ours(texts).ids == expected(folder, texts, 24, "truncate")[0]
    why = "gives other ids where a token is longer" if family == "long tokens" else "was found exact for WordPiece of BERT"
    assert ours.tokenised_by.startswith(f"the tokenizer: tokie {why}")


def test_a_text_with_a_character_of_other_ids_goes_to_the_tokenizer(folders):
    ours, text = Ours(folders("minilm")), "cu\u0898t and \u0378 \x7fdelete"
    usual = ["a text like all others"] * 300
    tokens = ours([*usual, text])
    assert tokens.ids[-1] == expected(folders("minilm"), [text], 256, "truncate")[0][0]
    fast = ours._fast._fast.encode(text, add_special_tokens=False).ids
    assert [101, *fast, 102] != tokens.ids[-1]


def test_a_few_texts_are_not_worth_it(folders):
    ours = Ours(folders("minilm"))
    ours(strange(255))
    assert ours.tokenised_by == NOT_ASKED


class Planted:
    """Tokie with other ids for some texts."""

    def __init__(self, tokie, wrong):
        self.tokie, self.wrong, self.asked = tokie, wrong, 0

    def encode_batch_flat(self, texts, add_special_tokens):
        ids, lengths = self.tokie.encode_batch_flat(texts, add_special_tokens=add_special_tokens)
        ids, start = ids.copy(), 0
        for text, length in zip(texts, lengths.tolist(), strict=True):
            self.asked += 1
            if self.wrong(text):
                ids[start] += 1
            start += length
        return ids, lengths


@pytest.fixture
def planted(monkeypatch, folders):
    """A tokenizer whose tokie gives other ids for some texts."""

    def build(wrong):
        def plant(tokenizer):
            fast = FastTokenizer(tokenizer)
            fast._fast = Planted(fast._fast, wrong)
            return fast

        monkeypatch.setattr(module, "FastTokenizer", plant)
        return Ours(folders("minilm"))

    return build


TEXTS = [f"text number {k} of many" for k in range(1200)]


@pytest.mark.parametrize("place", [0, 999])
def test_a_difference_among_the_first_thousand_ends_its_use(planted, folders, place):
    ours = planted(lambda text: text == TEXTS[place])
    with pytest.warns(UserWarning, match="other ids than the tokenizer"):
        assert ours(TEXTS) == Ours(folders("minilm"), fast=False)(TEXTS)
    assert ours.differing_text == TEXTS[place]
    assert ours.tokenised_by.endswith("gave other ids")
    assert ours._fast is None


def test_a_difference_later_is_seen_in_one_text_of_a_thousand(planted, folders):
    ours, plain = planted(lambda text: "other" in text), Ours(folders("minilm"), fast=False)
    assert ours(TEXTS) == plain(TEXTS)
    assert ours.differing_text is None
    unseen = [*TEXTS[:5], "other", *TEXTS[6:]]
    assert ours(unseen) != plain(unseen)  # What is not compared is not found: the run's first difference is.
    seen = [*TEXTS[:1000], "other", *TEXTS[1001:]]
    with pytest.warns(UserWarning, match="tokenise them again"):
        assert ours(seen) == plain(seen)
    assert ours.differing_text == "other"
    asked = ours(unseen)
    assert asked == plain(unseen)


def test_a_battery_is_compared_before_any_text_is(planted, folders):
    ours = planted(lambda text: text.startswith("before [MASK]"))
    assert ours(TEXTS) == Ours(folders("minilm"), fast=False)(TEXTS)
    assert ours.tokenised_by.endswith("gives other ids for a text of many scripts, special tokens or long words")
    assert ours.differing_text is None  # No text had its ids.


def test_where_tokie_fails_the_tokenizer_goes_on(planted, folders):
    def fail(text):
        if text == "failing":
            raise RuntimeError("a panic")
        return False

    ours, texts = planted(fail), [*TEXTS[:1], "failing", *TEXTS[2:]]
    ours(TEXTS)
    assert ours(texts) == Ours(folders("minilm"), fast=False)(texts)
    assert ours.tokenised_by.endswith("failed: a panic")
    assert ours.differing_text is None


def test_a_copy_is_compared_anew(folders):
    ours = Ours(folders("minilm"))
    tokens = ours(TEXTS)
    copied = copy.deepcopy(ours)
    assert copied.tokenised_by == NOT_ASKED
    assert copied(TEXTS) == tokens
    assert copied.tokenised_by == ours.tokenised_by


def test_whoever_cannot_mend_a_difference_leaves_tokie(folders):
    ours = Ours(folders("minilm"))
    ours(TEXTS)
    ours.leave_tokie()
    ours(TEXTS)
    assert ours.tokenised_by == "the tokenizer, since tokie was not wanted"


def test_without_tokie_the_tokenizer_is_used_and_the_extra_named(monkeypatch, folders):
    monkeypatch.setitem(__import__("sys").modules, "tokie", None)
    with pytest.raises(NotFast, match=r"pip install 'tempscale\[fast\]'"):
        FastTokenizer(AutoTokenizer.from_pretrained(folders("minilm")))
    ours = Ours(folders("minilm"))
    assert ours(TEXTS).ids[0][0] == 101
    assert "tokie is not installed" in ours.tokenised_by
