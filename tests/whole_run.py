"""What tests of whole audits begin with: a run in this process, and real texts."""

import json
from contextlib import closing

from rich.console import Console

from jobs import config, sources
from jobs.audit import audit
from jobs.progress import Journal


def audited(data, **how):
    """The run of a configuration given as plain data."""
    with closing(Journal(Console(stderr=True))) as journal:
        return audit(config.resolve(data), journal, **how)


def documented(package):
    """The docstrings of a package as records, by id."""
    rows = sources.rows(config.Corpus.model_validate({"source": f"docstrings:{package}"}))
    return sorted(({"id": row.id, "text": row.text} for row in rows if row.text.strip()), key=lambda text: text["id"])


def as_lines(records):
    """Records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def encodable(text):
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
