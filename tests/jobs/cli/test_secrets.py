"""What a command that fails prints and writes holds no secret of an address, whatever the error quotes."""

import fsspec
import pytest
import typer
from command_line import in_process
from fsspec.spec import AbstractFileSystem

from tempscale_jobs.cli import start
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.storage import Storage

SOURCE = "https://user:pa/zz1zz%2Fzz2zz@host/x.jsonl?sig=zz3zz"
OUT = "s3://KEY:zz4zz/zz5zz@bucket/run"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("kind", [OSError, ValueError, UsageError, IncompleteRun])
def test_an_error_shows_no_secret(kind, debug, form, monkeypatch, capsys):
    monkeypatch.setenv("TEMPSCALE_DEBUG", debug)
    config = checked(AuditConfig, {"out": OUT, "corpus": {"source": SOURCE}, "execution": {"log_format": form}})

    def fails(console):
        with start.begun(config, SOURCE, console):
            # Libraries quote pieces: a port, a bucket. Sentences of ours quote addresses.
            pieces = (
                "" if issubclass(kind, UsageError | IncompleteRun) else "no port 'zz1zz', 'zz2zz', bucket KEY:zz4zz, zz3zz"
            )
            raise kind(f"'{SOURCE}' to '{OUT}' and https://other:zz6zz@host {pieces}")

    with pytest.raises(typer.Exit) as caught:
        start.answer(fails)
    assert caught.value.exit_code == (2 if kind is UsageError else 3)
    printed = "".join(capsys.readouterr())
    assert "zz" not in printed
    assert "host/x.jsonl" in printed
    assert ("Traceback" in printed) == (debug == "1" and kind in (OSError, ValueError))


class Failing(AbstractFileSystem):
    """A storage whose own error quotes what it was given."""

    protocol = "failing"

    def __init__(self, **options):
        super().__init__(**options)

    def exists(self, path, **options):
        raise RuntimeError(f"no bucket in {path}, user KEY:zz1zz")

    find = ls = info = exists


@pytest.mark.parametrize(
    "words",
    [["cache", "{}"], ["cache", "{}", "prune"], ["history", "{}"], ["report", "{}"], ["compare", "{}", "{}"],
     ["cache", "DIR", "prune", "--keep", "{}"], ["export", "--out", "DIR/new", "--tau", "0.9", "--measured", "{}"]],
    ids=" ".join,
)  # fmt: skip
def test_a_storage_that_cannot_be_reached_ends_what_reads_it_with_2_and_without_secrets(words, tmp_path):
    fsspec.register_implementation("failing", Failing, clobber=True)
    Storage(str(tmp_path)).write_json("k/key.json", {"name": "m", "temperature": "1.0", "last_used": "2026-11-01"})
    address = "failing://KEY:zz1zz/zz2zz@bucket/x"
    code, *printed = in_process(*(word.format(address).replace("DIR", str(tmp_path)) for word in words))
    assert code == 2, printed
    assert "zz" not in "".join(printed)


@pytest.mark.parametrize(
    "words",
    [["audit", "s3://KEY:zz1zz@b/x.toml"], ["audit", "a.toml", "s3://KEY:zz1zz@b/x"], ["https://u:zz1zz@h/x"],
     ["export", "--out", "o", "--temperature", "https://u:zz1zz@h/x"], ["audit", "--tau", "s3:/KEY:zz1zz@b/x"],
     ["history", "a", "https:/u:zz1zz@h/x"], ["audit", "--https://u:zz1zz@h/x"], ["history", "a", "--last=s3://K:zz1zz@b"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_answered_without_secrets(words):
    code, *printed = in_process(*words)
    assert code == 2, printed
    assert "zz1zz" not in "".join(printed)


def test_addresses_of_the_command_line_are_known_to_unexpected_errors(capsys):
    @start.answered
    def command(**given):
        raise RuntimeError("user 'KEY:zz1zz', port 'zz2zz'")

    with pytest.raises(typer.Exit):
        command(folder="s3://KEY:zz1zz/zz2zz@bucket/x", keep=["a"], last=None)
    assert "zz" not in "".join(capsys.readouterr())
