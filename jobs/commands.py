"""What a command does once its options are read: a configuration from them, then the run with its progress and end.

What takes seconds to import is imported where it is needed: a mistake in the options is told at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import config, inputs
from jobs.config import AuditConfig

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.diagnose_config import DiagnoseConfig
    from jobs.evaluate_config import EvaluateConfig
    from jobs.pairs_config import PairsConfig
    from jobs.progress import Journal
    from jobs.tune_config import TuneConfig


def configured(
    file: Path | None, given: dict[str, Any], tau: list[float] | None, temperature: Path | None, intervals: str | None
) -> AuditConfig:
    """The configuration of the file with the options laid over it."""
    data = inputs.read_toml(str(file)) if file is not None else {}
    given["embedding.temperatures"] = temperatures(tau, temperature) or None
    if intervals is not None:
        given["analysis.intervals"] = inputs.read_edges(intervals)
    for name, other in (("corpus.sample", "corpus.limit"), ("corpus.limit", "corpus.sample")):
        if given[name] is not None and given[other] is None and isinstance(data.get("corpus"), dict):
            data["corpus"].pop(other.split(".")[1], None)  # An option wins over what it excludes in the file.
    inputs.nested(given, data)
    return config.resolve(config.with_quick_start(data))


def temperatures(tau: list[float] | None, file: Path | None) -> list[Any]:
    """The temperatures that the options name."""
    named = [] if file is None else [inputs.read_temperature(str(file))]
    return [*(tau or []), *named]


def audit(settings: AuditConfig, console: Console, *, fresh: bool, plan: bool) -> int:
    """Run an audit, or estimate what it would take, and print how it ended."""
    if plan:
        from jobs.plan import print_plan

        print_plan(settings, console)
        return 0
    from jobs import notify
    from jobs.errors import UsageError
    from jobs.runs import DONE
    from jobs.urls import reason

    with _begun("audit", settings.corpus.source, settings.out, console, settings.execution.log_format) as journal:
        from jobs.audit import audit as run_audit

        try:
            run = run_audit(settings, journal, fresh=fresh)
        except Exception as error:  # What is no usage error is incomplete, whatever it is.
            code = 2 if isinstance(error, UsageError) else 3
            notify.post_unfinished(settings.gate, settings.night, settings.out, reason(error, settings.out), code)
            raise
        judged = run.storage.read_json(DONE)["gate"]
        journal.outcome = "; ".join([f"gate {judged['verdict']}", *judged["failed"]])
    if settings.execution.log_format == "text":
        from jobs.closing import close

        close(run)
    return 1 if judged["verdict"] == "failed" else 0


def pairs(settings: PairsConfig, console: Console, *, fresh: bool) -> int:
    """Measure explicit pairs and print how it ended."""
    with _begun("pairs", settings.pairs.source, settings.out, console, settings.execution.log_format) as journal:
        from jobs.pairs import pairs as run_pairs

        run = run_pairs(settings, journal, fresh=fresh)
    if settings.execution.log_format == "text":
        from jobs.closing import close_pairs

        close_pairs(run)
    return 0


def diagnose(settings: DiagnoseConfig, console: Console, *, fresh: bool) -> int:
    """Look into a model's layers and print how it ended."""
    with _begun("diagnose", settings.corpus.source, settings.out, console, settings.execution.log_format) as journal:
        from jobs.diagnose import diagnose as run_diagnose

        run = run_diagnose(settings, journal, fresh=fresh)
    if settings.execution.log_format == "text":
        from jobs.closing import close_diagnose

        close_diagnose(run)
    return 0


def evaluate(settings: EvaluateConfig, console: Console, *, fresh: bool) -> int:
    """Score tasks under each temperature and print how it ended."""
    names = [task if isinstance(task, str) else task.name for task in settings.tasks]
    with _begun("evaluate", ", ".join(names), settings.out, console, settings.execution.log_format) as journal:
        from jobs.evaluate import evaluate as run_evaluate

        run = run_evaluate(settings, journal, fresh=fresh)
    if settings.execution.log_format == "text":
        from jobs.closing import close_evaluate

        close_evaluate(run)
    return 0


def tune(settings: TuneConfig, console: Console, *, fresh: bool) -> int:
    """Choose a temperature and print it."""
    names = [task if isinstance(task, str) else task.name for task in settings.tasks]
    source = ", ".join(names) if names else settings.texts().source
    with _begun("tune", source, settings.out, console, settings.execution.log_format) as journal:
        from jobs.tune import tune as run_tune

        run = run_tune(settings, journal, fresh=fresh)
    if settings.execution.log_format == "text":
        from jobs.closing_tune import close_tune

        close_tune(run)
    return 0


def history(folder: str, accepted: str | None, keep: int | None, last: int, console: Console) -> int:
    """Print the record of nights and draw it, or accept a run, or prune old nights."""
    from jobs import history as record
    from jobs import history_page, nights
    from jobs.closing import print_table, screen
    from jobs.errors import UsageError
    from jobs.storage import Storage
    from jobs.urls import shown

    storage = record.open_record(folder)
    if accepted is not None:
        row = record.accept(storage, accepted)
        told = f"accepted: the night of {row['night']} (run {row['run']}); later nights are compared with it"
        console.print(told, highlight=False, soft_wrap=True, markup=False)
        return 0
    if keep is not None:
        gone = nights.prune_record(storage, None, keep)
        told = f"the embeddings of {len(gone)} nights removed: {', '.join(gone)}" if gone else "nothing to remove"
        console.print(told, highlight=False, soft_wrap=True, markup=False)
        return 0
    found = record.load(storage)
    if found.is_empty():
        raise UsageError(f"the record in '{shown(storage.root)}' is empty: no audit has ended there")
    print_table(screen(), history_page.heads(), history_page.table(found, last))
    storage.write("history.html", history_page.render(found).html.encode())
    place = Storage(storage.root).path("history.html") if storage.is_local else f"{shown(storage.root)}/history.html"
    screen().print(f"\ndrawn   {place}", highlight=False, soft_wrap=True, markup=False)
    return 0


