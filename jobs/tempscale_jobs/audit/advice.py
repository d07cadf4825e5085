"""What follows from an audit: at most three lines, each with the figure that it rests on and a command."""

from __future__ import annotations

from typing import Any, NamedTuple

import polars as pl

from tempscale.collapse.hubs import TIMES
from tempscale.correction.variant_names import LEAST_CHUNK, chunks_of
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.audit.findings import exposed, exposures, of_row
from tempscale_jobs.audit.named import hubs
from tempscale_jobs.audit.verdict import compared
from tempscale_jobs.audit.words import by_the_correction, kept_by_correction, least_certain
from tempscale_jobs.config.nights import NIGHT
from tempscale_jobs.report.again import again, hides, repeated
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.shell import folder_for, shell_line
from tempscale_jobs.report.text import (
    Edges,
    capital,
    count,
    estimate,
    interval_name,
    number,
    share,
    share_of,
    share_with_error,
    with_error,
)
from tempscale_jobs.runs.folder import GIVEN, REMOVE, place
from tempscale_jobs.steps import calibration
from tempscale_jobs.steps.by_length import name

Row = dict[str, Any]
_ASKED = {"corpus": "searches with the corpus's own texts", "queries": "your queries"}
_TUNE = "To look for a temperature or a correction that lessens this, and to see what else it changes:"
_CORRECT = (
    "To correct {which} vectors for an index that ranks by inner product (for another, add --equal-norms); those of queries "
    "by the same command with --side queries:"
)
_PARQUET = (".parquet", ".pq")
_SMALLER = ("--what-if", "int8", "--what-if", "bits")
_MOST = 3
_NEARLY_ALL = 0.95
"""The share of truncated texts from which on they are nearly all of one length."""
_CUT = 0.02
"""A smaller share of truncated texts is not worth a line."""


class Advice(NamedTuple):
    """One thing to do, or to leave."""

    claim: str
    """A sentence with its figure."""
    command: str = ""
    """What to run for it; empty where there is nothing to run."""
    figures: tuple[str, ...] = ()
    """The findings that it rests on."""
    lead: str = ""
    """What introduces the command."""

    @property
    def text(self) -> str:
        """The sentence, and what introduces its command."""
        return f"{self.claim} {self.lead}" if self.command and self.lead else self.claim

    @classmethod
    def to_run(cls, figure: str, claim: str, lead: str, command: str) -> Advice:
        """A sentence and a command that `lead` introduces; the sentence alone where there is no command."""
        return cls(claim, command, (figure,), lead)


def advice(tables: dict[str, pl.DataFrame], row: Row, run: dict[str, Any]) -> list[Advice]:
    """What to do about the corpus and model of a row of collapse_summary, the most urgent first.

    Args:
        tables: those that `labelled` returns.
        row: the model's row at its first temperature.
        run: the content of run.json.
    """
    vectors_given, found = _vectors_given(run), Findings.read(tables["findings"])
    winning = _some_win(tables, found, row, run)
    candidates = [
        _more_texts(row, found, run), _documents(row, run), None if vectors_given else _truncated(row, run),
        _hubs(tables, row, run), winning, None if vectors_given else _collapse(row, found, run),
    ]  # fmt: skip
    lines = list[Advice]()
    for line in filter(None, candidates):
        if lines and line.command and line.command == lines[-1].command:
            before = lines.pop()
            line = line._replace(claim=f"{before.claim} {line.claim}", figures=before.figures + line.figures)
        lines.append(line)
    none_wins = _none_wins(tables, found, row, Edges.of(run)) if lines and winning is None else None
    lines = lines[:_MOST] or [_nothing(tables, found, row, run)]
    if "queries" not in run:
        return lines
    return lines + [line for line in (none_wins, _threshold(tables, row), _cost(tables, row, run)) if line is not None]


def _vectors_given(run: dict[str, Any]) -> bool:
    """Whether the embeddings are the user's own: no model and no temperature can be changed here."""
    return run["config"].get("corpus", {}).get("embedding_column") is not None


