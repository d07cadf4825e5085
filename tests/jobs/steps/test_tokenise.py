"""Whole audits whose tokie gives other ids for some texts: all is embedded again from the tokenizer's, to the same bytes."""

import pytest
from one_process import ran
from whole_run import as_lines, as_toml, digests, read_record

pytestmark = pytest.mark.proof

TEXTS, SHARD, PLANTED = 1500, 300, 1000
STAND_IN = '''
"""The real tokie, with another first id for texts that say "planted"."""
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

found = PathFinder.find_spec("tokie", [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).parent])
real = sys.modules["tokie"] = module_from_spec(found)
found.loader.exec_module(real)


class Tokenizer:
    from_json = classmethod(lambda cls, file: cls(Real.from_json(file)))

    def __init__(self, tokie):
        self.tokie = tokie

    def encode_batch_flat(self, texts, add_special_tokens):
        ids, lengths = self.tokie.encode_batch_flat(texts, add_special_tokens=add_special_tokens)
        ids, start = ids.copy(), 0
        for text, length in zip(texts, lengths.tolist(), strict=True):
            ids[start] += "planted" in text
            start += length
        return ids, lengths


Real, real.Tokenizer = real.Tokenizer, Tokenizer
'''


@pytest.fixture(scope="module")
def audit(tmp_path_factory, small_model):
    """Audits texts of which those from the thousandth on say «planted», in a process of its own."""

    def audit(name, *, stand_in=False, without=(), **more):
        folder = tmp_path_factory.mktemp(name)
        rows = [{"id": f"t{k}", "text": f"text {k}{' planted' * (k >= PLANTED)} {'more ' * (k % 7)}"} for k in range(TEXTS)]
        (folder / "texts.jsonl").write_text(as_lines(rows))
        asked = {
            "out": str(folder / "run"), "corpus": {"source": str(folder / "texts.jsonl")},
            "embedding": {"models": [small_model], "shard_texts": SHARD}, "execution": {"workers": 1} | more,
            "analysis": {"socm_sample": 0, "probe_sample": 0, "cosine": "moments"},
        }  # fmt: skip
        (folder / "audit.toml").write_text(as_toml(asked))
        if stand_in:
            (folder / "tokie.py").write_text(STAND_IN)
        (done,) = ran([["audit", "audit.toml"]], folder, without=without)
        assert done["code"] == 0, done["err"]
        (model,) = read_record(folder / "run")["models"].values()
        return digests(folder / "run"), model, done

    return audit


@pytest.fixture(scope="module")
def plain(audit):
    return audit("plain", without=("tokie",))


def test_tokie_and_the_tokenizer_give_the_same_bytes(audit, plain):
    files, model, _ = audit("fast")
    assert files == plain[0]
    assert model["tokenised_by"].startswith("tokie ")
    assert "tokenised_again" not in model
    assert "tokie is not installed" in plain[1]["tokenised_by"]


def test_after_a_difference_all_is_embedded_again_by_the_tokenizer(audit, plain):
    files, model, done = audit("planted", stand_in=True)
    assert files == plain[0]
    assert model["tokenised_again"] == "tokie gave other ids for text 't1200'"
    assert "1,500 texts" in done["err"]


def test_with_a_cache_tokie_is_not_asked(audit, plain, tmp_path):
    files, model, _ = audit("cached", stand_in=True, cache=str(tmp_path / "cache"))
    assert files == plain[0]
    assert "tokenised_by" not in model
