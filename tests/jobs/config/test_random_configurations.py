"""Configurations that nobody thought of: each is valid or refused in one sentence."""

import json
import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_inputs import JSON, SECONDS, damaged, drawn, sentence, taus

from tempscale_jobs.config.audit import AuditConfig, resolve, with_quick_start
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.given import read_temperature, read_toml, temperature_of
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.errors import UsageError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(SECONDS)]

TELLING = st.sampled_from(
    [0, -1, 1, 2**63, 0.5, math.inf, -math.inf, math.nan, "", "{night}", "nights/{night}", "latest", "float32", "bfloat16",
     "chunk", "corpus", "moments", "texts.jsonl", "2026-11-22", "2026-13-45", "auto", "ray://head", "SciFact", "a\x00b",
     [0, 100], [1.0, 0.8], [{"log_length": 64}], {"by_length": {"0": 1.0, "64": 0.9}}, ["collapse_gap <= 0.1"], ["a", "b"],
     {"cosine_mean": 0.02}, True, None, [], {}]
)  # fmt: skip
KINDS = {
    "audit": AuditConfig, "pairs": PairsConfig, "diagnose": DiagnoseConfig, "evaluate": EvaluateConfig,
    "tune": TuneConfig,
}  # fmt: skip
NEEDED = {"pairs": {"pairs": {"source": "p.csv"}}, "evaluate": {"tasks": ["SciFact"]}, "tune": {"tasks": ["SciFact"]}}


def section(model):
    """Some keys of a section, and now and then one that is none, with values that may be meant for them."""
    keys = {}
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        inner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        default = st.just("a" if field.is_required() else field.get_default(call_default_factory=True))
        keys[name] = TELLING | default | JSON if inner is None else section(inner) | section(inner) | TELLING
    chosen = st.lists(st.sampled_from(sorted(keys)), max_size=3, unique=True)
    known = chosen.flatmap(lambda names: st.fixed_dictionaries({name: keys[name] for name in names}))
    strange = st.dictionaries(st.text(max_size=6), JSON, min_size=1, max_size=1)
    return known | known | known | st.builds(lambda one, other: other | one, known, strange)


@pytest.mark.parametrize("command", KINDS)
def test_any_configuration_is_valid_or_one_sentence(command):
    answers = []

    @drawn(400)
    @given(section(KINDS[command]))
    def check(data):
        before = repr(data)
        try:
            found = checked(KINDS[command], NEEDED.get(command, {}) | data)
            found = found.tonight() if command == "audit" else found
        except UsageError as error:
            answers.append("refused")
            sentence(error)
            return
        finally:
            assert repr(data) == before
        answers.append("valid")
        assert all(0 < taus(t, tokens) <= 2 for t in found.temperatures() for tokens in (3, 512))
        told = json.loads(json.dumps(found.identity(), allow_nan=False))  # As begun.json keeps it.
        assert told == found.identity()

    check()
    assert min(answers.count("valid"), answers.count("refused")) > 20


def test_any_text_is_a_configuration_file_or_one_sentence(tmp_path):
    answers = set()
    plain = b'out = "x"\n[corpus]\nsample = 7\n[gate]\nthresholds = ["collapse_gap <= 0.1"]\n'
    deep = st.sampled_from([b"x = " + b"[" * 9000, b"x = " + b"{a=" * 9000, b"[" * 9000])

    @drawn(200)
    @given(st.binary(max_size=40) | deep | st.integers(0, 2**63).map(lambda seed: damaged(plain, seed)))
    def check(data):
        for name, reader in (("run.toml", read_toml), ("t.json", read_temperature), ("t.toml", read_temperature)):
            file = tmp_path / name
            file.write_bytes(data)
            try:
                found = reader(str(file))
                if name == "run.toml":
                    resolve(with_quick_start(found))
                else:
                    temperature_of(found)
            except UsageError as error:
                answers.add((name, "refused"))
                sentence(error)
            else:
                answers.add((name, "valid"))

    check()
    assert {("run.toml", "valid"), ("run.toml", "refused"), ("t.json", "refused"), ("t.toml", "refused")} <= answers