def _more_texts(row: Row, found: Findings, run: dict[str, Any]) -> Advice | None:
    state, texts, finer = found.at("collapse_gap", row).state, row["texts"], "0,16,32,64,128"
    if state not in ("absent", "unknown"):
        return None
    analysed, usable = run["corpus"]["analysed"], run["corpus"]["usable"]
    what = (
        f"Length was not measured, because fewer than two length intervals have {TEXTS_FOR_AN_INTERVAL} of its "
        f"{count(texts, 'text')}"
        if state == "absent"
        else f"How far the collapse gap of {row['collapse_gap']:.3f} is beyond noise is not known, because its texts are of "
        "too few documents"
    )
    if analysed < usable:
        sample = ("--sample", str(min(usable, 10 * analysed)))
        return Advice(
            f"{what}: analyse more of the {usable:,} usable texts.",
            again(run, row["model"], "audit", *sample, beside="more"),
            ("collapse_gap",),
        )
    intervals = ",".join(map(str, run["config"]["analysis"]["intervals"]))
    if state == "absent" and texts >= TEXTS_FOR_AN_INTERVAL and row["truncated_share"] > _NEARLY_ALL:
        return Advice(f"{what}: nearly all fill the model's window; shorter texts would tell.", figures=("collapse_gap",))
    if state == "absent" and texts >= 2 * TEXTS_FOR_AN_INTERVAL and intervals != finer:
        return Advice(
            f"{what}: finer length intervals would tell, or a larger corpus.",
            again(run, row["model"], "audit", "--intervals", finer, beside="finer"),
            ("collapse_gap",),
        )
    return Advice(f"{what}: a larger corpus would tell.", figures=("collapse_gap",))


def _documents(row: Row, run: dict[str, Any]) -> Advice | None:
    order = run.get("models", {}).get(row["model"], {}).get("source_order")
    if row["documents"] is not None or order is None or not order["alike"]:
        return None
    return Advice(
        "Name the documents that these texts are parts of by --document-column: neighbours in the source are alike (a "
        f"cosine of {order['cosine_beside']:.2f}, {order['cosine_mean']:.2f} in the mean), so the errors here may be too "
        f"small by a factor of {order['factor']:.1f}."
    )


def _truncated(row: Row, run: dict[str, Any]) -> Advice | None:
    if row["truncated_share"] < _CUT:
        return None
    analysis = run["config"].get("analysis", {})
    if run["config"].get("embedding", {}).get("long") == "chunk":
        return None
    window = run.get("models", {}).get(row["model"], {}).get("max_length", 0)
    claim = (
        f"Split long texts into chunks of at most {window or 'the window’s'} tokens before they are embedded: "
        f"{share_of(row, 'truncated_share')} of all texts are longer, and the model does not read the rest."
    )
    if any(chunks_of(what) for what in analysis.get("what_if", ())):
        return Advice(f"{claim} What chunks change is in the section «What if».", figures=("truncated_share",))
    can_cut = _can_ask(run) and window >= LEAST_CHUNK
    options = ("--what-if", f"chunk:{window}") if can_cut else ("--long", "chunk")
    command = again(run, row["model"], "audit", *options, beside="chunks")
    return Advice.to_run("truncated_share", claim, "To measure what that changes:", command)


def _hubs(tables: dict[str, pl.DataFrame], row: Row, run: dict[str, Any]) -> Advice | None:
    """Texts that are found far too often; texts of the corpus that ask do not search."""
    asked_by = "queries" if "queries" in run else "corpus"
    found = hubs(of_row(tables["named_texts"], row), asked_by) if "named_texts" in tables else []
    if not found:
        return None
    filled = share(sum(r["times"] for r in found) / (found[0]["askers"] * found[0]["k"]))
    of = "the results of your queries" if asked_by == "queries" else "all places in the lists of nearest texts"
    is_listed = row["model"] == next(iter(run.get("models", {})), row["model"]) and any(r["goes"] for r in found)
    listed = f" ({_folder(run)}/{REMOVE} lists what may go)" if is_listed else ""
    claim = (
        f"{count(len(found), 'text')} {'takes' if len(found) == 1 else 'take'} {filled} of {of}{listed}, each at least "
        f"{TIMES} times as many as the mean text of its length."
    )
    return Advice(claim)


