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


OWN = {"corpus": {"embedding_column": "v"}}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"corpus": {"sampel": 3}}, "'corpus.sampel'"), ({"corpus": {"sample": 0}}, r"corpus.sample \(--sample\) = 0: "),
        ({"corpus": {"sample": "9"}}, r"corpus.sample \(--sample\) = '9': .*integer"),
        ({"corpus": {"sample": 1, "limit": 1}}, "exclude each other"), ({"corpus": 3}, "corpus = 3"), ({"seed": -1}, "seed"),
        ({"embedding": {"temperatures": [0.0]}}, "temperature 0.0"), ({"embedding": {"models": ["a", "a"]}}, "twice"),
        ({"embedding": {"temperatures": [{"constant": 0.5}, 0.5]}}, "twice"),
        ({"embedding": {"temperatures": [{"step": 0.5}]}}, "step"), ({"embedding": {"temperatures": []}}, "temperatures"),
        ({"analysis": {"intervals": [0, 5, 5]}}, "intervals"), ({"analysis": {"intervals": [1, 5]}}, "intervals"),
        ({"analysis": {"socm_sample": 5001}}, "socm_sample.* 5000"), ({"analysis": {"socm_groups": 9}}, "socm_groups.* 10"),
        ({"analysis": {"socm_sample": 100, "socm_groups": 32}}, "socm_groups and socm_se"),
        ({"analysis": {"socm_cell_se": 0.01}}, "socm_cell_se is gone"),
        ({"analysis": {"socm_tolerance": 0.0}}, "socm_tolerance is gone"),
        ({"analysis": {"socm_tolerance": 0.2}}, "socm_tolerance is gone"),
        ({"x\n\x1b[31my": 1}, r"'x\\n\\x1b\[31my'"), ({"night": "\udcff"}, "not valid UTF-8"),
        ({"execution": {"cache": "s3://b/{night}"}}, "{night}"), ({"corpus": {"dims": 3}}, "embedding_column"),
        (OWN | {"embedding": {"temperatures": [0.8]}}, "temperature"), (OWN | {"embedding": {"models": ["m"]}}, "model"),
        (OWN | {"queries": {"source": "q"}}, "--queries-embedding-column"),
        (OWN | {"analysis": {"socm_top_over": "corpus"}}, "token embeddings"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_sentence(data, named):
    with pytest.raises(UsageError, match=named) as caught:
        resolve(data)
    assert "\n" not in str(caught.value)


READERS = {"toml": lambda file: resolve(read_toml(file)), "json": read_temperature}


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("none.toml", None, "none.toml"), ("bad.toml", "x = = 3", "bad.toml.* TOML"),
        ("bad.json", "[1, 2", "bad.json.* JSON"), ("list.json", "[1, 2]", "list.json.* object"),
        ("deep.toml", f"corpus.source.{'.'.join('a' * 9000)} = 1", r"corpus.source \(--corpus\) = tables nested too deeply"),
    ],
)  # fmt: skip
def test_unreadable_files_are_named(tmp_path, name, content, named):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=named) as caught:
        READERS[name.partition(".")[2]](str(tmp_path / name))
    assert len(str(caught.value)) < 300


def test_toml_json_and_edges(tmp_path):
    (tmp_path / "t.json").write_text('{"constant": 0.9}')
    (tmp_path / "t.toml").write_text("constant = 0.9")
    assert read_temperature(str(tmp_path / "t.json")) == read_temperature(str(tmp_path / "t.toml")) == {"constant": 0.9}
    assert read_edges("0,100,200") == [0, 100, 200]
    with pytest.raises(UsageError, match="whole numbers"):
        read_edges("0,x")
    with pytest.raises(UsageError, match="is a folder"):
        read_toml(str(tmp_path))


def test_a_retrieval_on_a_storage_that_nobody_knows_is_refused_without_secrets():
    with pytest.raises(UsageError, match=r"retrieval:nosuchscheme://\*\*\*@host/task ") as caught:
        read_tasks(["retrieval:nosuchscheme://bob:SECRET@host/task"], None, None)
    assert "SECRET" not in str(caught.value)


def test_identity_holds_what_decides_the_tables_and_nothing_else():
    one = resolve({"out": "a", "execution": {"workers": 1}})
    other = resolve({"out": "b", "execution": {"workers": 7, "shuffle_seed": 3, "address": "auto"}})
    assert one.identity() == other.identity()
    assert one.identity() != resolve({"seed": 1}).identity()


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
        with pytest.raises(UsageError, match=r"'corpus' .* 3"):
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


def fields(kind, before=""):
    """The places of all fields of a configuration, without its sections."""
    for name, field in kind.model_fields.items():
        inner = [part for part in (field.annotation, *typing.get_args(field.annotation)) if hasattr(part, "model_fields")]
        yield from fields(inner[0], f"{before}{name}.") if inner else [f"{before}{name}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_there_twice_and_each_gives_a_setting(command):
    kind = COMMANDS[command]
    optional = [".".join(setting.path) for setting in settings(kind)]
    assert len(set(optional)) == len(optional) > 10
    assert {*optional} < {*fields(kind)}
    names = [option.name for setting in settings(kind) for option, _ in setting.options]
    assert len(set(names)) == len(names)
    assert kind.without_option <= {*fields(kind)} - {*optional}  # None of them is the name of a setting that is gone.


@pytest.mark.parametrize("command", COMMANDS)
def test_options_that_are_not_given_change_nothing(command):
    kind = COMMANDS[command]
    needed = {"pairs": {"pairs": "p.csv"}, "evaluate": {"task": ["SciFact"]}}.get(command, {})
    none = {option.name: None for setting in settings(kind) for option, _ in setting.options}
    assert kind.read(none | needed | {"night": "2026-11-22"}) == kind.read(needed | {"night": "2026-11-22"})
