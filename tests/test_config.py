"""The configuration: strict, readable errors, nothing of what the user wrote changed."""

import pytest

from jobs import config, inputs
from jobs.errors import UsageError


def test_defaults_are_the_designs():
    found = config.resolve({})
    assert found.analysis.intervals == [0, 32, 64, 100, 200, 300, 400, 500]
    assert found.analysis.socm_sample == 1000
    assert [t.tau for t in found.temperatures()] == [1.0, 0.8]


def test_the_quick_start_is_a_sample_only_where_no_corpus_is_named():
    assert config.resolve(config.with_quick_start({})).corpus.sample == 2000
    assert config.resolve(config.with_quick_start({})).analysis.socm_sample == 400
    named = config.resolve(config.with_quick_start({"corpus": {"source": "x.parquet"}}))
    assert named.corpus.sample is None
    assert named.analysis.socm_sample == 1000
    assert config.resolve(config.with_quick_start({"corpus": {"limit": 5}})).corpus.sample is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"corpus": {"sampel": 3}}, "'corpus.sampel' is not an option"),
        ({"corpus": {"sample": 0}}, r"corpus.sample \(--sample\) = 0: .*greater than or equal to 1"),
        ({"corpus": {"sample": "9"}}, r"corpus.sample \(--sample\) = '9': .*integer"),
        ({"corpus": {"sample": 1, "limit": 1}}, "exclude each other"),
        ({"embedding": {"temperatures": [0.0]}}, r"temperature 0.0 is out of range"),
        ({"embedding": {"temperatures": [float("nan")]}}, "out of range"),
        ({"embedding": {"temperatures": [{"constant": 0.5}, 0.5]}}, "name one twice"),
        ({"embedding": {"temperatures": [{"step": 0.5}]}}, "is not known"),
        ({"embedding": {"temperatures": []}}, "at least 1 item"),
        ({"embedding": {"models": ["a", "a"]}}, "named twice"),
        ({"analysis": {"intervals": [0, 5, 5]}}, "must start at 0 and ascend"),
        ({"analysis": {"intervals": [1, 5]}}, "must start at 0 and ascend"),
        ({"analysis": {"socm_sample": 5001}}, "less than or equal to 5000"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"corpus": 3}, "corpus = 3"),
        ({"analysis": {"socm_alpha": float("inf")}}, "socm_alpha = inf: .*finite"),
        ({"corpus": {"embedding_column": "v", "scale": [1.0, float("nan")]}}, "scale.*finite"),
        ({"x\n\x1b[31my": 1}, r"'x\\n\\x1b\[31my' is not an option"),
        ({"night": "\udcff"}, "not valid UTF-8"),
        ({"execution": {"cache": "s3://b/{night}"}}, "leave {night} out of its name"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(data, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        config.resolve(data)
    assert "\n" not in str(caught.value)


def test_identity_holds_what_decides_the_tables_and_nothing_else():
    one = config.resolve({"out": "a", "execution": {"workers": 1}})
    other = config.resolve({"out": "b", "execution": {"workers": 7, "shuffle_seed": 3, "address": "auto"}})
    assert one.identity() == other.identity()
    assert one.identity() != config.resolve({"seed": 1}).identity()


def test_toml_json_and_edges(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('out = "x"\n[corpus]\nsample = 7\n')
    assert config.resolve(inputs.read_toml(str(file))).corpus.sample == 7
    (tmp_path / "t.json").write_text('{"constant": 0.9}')
    (tmp_path / "t.toml").write_text("constant = 0.9")
    assert (
        inputs.read_temperature(str(tmp_path / "t.json"))
        == inputs.read_temperature(str(tmp_path / "t.toml"))
        == {"constant": 0.9}
    )
    assert inputs.read_edges("0,100,200") == [0, 100, 200]


def test_unreadable_files_are_sentences(tmp_path):
    (tmp_path / "bad.toml").write_text("x = = 3")
    (tmp_path / "bad.json").write_text("[1, 2")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match="is not there"):
        inputs.read_toml(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="is a folder"):
        inputs.read_toml(str(tmp_path))
    with pytest.raises(UsageError, match="cannot be read as TOML"):
        inputs.read_toml(str(tmp_path / "bad.toml"))
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        inputs.read_temperature(str(tmp_path / "bad.json"))
    with pytest.raises(UsageError, match="must hold an object"):
        inputs.read_temperature(str(tmp_path / "list.json"))
    with pytest.raises(UsageError, match="whole numbers"):
        inputs.read_edges("0,x")


def test_a_retrieval_on_a_storage_that_nobody_knows_is_a_sentence_without_secrets():
    with pytest.raises(UsageError) as caught:
        inputs.read_tasks(["retrieval:nosuchscheme://bob:SECRET@host/task"], None, None)
    assert str(caught.value).startswith("--task retrieval:nosuchscheme://***@host/task cannot be opened: ")
    assert "SECRET" not in str(caught.value)


def test_tables_nested_too_deeply_to_be_quoted_are_one_sentence(tmp_path):
    file = tmp_path / "deep.toml"
    file.write_text(f"corpus.source.{'.'.join('a' * 9000)} = 1")
    with pytest.raises(UsageError) as caught:
        config.resolve(inputs.read_toml(str(file)))
    assert str(caught.value) == (
        "corpus.source (--corpus) = tables nested too deeply to be shown: input should be a valid string"
    )


def test_options_are_laid_over_the_file_section_by_section():
    data = {"corpus": {"source": "a"}}
    inputs.lay_over(data, "corpus.sample", 4)
    inputs.lay_over(data, "seed", 2)
    assert data == {"corpus": {"source": "a", "sample": 4}, "seed": 2}
    with pytest.raises(UsageError, match="must be a table"):
        inputs.lay_over({"corpus": 3}, "corpus.sample", 4)
