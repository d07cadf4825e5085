"""The configuration: strict, readable errors, nothing of what the user wrote changed."""

import typing

import pytest

from tempscale_jobs.config.audit import AuditConfig, resolve, with_quick_start
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig, read_tasks
from tempscale_jobs.config.given import read_edges, read_temperature, read_toml
from tempscale_jobs.config.option import settings
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.errors import UsageError


def test_defaults_are_the_designs():
    found = resolve({})
    assert found.analysis.intervals == [0, 32, 64, 100, 200, 300, 400, 500]
    assert (found.analysis.socm_groups, found.analysis.socm_sample, found.analysis.socm_se) == (32, None, None)
    assert [t.tau for t in found.temperatures()] == [1.0, 0.8]


def test_the_quick_start_is_a_sample_only_where_no_corpus_is_named():
    quick = resolve(with_quick_start({}))
    assert (quick.corpus.sample, quick.analysis.socm_groups, quick.analysis.probe_sample) == (300, 12, 48)
    assert resolve(with_quick_start({"corpus": {"sample": 50}})).analysis.socm_groups == 32
    assert resolve(with_quick_start({"analysis": {"socm_sample": 9}})).analysis.socm_sample == 9
    named = resolve(with_quick_start({"corpus": {"source": "x.parquet"}}))
    assert named.corpus.sample is None
    assert named.analysis.probe_sample is None
    assert resolve(with_quick_start({"corpus": {"limit": 5}})).corpus.sample is None