def compare(folder_a: str, folder_b: str, out: str | None, console: Console) -> int:
    """Say what changed from one audit to another."""
    from jobs import compare as comparing
    from jobs import compare_sentences as sentences
    from jobs.closing import print_table, screen
    from jobs.urls import shown

    with console.status("comparing"):
        found = comparing.compare(folder_a, folder_b)
    paper = screen()
    for line in sentences.told(found):
        paper.print(f"• {line}", highlight=False, soft_wrap=True, markup=False)
    for name, lines in sentences.figure_lines(found):
        print_table(paper, (name, "A", "B", "change", "on the same texts"), lines)
    intervals = ("where the mean moved, tokens", "pairs", "cosine A", "B", "change", "by cosines", "by lengths")
    texts = ("texts that moved most", "words", "tokens", "mean cosine to all, A", "B", "change")
    for heads, parts in ((intervals, sentences.interval_lines(found)), (texts, sentences.text_lines(found))):
        for name, lines in parts:
            if lines:
                print_table(paper, heads if len(found.pairs) == 1 else (f"{name}: {heads[0]}", *heads[1:]), lines)
    if out is not None:
        found.write(out)
        paper.print(f"\ntables  {shown(out)}/", highlight=False, soft_wrap=True, markup=False)
    return 0


def render_again(folder: str, beside: Sequence[str] = ()) -> str:
    """Write the report of a finished run again from its tables, and its figures; returns where it is.

    Args:
        folder: the run.
        beside: finished runs of `diagnose` or `evaluate` whose findings an audit's report is to hold too.

    Raises:
        UsageError: a folder holds no finished run that has a report, or one of another model.
    """
    from jobs import beside as others
    from jobs import diagnose_report, evaluate_report, report, runs, tune_report
    from jobs.errors import UsageError
    from jobs.summary import load_tables
    from jobs.urls import shown

    pages = {
        "audit": report.render, "diagnose": diagnose_report.render, "evaluate": evaluate_report.render,
        "tune": tune_report.render,
    }  # fmt: skip
    storage = runs.finished(folder)
    record = storage.read_json(runs.DONE)
    if (command := record.get("command", "audit")) not in pages:
        raise UsageError(f"'{shown(folder)}' holds a run of tempscale {command}, which has tables and no report")
    if beside and command != "audit":
        raise UsageError(f"--with puts other runs beside an audit, and '{shown(folder)}' holds a run of tempscale {command}")
    more = (
        {"beside": [part for place, other in enumerate(beside) for part in others.read(other, record, place)]}
        if beside
        else {}
    )
    pages[command](load_tables(storage), record, **more).leave(storage)
    return f"{shown(storage.root)}/report.html"


@contextmanager
def _begun(command: str, source: str, out: str, console: Console, log_format: str = "text") -> Iterator[Journal]:
    """Say at once what begins; the journal of its progress, closed at its end."""
    from rich.markup import escape

    from jobs.errors import RunError
    from jobs.observing import JsonLines, Observer, RayMetrics, StatusFile
    from jobs.progress import Journal
    from jobs.urls import reason, shown

    title = f"{shown(source)} → {shown(out)}"
    observers: list[Observer] = [StatusFile(), RayMetrics()]
    if log_format == "json":
        console.quiet = True
        observers.append(JsonLines())
        observers[-1].say("command", f"tempscale {command} {title}")
    console.print(f"[bold]tempscale {command}[/] {escape(title)}", highlight=False, soft_wrap=True)
    with closing(Journal(console, observers)) as journal:
        try:
            yield journal
        except RunError as error:
            journal.end("incomplete" if error.exit_code == 3 else "failed", str(error))
            raise
        except KeyboardInterrupt:
            journal.end("incomplete", "interrupted: the same command goes on where this one stopped")
            raise
        except Exception as error:
            journal.end("incomplete", f"unexpected {type(error).__name__}: {reason(error, out)}")
            raise
        journal.end("complete", journal.outcome)


def cache(folder: str, action: str, unused_days: int | None, keep: list[str], console: Console) -> int:
    """List or prune a cache."""
    from rich.filesize import decimal

    from jobs import cache_upkeep
    from jobs.closing import print_table
    from jobs.errors import UsageError

    if action not in ("list", "prune"):
        raise UsageError(f"'{action}' is nothing to do with a cache; say list or prune")
    if action == "list":
        if unused_days is not None or keep:
            raise UsageError("--unused-for and --keep belong to prune: tempscale cache DIR prune …")
        rows = [
            [h.values["name"], h.values["temperature"], f"{h.values['max_length']}", h.values["precision"],
             f"{h.texts:,}", f"{h.files:,}", decimal(h.bytes), h.values["last_used"]]
            for h in cache_upkeep.listed(folder)
        ]  # fmt: skip
        print_table(console, ["model", "τ", "window", "precision", "texts", "files", "size", "last used"], rows)
        return 0
    with console.status("pruning") as status:
        freed = cache_upkeep.prune(folder, unused_days, keep, lambda what: status.update(f"pruning {what}"))
    console.print(f"freed {decimal(max(0, freed))}", highlight=False)
    return 0
