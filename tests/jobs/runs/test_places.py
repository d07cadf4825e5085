"""Where a run may write: folders that its workers share, apart from what it reads."""

import pytest

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs import places


def audit(out, source="texts.jsonl", **more):
    return checked(AuditConfig, {"out": str(out), "corpus": {"source": str(source)}} | more)


@pytest.mark.parametrize(
    "name",
    ["memory://run", "MEMORY://run", "a::b", "simplecache::s3://bucket/run", "zip://run::s3://bucket/x.zip", "https://host/run",
     "github://o:r@main/run", "s3://", "s3://bucket//run", "s3://bucket/../other", "s3://bucket/./run", "s3:///run", "a\nb",
     "a\0b", "a\x1b[31m", "s3://KEY:pa/zzz@bucket//run",
     "S3://bucket/run", "s3:/bucket/run", "s3:/KEY:zzz@bucket/run", "filecache://s3/run", "cached://b/run", "gist://a/run"],
)  # fmt: skip
def test_what_names_no_folder_for_results_is_refused(name):
    for config in (audit(name), audit("run", execution={"cache": name}), audit("run", record={"history": name})):
        with pytest.raises(UsageError) as caught:
            places.check(config)
        assert "zzz" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["run", "runs/[1]", "r*n?", "100%", "a#b", "-run", "~/run", "../run", "./run/", "s3://bucket/run/", "s3://bucket/run[1]",
     "abfss://box@account/run", "file:///data/run", "フォルダ　名", "a:b@c"],
)  # fmt: skip
def test_any_other_name_is_a_folder(name):
    places.check(audit(name, execution={"cache": name}, record={"history": name}))


@pytest.mark.parametrize(
    "source",
    ["run", "run/texts.jsonl", "run/tables/*.parquet", "lance:run/t.lance", "hf:run:default:train", "link/texts.jsonl",
     "./run/../run/x"],
)  # fmt: skip
def test_a_source_in_the_folder_of_the_run_is_refused(tmp_path, source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    configs = [
        audit("run", source),
        audit("run", queries={"source": source}),
        checked(EvaluateConfig, {"out": "run", "tasks": [{"name": "a", "type": "sts", "source": source}]}),
        checked(EvaluateConfig, {"out": "run", "tasks": ["STS12"], "audits": ["elsewhere", source]}),
        *(
            checked(VerifyConfig, {"out": "run", "embeddings": {"source": "x.parquet"}, setting: source})
            for setting in ("texts", "earlier")
        ),
    ]
    for config in configs:
        with pytest.raises(UsageError) as caught:
            places.check(config)
        assert source in str(caught.value)


def test_a_source_in_the_folder_of_a_remote_run_is_refused():
    with pytest.raises(UsageError):
        places.check(audit("s3://bucket/run/", "s3://bucket/run/texts/*.jsonl"))
    places.check(audit("s3://bucket/run", "s3://bucket/run2/texts.jsonl"))
    places.check(audit("s3://bucket/run", "docstrings:scipy"))


def test_a_run_in_the_folder_of_its_corpus_is_no_part_of_it_but_of_a_data_set(tmp_path):
    places.check(audit(tmp_path / "texts" / "run", tmp_path / "texts"))
    (tmp_path / "texts").mkdir()
    with pytest.raises(UsageError):
        places.check(audit(tmp_path / "texts" / "run", f"hf:{tmp_path}/texts"))
    places.check(audit(tmp_path / "run", f"hf:{tmp_path}/texts"))