def test_the_published_way_is_all_pairs_of_a_thousand_texts_unless_it_is_said_how_many():
    published = {"socm_regularization": 1e-9}
    assert resolve({"analysis": published}).analysis.socm_sample == 1000
    assert resolve({"analysis": published | {"socm_sample": 50}}).analysis.socm_sample == 50
    assert resolve({"analysis": published | {"socm_groups": 64}}).analysis.socm_sample is None


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
        ({"analysis": {"socm_groups": 9}}, "greater than or equal to 10"),
        ({"analysis": {"socm_sample": 100, "socm_groups": 32}}, "leave out socm_groups and socm_se"),
        ({"analysis": {"socm_cell_se": 0.01}}, "socm_cell_se is gone: .*socm_se is the mean's wanted error"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"corpus": 3}, "corpus = 3"),
        ({"analysis": {"socm_alpha": float("inf")}}, r"socm_alpha \(--alpha\) = inf: .*finite"),
        ({"corpus": {"embedding_column": "v", "scale": [1.0, float("nan")]}}, "scale.*finite"),
        ({"x\n\x1b[31my": 1}, r"'x\\n\\x1b\[31my' is not an option"),
        ({"night": "\udcff"}, "not valid UTF-8"),
        ({"execution": {"cache": "s3://b/{night}"}}, "leave {night} out of its name"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(data, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        resolve(data)
    assert "\n" not in str(caught.value)


def test_identity_holds_what_decides_the_tables_and_nothing_else():
    one = resolve({"out": "a", "execution": {"workers": 1}})
    other = resolve({"out": "b", "execution": {"workers": 7, "shuffle_seed": 3, "address": "auto"}})
    assert one.identity() == other.identity()
    assert one.identity() != resolve({"seed": 1}).identity()


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
def test_a_tolerance_of_socm_is_refused_in_one_sentence(tolerance):
    with pytest.raises(UsageError) as caught:
        resolve({"analysis": {"socm_tolerance": tolerance}})
    assert str(caught.value) == (
        "analysis: socm_tolerance is gone, since it saved no time, and every SOCM is exact; leave it out"
    )


def test_toml_json_and_edges(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('out = "x"\n[corpus]\nsample = 7\n')
    assert resolve(read_toml(str(file))).corpus.sample == 7
    (tmp_path / "t.json").write_text('{"constant": 0.9}')
    (tmp_path / "t.toml").write_text("constant = 0.9")
    assert read_temperature(str(tmp_path / "t.json")) == read_temperature(str(tmp_path / "t.toml")) == {"constant": 0.9}
    assert read_edges("0,100,200") == [0, 100, 200]


def test_unreadable_files_are_sentences(tmp_path):
    (tmp_path / "bad.toml").write_text("x = = 3")
    (tmp_path / "bad.json").write_text("[1, 2")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match="is not there"):
        read_toml(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="is a folder"):
        read_toml(str(tmp_path))
    with pytest.raises(UsageError, match="cannot be read as TOML"):
        read_toml(str(tmp_path / "bad.toml"))
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        read_temperature(str(tmp_path / "bad.json"))
    with pytest.raises(UsageError, match="must hold an object"):
        read_temperature(str(tmp_path / "list.json"))
    with pytest.raises(UsageError, match="whole numbers"):
        read_edges("0,x")


def test_a_retrieval_on_a_storage_that_nobody_knows_is_a_sentence_without_secrets():
    with pytest.raises(UsageError) as caught:
        read_tasks(["retrieval:nosuchscheme://bob:SECRET@host/task"], None, None)
    assert str(caught.value).startswith("--task retrieval:nosuchscheme://***@host/task cannot be opened: ")
    assert "SECRET" not in str(caught.value)


def test_tables_nested_too_deeply_to_be_quoted_are_one_sentence(tmp_path):
    file = tmp_path / "deep.toml"
    file.write_text(f"corpus.source.{'.'.join('a' * 9000)} = 1")
    with pytest.raises(UsageError) as caught:
        resolve(read_toml(str(file)))
    assert str(caught.value) == (
        "corpus.source (--corpus) = tables nested too deeply to be shown: input should be a valid string"
    )


@pytest.fixture
def file(tmp_path):
    """A configuration file with some settings of an audit."""
    file = tmp_path / "run.toml"
    file.write_text('seed = 5\n[corpus]\nsource = "a"\nsample = 9\n[embedding]\ntemperatures = [0.5]\n')
    return file


def test_options_are_laid_over_the_file_section_by_section(file, tmp_path):
    config = AuditConfig.read({"config": file, "limit": 4, "seed": None, "model": [], "text": False, "paper": True})
    assert (config.corpus.source, config.seed, config.embedding.temperatures) == ("a", 5, [0.5])
    assert (config.corpus.sample, config.corpus.limit) == (None, 4)  # An option wins over what it excludes in the file.
    assert (config.keep_text, config.analysis.socm_regularization) == (False, 1e-9)
    assert AuditConfig.read({"config": file, "sample": 4}).corpus.sample == 4
    with pytest.raises(UsageError, match="exclude each other"):
        AuditConfig.read({"config": file, "sample": 4, "limit": 4})
    (tmp_path / "wrong.toml").write_text("corpus = 3")
    for kind in (AuditConfig, TuneConfig):
        with pytest.raises(UsageError, match="'corpus' must be a table of the configuration, not 3"):
            kind.read({"config": tmp_path / "wrong.toml", "sample": 4})


def test_print_measures_its_own_sample_in_the_quick_start_too():
    for given in ({"paper": True}, {"paper": True, "corpus": "a"}):
        analysis = AuditConfig.read(given).analysis
        assert (analysis.socm_sample, analysis.socm_groups) == (1000, 32)
    assert AuditConfig.read({}).analysis.socm_groups == 12


def test_schedules_come_after_constants_and_a_choice_is_compared_with_1(file, tmp_path):
    schedule = tmp_path / "log.toml"
    schedule.write_text("log_length = 64")
    given = {"tau": [1.0, 0.9], "temperature": schedule}
    assert AuditConfig.read({"config": file} | given).embedding.temperatures == [1.0, 0.9, {"log_length": 64}]
    assert TuneConfig.read({"temperature": [schedule]}).embedding.temperatures == [1.0, {"log_length": 64}]
    assert TuneConfig.read({"tau": [0.5], "temperature": [schedule]}).embedding.temperatures == [0.5, {"log_length": 64}]


COMMANDS = {kind.command: kind for kind in (AuditConfig, PairsConfig, DiagnoseConfig, EvaluateConfig, TuneConfig)}
FILE_ONLY = {
    "audit": """
        corpus.bits corpus.scale corpus.max_characters corpus.unit_rows corpus.unit_bytes
        queries.id_column queries.text_column queries.sample queries.limit queries.max_rejected queries.length_column
        queries.document_column queries.dims queries.bits queries.scale queries.max_characters
        queries.unit_rows queries.unit_bytes
        embedding.token_budget embedding.shard_texts embedding.shard_characters
        analysis.probe_se analysis.probe_sample analysis.socm_ranked analysis.worst_pairs analysis.near_duplicate
        analysis.worst_duplicates
        gate.thresholds gate.temperatures gate.drift gate.on_other_model gate.unknown gate.false_alarms
        gate.webhook_env gate.notify
        record.name record.keep_embeddings execution.shuffle_seed
    """,
    "pairs": """
        pairs.max_characters pairs.chunk_pairs pairs.chunk_characters embedding.token_budget embedding.tune_batches
        execution.log_format execution.shuffle_seed
    """,
    "diagnose": """
        corpus.embedding_column corpus.length_column corpus.dims corpus.bits corpus.scale corpus.max_characters
        corpus.unit_rows corpus.unit_bytes
        diagnosis.piece_texts execution.log_format execution.shuffle_seed
    """,
    "evaluate": "corrected.held_out corrected.recipes execution.log_format execution.shuffle_seed",
    "tune": """
        corpus.embedding_column corpus.length_column corpus.dims corpus.bits corpus.scale corpus.max_characters
        corpus.unit_rows corpus.unit_bytes
        choosing.layer_texts choosing.layer_tokens choosing.layer_steps choosing.held_out choosing.probe_sample
        choosing.neighbours choosing.keep_neighbours execution.cache execution.log_format execution.shuffle_seed
    """,
}
"""Settings without an option; of `pairs` and `diagnose`, which read no file, those that nobody but a test gives."""


def fields(kind, before=""):
    """The places of all fields of a configuration, without its sections."""
    for name, field in kind.model_fields.items():
        inner = [part for part in (field.annotation, *typing.get_args(field.annotation)) if hasattr(part, "model_fields")]
        yield from fields(inner[0], f"{before}{name}.") if inner else [f"{before}{name}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_setting_has_an_option_or_is_known_to_have_none(command):
    kind = COMMANDS[command]
    optional = [".".join(setting.path) for setting in settings(kind)]
    assert len(set(optional)) == len(optional)
    assert sorted(optional + FILE_ONLY[command].split()) == sorted(fields(kind))
    names = [option.name for setting in settings(kind) for option, _ in setting.options]
    assert len(set(names)) == len(names)
    assert kind.without_option <= set(FILE_ONLY[command].split())  # None of them is the name of a setting that is gone.


@pytest.mark.parametrize("command", COMMANDS)
def test_options_that_are_not_given_change_nothing(command):
    kind = COMMANDS[command]
    needed = {"pairs": {"pairs": "p.csv"}, "evaluate": {"task": ["SciFact"]}}.get(command, {})
    none = {option.name: None for setting in settings(kind) for option, _ in setting.options}
    assert kind.read(none | needed | {"night": "2026-11-22"}) == kind.read(needed | {"night": "2026-11-22"})