def _some_win(tables: dict[str, pl.DataFrame], found: Findings, row: Row, run: dict[str, Any]) -> Advice | None:
    asked_by = "queries" if "queries" in run else "corpus"
    winning = [r for r in exposures(tables, row, asked_by) if found.at(exposed(r["interval"], asked_by), row).state == "up"]
    if not winning:
        return None
    most = max(winning, key=lambda r: r["exposure"])
    name, vectors_given = interval_name(most["interval"], Edges.of(run)), _vectors_given(run)
    ask = " To see whether your users' queries do so too: --queries with --queries-embedding-column." * vectors_given
    figure = exposed(most["interval"], asked_by)
    claim = (
        f"Texts of {name} tokens are found more often than their share: they are "
        f"{share(most['texts_share'])} of the corpus and {share(most['slots_share'])} of the results of {_ASKED[asked_by]} "
        f"(exposure {with_error(most['exposure'], most['exposure_se_superpopulation'])})."
    )
    _, after, verdicts = by_the_correction(tables, row, asked_by)
    command = _correction(row, run, asked_by) if verdicts.get(most["interval"]) == "fairer" else ""
    if command:
        moved = after[most["interval"]]
        kept = kept_by_correction(after, asked_by, Edges.of(run))
        claim += (
            " This run has fitted a correction by length: with it the exposure is "
            f"{with_error(moved['exposure'], moved['exposure_se_superpopulation'])}, and nothing is embedded again."
        )
        claim += f" It keeps {kept}." if kept else ""
        of_sample = run["corpus"]["analysed"] < run["corpus"]["usable"] and not vectors_given
        return Advice.to_run(figure, claim, _CORRECT.format(which="this sample's" if of_sample else "the"), command)
    claim += ask if asked_by == "corpus" else ""
    return Advice.to_run(figure, claim, _TUNE, _tuned(row, run))


def _none_wins(tables: dict[str, pl.DataFrame], found: Findings, row: Row, edges: Edges) -> Advice | None:
    """That no length takes more than its share of the results of queries, where their errors are known."""
    rows = exposures(tables, row, "queries")
    known = [r for r in rows if found.at(exposed(r["interval"], "queries"), row).error]
    if not known:
        return None
    rest = f"; {count(len(rows) - len(known), 'length')} more with too few texts to tell" if len(known) < len(rows) else ""
    lengths = f"None of {count(len(known), 'length')} takes more than its share of the results of your queries beyond noise"
    return Advice(f"{lengths}{rest}{least_certain(rows, edges)}.")


def _correction(row: Row, run: dict[str, Any], asked_by: str) -> str:
    """The command that corrects the vectors by the correction that the run has fitted; empty where no line can say it."""
    config, root = run["config"], _folder(run)
    temperature, label = Temperature.of(1.0), GIVEN.label
    if _vectors_given(run):
        corpus = config["corpus"]
        changed = corpus.get("dims") or corpus.get("bits") or corpus.get("scale", 1.0) != 1.0
        is_table = corpus["source"].endswith(_PARQUET) and not hides(corpus["source"])
        if changed or not is_table or corpus.get("length_column") is None:
            return ""
        vectors = ["--embeddings", corpus["source"], "--embedding-column", corpus["embedding_column"]]
        vectors += ["--length-column", corpus["length_column"]]
    else:
        temperature, label = Temperature.of(config["embedding"]["temperatures"][0]), row["model"]
        vectors = ["--embeddings", f"{root}/{place('texts', label, temperature)}", "--length-column", "tokens"]
    words = ["tempscale", "correct", *vectors, "--correction", f"{root}/{name(label, temperature, asked_by)}"]
    return "" if hides(root) else shell_line([*words, "--out", folder_for(words, config["out"], "corrected")])


