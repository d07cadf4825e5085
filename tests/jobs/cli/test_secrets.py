"""What a command that fails prints and writes holds no secret of an address, whatever the error quotes."""

import pytest
import typer

from tempscale_jobs.cli import start
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import IncompleteRun, UsageError

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
