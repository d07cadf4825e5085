"""Whole runs in this process, what they are run on, and what they leave: for the tests that begin with a run."""

import hashlib
import json
import re
from contextlib import closing, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import polars as pl
from audit_ways import PLAIN
from command_line import in_process
from rich.console import Console

from tempscale_jobs.cli import records
from tempscale_jobs.cli.start import print_end
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage

# --- the commands, each with a configuration given as plain data --------------------------------------------------------


def _command(name):
    """A function of a configuration that runs one command in this process."""

    def run(data, console=None, observers=(), **how):
        config = import_module(f"tempscale_jobs.config.{name}")
        settled = resolve(data) if name == "audit" else checked(getattr(config, f"{name.title()}Config"), data)
        command = getattr(import_module(f"tempscale_jobs.{name}.run"), name)
        with closing(Journal(console or Console(stderr=True), observers)) as journal:
            return command(settled, journal, **how)

    return run


audited, paired, diagnosed = _command("audit"), _command("pairs"), _command("diagnose")
evaluated, corrected, tuned = _command("evaluate"), _command("correct"), _command("tune")


def printed_audit(folder, model, source, max_length="limit"):
    """Run a plain audit from the command line: run/, what it printed in printed.txt, what was asked in asked.json."""
    asked = {
        "corpus": {"source": source, "sample": PLAIN.texts},
        "embedding": {"models": [model], "max_length": max_length, "shard_texts": PLAIN.shard},
        "analysis": {"probe_sample": PLAIN.probed, "socm_sample": PLAIN.socm, "intervals": PLAIN.edges},
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "audit.toml").write_text(as_toml(asked))
    code, out, err = in_process("audit", str(folder / "audit.toml"), "--workers", "1", "--out", str(folder / "run"))
    assert code == 0, err
    (folder / "printed.txt").write_text(err + out, "utf-8")


# --- what a run is made on ----------------------------------------------------------------------------------------------


def sharded(storage, config):
    """The index of an audit's corpus, read into shards."""
    return SourceReader(storage, TextShards(config.corpus, config.embedding, config.out), config.seed, config.out).index


def documented(package):
    """The docstrings of a package as records, by id."""
    rows = sources.rows(Corpus.model_validate({"source": f"docstrings:{package}"}))
    return sorted(({"id": row.id, "text": row.text} for row in rows if row.text.strip()), key=lambda text: text["id"])


def as_lines(records):
    """Records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def flipped(data, bit):
    """Bytes of which one bit is another."""
    found = bytearray(data)
    found[bit // 8] ^= 1 << (bit % 8)
    return bytes(found)


def as_toml(data):
    """A configuration as TOML; what JSON writes of a plain value is TOML."""
    plain = [
        f"{name} = {json.dumps(value)}" for name, value in data.items() if name != "tasks" and not isinstance(value, dict)
    ]
    tables = [(f"[{name}]", value) for name, value in data.items() if isinstance(value, dict)]
    for head, values in tables + [("[[tasks]]", task) for task in data.get("tasks", [])]:
        plain += [head, *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join(plain) + "\n"


def encodable(text):
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- what a run leaves --------------------------------------------------------------------------------------------------


def read_tables(out):
    """The tables of a run by name."""
    return {file.stem: pl.read_parquet(file) for file in (Path(out) / "tables").iterdir()}


def checked_json(command, out):
    """What --json prints of a finished run: its findings are those of the table, which has each figure once."""
    printed = StringIO()
    with redirect_stdout(printed):
        print_end(SimpleNamespace(command=command), SimpleNamespace(storage=Storage(str(out))), True)
    data, stored = json.loads(printed.getvalue()), Findings.read(read_tables(out)["findings"])
    assert data["run"] == str(out)
    assert [row | {"command": ""} for row in data["findings"]] == [row | {"command": ""} for row in stored.as_data()]
    assert len({(row.figure, row.model, row.temperature) for row in stored.rows}) == len(stored.rows)
    return data


def read_parts(out, kind, tau="*"):
    """What texts/, factors/ or neighbours/ hold under a temperature, in the order of the files."""
    return pl.read_parquet(Path(out) / kind / "*" / f"temperature={tau}" / "*.parquet", hive_partitioning=False)


def read_record(out):
    """run.json."""
    return json.loads((Path(out) / "run.json").read_text("utf-8"))


def rejected(out):
    """The reason of each text that was left out."""
    found = pl.read_parquet(Path(out) / "rejected" / "**" / "*.parquet", hive_partitioning=False)
    return dict(zip(found["text_id"].to_list(), found["reason"].to_list(), strict=True))


def digests(out, *folders):
    """The digest of each Parquet file; of what must not change where no folder is named."""
    kinds = folders or ("tables", "texts", "factors", "neighbours", "rejected")
    files = (file for kind in kinds for file in sorted((Path(out) / kind).rglob("*.parquet")))
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def read_report(out):
    """The report of a run, which asks for nothing from outside, shows no NaN and is the same when it is written again.

    With plain spaces in place of those that keep a figure and its error on one line.
    """
    from pages import specs_of

    page = Path(out, "report.html").read_text("utf-8")
    assert len(page) < 3_000_000
    assert not re.search(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert ">nan" not in page.lower()
    assert all(f'id="{key}"' in page for key in specs_of(page))
    Path(out, "report.html").unlink()
    records.report(str(out))
    assert Path(out, "report.html").read_text("utf-8") == page
    return page.replace("\u00a0", " ")