def _folder(run: dict[str, Any]) -> str:
    """The run's folder, as the begin of a path."""
    return str(run["config"]["out"]).rstrip("/")


def _threshold(tables: dict[str, pl.DataFrame], row: Row) -> Advice | None:
    """From which cosine on a text is nearer to a query than almost all are."""
    known = calibration.query_card(of_row(tables["query_cosines"], row)) if "query_cosines" in tables else []
    if not known or (most := known[0]["percentiles"]["99"]) is None:
        return None
    below, queries = calibration.queries_below(of_row(tables["query_cosines"], row), most)
    without = f"; {share(below)} of {queries:,} queries have no text that reaches it" if below else ""
    return Advice(
        f"A cosine of {number(most)} or more is rare: only 1 of 100 pairs of a query and a text reaches it{without} "
        "(section «Which cosine is high»)."
    )


def _cost(tables: dict[str, pl.DataFrame], row: Row, run: dict[str, Any]) -> Advice | None:
    """What smaller vectors would cost a search with queries, or how to measure it."""
    rows = [r for r in of_row(tables["what_if"], row).to_dicts() if r["by"] is None] if "what_if" in tables else []
    whole = {r["vector_bytes"] for r in rows if not r["what"]}
    smaller = [r for r in rows if r["neighbours_kept"] is not None and r["vector_bytes"] < max(whole)]
    if not smaller:
        command = again(run, row["model"], "audit", *_SMALLER, beside="what-if") if _can_ask(run) else ""
        claim = "What smaller vectors would cost your searches was not measured."
        return Advice(claim, command, (), "To measure it:") if command else None
    kept = [
        f"{r['what']} keeps {share_with_error(r['neighbours_kept'], r['neighbours_kept_se'])}"
        for r in sorted(smaller, key=lambda r: -r["vector_bytes"])
    ]
    more = f", and {len(kept) - _MOST} more" if len(kept) > _MOST else ""
    return Advice(f"Of the nearest texts of your queries {', '.join(kept[:_MOST])}{more} (section «What if»).")


def _can_ask(run: dict[str, Any]) -> bool:
    """Whether the run's settings let variants be measured."""
    analysis = run["config"].get("analysis", {})
    asks = analysis.get("neighbours", 1) and analysis.get("exposure_sample", 1)
    return bool(asks) and "length" not in run["config"].get("by", ())


def _collapse(row: Row, found: Findings, run: dict[str, Any]) -> Advice | None:
    name = next((name for name in ("prefix_gap", "collapse_gap") if found.at(name, row).state == "up"), None)
    if name is None:
        return None
    claim = capital(compared(name, row, found, Edges.of(run)))
    return Advice.to_run(name, f"{claim}, by {estimate(row, name)} in mean cosine.", _TUNE, _tuned(row, run))


def _tuned(row: Row, run: dict[str, Any]) -> str:
    """The command that chooses a temperature; empty for the user's own vectors, and where length was not measured.

    The choice, too, needs two intervals of enough texts.
    """
    if _vectors_given(run) or row["collapse_gap"] is None:
        return ""
    return again(run, row["model"], "tune", beside="tune")


def _nothing(tables: dict[str, pl.DataFrame], found: Findings, row: Row, run: dict[str, Any]) -> Advice:
    asked_by, edges = "queries" if "queries" in run else "corpus", run["config"]["analysis"]["intervals"]
    searched = any(found.at(exposed(edge, asked_by), row).error for edge in edges)
    fair = "search results were not measured"
    if searched:
        fair = f"no length is found too often beyond noise{least_certain(exposures(tables, row, asked_by), Edges.of(run))}"
    nightly = run["config"].get("night") is not None and (line := repeated(run))
    return Advice.to_run(
        "collapse_gap",
        "Beyond noise nothing needs to be done about length: the collapse gap is "
        f"{estimate(row, 'collapse_gap')}, and {fair}.",
        "To hear when that changes, every night:",
        line if nightly else again(run, row["model"], "audit", "--baseline", "latest", beside=f"nights/{NIGHT}"),
    )
