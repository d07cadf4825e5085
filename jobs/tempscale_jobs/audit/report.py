"""Tables -> the report of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from tempscale_jobs.audit import by_group, charts, decomposed, named, served, verdict, what_if
from tempscale_jobs.audit.advice import advice
from tempscale_jobs.audit.words import (
    NOTE,
    corrected,
    in_words,
    labelled,
    left_out,
    plain_figures,
    protocol,
    query_thresholds,
    text_in_words,
    thresholds,
)
from tempscale_jobs.nights.charts import over_nights
from tempscale_jobs.nights.gate import notes
from tempscale_jobs.nights.night import failure_in_words, notes_in_brief
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Part, Report, Section, Table, caption, drawn, group, subject, tabled
from tempscale_jobs.report.text import (
    FIGURES,
    NAMES,
    Edges,
    count,
    estimate,
    interval_name,
    labels,
    model_at,
    number,
    share,
    share_of,
)
from tempscale_jobs.steps import calibration
from tempscale_jobs.tables.audit import EXCERPTS, TABLES
from tempscale_jobs.verify.report import part_of

Row = dict[str, Any]
_SHOWN = 5


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any], sections: Sequence[Section] = ()) -> Report:
    """The report of an audit, from its tables by name (`excerpts` may be absent) and the content of run.json.

    `sections` are made from `diagnose` and `evaluate` runs of the same models.
    """
    # A run of an older version lacks the newer tables.
    known = {t.name: pl.DataFrame(pl.from_arrow(t.schema().empty_table())) for t in TABLES if t is not EXCERPTS}
    tables = known | tables
    names, edges = labels(tables["collapse_summary"]["temperature"]), Edges.of(run)
    tables = labelled(tables, edges)
    trend = pl.DataFrame(run.get("trend", []), infer_schema_length=None)
    if not trend.is_empty():
        trend = trend.with_columns(pl.col("temperature").replace(names))
    parts = [
        _part(f"m{place}", name, tables, trend, run)
        for place, name in enumerate(tables["collapse_summary"]["model"].unique(maintain_order=True))
    ]
    if "verify_summary" in tables:
        parts.insert(0, part_of(tables, "verify", "Are these vectors the model's?"))
    gate = tables["gate"].to_dicts() if "gate" in tables else []
    return Report(
        "Do these embeddings collapse?",
        subject(run, _analysed(run, tables["collapse_summary"])),
        parts,
        alerts=[*filter(None, [failure_in_words(run.get("gate", {}))]), *left_out(tables, run)],
        notes=_other_notes(run),
        before=_gate(gate, run),
        after=[*sections, *_not_measured(sections, trend), _how_made(run, tables, names)],
    )


# ---------------------------------------------------------------------------------------------- the gate


def _other_notes(run: dict[str, Any]) -> list[str]:
    """What else is to be known of a night: how many checks held, or that there were none."""
    judged = run.get("gate", {})
    if judged.get("failed"):
        return []
    if judged.get("failed") is not None and judged["verdict"] != "none":
        checks = [count(judged["checks"], "check")] if judged["checks"] else []
        return [f"The gate held: {'; '.join([*checks, *notes_in_brief(judged)])}."]
    none = "This run neither passed nor failed: no thresholds were set, and no earlier run was named (there is no gate)."
    return [none, *judged.get("unreadable_nights", [])]


def _gate(rows: list[Row], run: dict[str, Any]) -> list[Section]:
    """Every check of a night."""
    if not rows:
        return []
    cells = [
        (
            f"{NAMES.get(row['figure'], row['check'])}\n{row['figure']}", model_at(row), row["verdict"],
            number(row["value"]), f"± {row['limit']}" if row["check"] == "drift" else str(row["limit"]),
            number(row["baseline_value"]), number(row["change"]), number(row["noise"]),
        )
        for row in rows
    ]  # fmt: skip
    heads = ("figure", "of", "verdict", "tonight", "limit", "baseline", "change", "noise")
    title, note = caption("gate", false_alarms=share(run["config"]["gate"]["false_alarms"]))
    failed = run["gate"]["failed"]
    title = f"{title} {'failed' if failed else 'held'}"
    return [Section(title, [*failed, *notes(run["gate"])], note, table=Table(heads, cells, 3), folded=not failed)]


# ---------------------------------------------------------------------------------------------- one model


class _Model(NamedTuple):
    """One model of an audit."""

    id: str
    tables: dict[str, pl.DataFrame]
    """Of this model alone."""
    rows: list[Row]
    """Its rows of collapse_summary, by temperature."""
    edges: Edges
    run: dict[str, Any]

    @property
    def asked_by(self) -> str:
        """Whose searches count: those of the queries where there are any."""
        return "queries" if "queries" in self.run else "corpus"


def _part(place: str, name: str, tables: dict[str, pl.DataFrame], trend: pl.DataFrame, run: dict[str, Any]) -> Part:
    """What the report says of one model; `trend` has the nights of the record."""
    of_model = {key: table.filter(model=name) for key, table in tables.items() if "model" in table.columns}
    model = _Model(place, of_model, of_model["collapse_summary"].to_dicts(), Edges.of(run), run)
    first, found = model.rows[0], Findings.read(tables["findings"])
    if not trend.is_empty():
        trend = trend.filter(temperature=first["temperature"])
        if tables["collapse_summary"]["model"].n_unique() > 1:
            # With one model in the run, the nights of an earlier model stay in the chart and are marked.
            trend = trend.filter(model=name)
    chunked = run["config"].get("embedding", {}).get("long") == "chunk"
    encoded = protocol(run.get("models", {}).get(name, {}), model.edges, chunked)
    excerpts = {row["text_id"]: row for row in tables["excerpts"].to_dicts()} if "excerpts" in tables else None
    return Part(
        place,
        name,
        verdict.answer(first, found, model.edges),
        verdict.figures(first, found, model.edges, trend if trend.is_empty() else trend.filter(model=name), place),
        [(line.text, line.command) for line in advice(tables, first, run)],
        [
            Section("In words", in_words(of_model, model.edges), NOTE),
            *_length(model),
            *_exposure(model, corrected(tables, first, model.asked_by, model.edges)),
            *_by_group(model, name),
            *_named(model, name == next(iter(run.get("models", {})), name)),
            *_what_if(model),
            *served.section(place, of_model, run.get("models", {}).get(name, {}), model.edges, excerpts),
            *_threshold(model),
            *_second_order(model),
            *_nights(place, trend),
            *_worst(model, excerpts),
            *_by_temperature(model, encoded),
            *_assumptions(model),
        ],
    )


def _length(model: _Model) -> list[Section]:
    cells, probe = model.tables["length_collapse"], charts.prefix_probe(model.tables["prefix_probe"])
    missing = [] if probe else ["There is no prefix probe: too few texts are long enough, or it was left out."]
    return group(
        "Length",
        drawn(model.id, "cosine", charts.inside_intervals(cells, model.edges, "cosine", "mean cosine")),
        drawn(model.id, "heatmap", charts.heatmap(cells, model.edges)),
        drawn(model.id, "probe", probe),
        decomposed.section(model.id, model.tables["decomposition"]),
        decomposed.by_tenth(model.id, model.tables["positions"]),
        drawn(model.id, "effects", charts.effects(model.tables["temperature_effect"])),
        sentences=missing,
    )  # fmt: skip


def _exposure(model: _Model, sentence: str) -> list[Section]:
    before, after = (model.tables[name] for name in ("exposure", "exposure_corrected"))
    corrected_too = drawn(model.id, "corrected", charts.exposure_corrected(before, after, model.edges, model.asked_by))
    return group(
        "Exposure: which lengths fill the results",
        drawn(model.id, "exposure", charts.exposure_by_length(before, model.edges)),
        corrected_too,
        sentences=[sentence] if sentence and corrected_too else [],
    )


def _by_group(model: _Model, name: str) -> list[Section]:
    joined = model.run.get("models", {}).get(name, {}).get("by", {})
    return by_group.sections(model.id, model.tables, model.rows[0], joined)


def _named(model: _Model, is_listed: bool) -> list[Section]:
    return named.section(model.tables["named_texts"], model.tables["removal"], model.edges, is_listed)


def _what_if(model: _Model) -> list[Section]:
    return what_if.section(model.id, model.tables, model.edges)


def _threshold(model: _Model) -> list[Section]:
    cells = model.tables["cosine_histogram"].filter(temperature=model.rows[0]["temperature"])
    card, asked = calibration.card(cells), model.tables["query_cosines"]
    of_queries, sentence = query_thresholds(asked, model.edges), thresholds(card, model.edges)
    if not sentence:
        none = "There are no percentiles of random pairs of texts: not every pair was compared. A sample has them:"
        sentence = f"{none} --cosine full --sample 20000."
        if not of_queries:
            return [Section("Which cosine is high", [sentence], folded=True)]
    return group(
        "Which cosine is high",
        drawn(model.id, "query-thresholds", charts.percentiles(calibration.query_card(asked), model.edges, "the text")),
        drawn(model.id, "thresholds", charts.percentiles(card, model.edges)),
        tabled("percentiles", _percentiles(card, model.edges)),
        sentences=[*filter(None, (of_queries, sentence))],
    )  # fmt: skip


def _percentiles(card: Sequence[Row], edges: Sequence[int]) -> Table:
    """The 99th percentile of random pairs by the length of both."""
    known = {(row["interval_a"], row["interval_b"]): row["percentiles"]["99"] for row in card[1:]}
    shown = [edge for edge in edges if any(edge in pair for pair in known)]
    rows = [(interval_name(b, edges), *("" if a > b else number(known.get((a, b))) for a in shown)) for b in shown]
    return Table(("tokens", *(interval_name(edge, edges) for edge in shown)), rows)


def _second_order(model: _Model) -> list[Section]:
    return group(
        "Second-order collapse",
        drawn(model.id, "scatter", charts.scatter(model.tables["socm_scatter"])),
        drawn(model.id, "socm", charts.inside_intervals(model.tables["socm"], model.edges, "socm", "mean SOCM")),
        sentences=[] if len(model.tables["socm_scatter"]) else ["SOCM was not measured."],
    )  # fmt: skip


def _nights(place: str, trend: pl.DataFrame) -> list[Section]:
    """The four figures over the nights, from the second on."""
    if trend.is_empty() or trend["night"].n_unique() < 2:
        return []
    figures = [over_nights(f"{place}-nights", trend, name, label) for name, label in FIGURES.items()]
    return group("Nights", *figures)


def _worst(model: _Model, excerpts: Mapping[str, Row] | None) -> list[Section]:
    """The first texts and pairs of each ranking, with their excerpts."""

    def pair(row: Row) -> tuple[str, ...]:
        return row["temperature"], *(text_in_words(row, excerpts, side) for side in ("_a", "_b"))

    parts = list[list[Section]]()
    for ranking, figure in (("nearness", "mean cosine"), ("hub", "lists")):
        cells = [
            (row["temperature"], text_in_words(row, excerpts), number(row["value"]))
            for row in _first(model, "collapsed_texts", ranking)
        ]
        parts.append(tabled(ranking, Table(("temperature", "text", figure), cells, words=2)))
    heads = ("temperature", "one text", "the other")
    near = [(*pair(row), number(row["cosine"])) for row in _first(model, "near_duplicates")]
    parts.append(tabled("duplicates", Table((*heads, "cosine"), near, words=3)))
    figures = {"SOCM": "socm", "d_μ": "d_mu", "d_Σ": "d_sigma", "cosine": "cosine"}
    for ranking, captioned in (("socm", "most_collapsed"), ("same_mean", "same_mean")):
        rows = _first(model, "socm_pairs", ranking)
        worst = [(*pair(row), *(number(row.get(name)) for name in figures.values())) for row in rows]
        parts.append(tabled(captioned, Table((*heads, *figures), worst, words=3), _searched(model, ranking)))
    if not any(parts):
        return []
    sentences = [] if excerpts is not None else ["Their texts were left out on request."]
    return group("Worst texts and pairs", *parts, sentences=sentences, folded=True, searched=excerpts is not None)


def _first(model: _Model, table: str, ranking: str | None = None) -> list[Row]:
    """The first rows of a ranking."""
    first = model.tables[table].filter(pl.col("rank") <= _SHOWN)
    rows: list[Row] = (first if ranking is None else first.filter(ranking=ranking)).to_dicts()
    return rows


def _searched(model: _Model, ranking: str) -> list[str]:
    return [
        f"{row['temperature']}: of all {count(row['pairs'], 'pair')} of the corpus, {row['kept_by_traces']:,} passed the "
        f"bound by traces and {row['kept_by_factors']:,} the bounds by covariances; these were computed exactly."
        for row in model.tables["socm_search"].filter(ranking=ranking).to_dicts()
    ]


def _by_temperature(model: _Model, encoded: Sequence[str]) -> list[Section]:
    """Every figure under every temperature."""
    estimated, plain, counted = (
        (*FIGURES, "exposure_short", "exposure_long"),
        ("effective_rank", "top_component", "k_occurrence_skewness", "reciprocity"),
        ("near_duplicate_pairs", "texts"),
    )  # fmt: skip
    rows = [(NAMES[name], *(estimate(row, name) for row in model.rows)) for name in estimated]
    rows += [(NAMES[name], *(number(row.get(name)) for row in model.rows)) for name in plain]
    rows += [(NAMES[name], *("–" if row[name] is None else f"{row[name]:,}" for row in model.rows)) for name in counted]
    table = Table(("figure", *(row["temperature"] for row in model.rows)), rows)
    sentences = [*encoded, *plain_figures(model.rows[0], model.tables)]
    return [Section("All numbers, by temperature", sentences, table=table, folded=True)]


def _assumptions(model: _Model) -> list[Section]:
    """How often the assumptions of the papers do not hold."""
    heads = (
        "temperature", "texts with tr Σ > 2", "texts whose tokens are alike", "pairs with SOCM > 1", "texts truncated",
    )  # fmt: skip
    cells = [
        (
            row["temperature"], share_of(row, "spread_over_2_share"), share_of(row, "within_cosine_over_third_share"),
            share(row["socm_over_1_share"]), share_of(row, "truncated_share"),
        )
        for row in model.rows
    ]  # fmt: skip
    title, note = caption("assumptions")
    return [Section(title, note=note, table=Table(heads, cells), folded=True)]


# ---------------------------------------------------------------------------------------------- all models


def _analysed(run: dict[str, Any], summary: pl.DataFrame) -> str:
    """How many texts the figures are computed from: fewer than were read where a model rejected some."""
    taken, texts = run["corpus"]["analysed"], summary.unique("model", keep="first")["texts"].to_list()
    fewest, most = min(texts), max(texts)
    if fewest == taken:
        return count(taken, "text")
    analysed = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{analysed} of {count(taken, 'text')} ({'by model, ' if fewest < most else ''}the rest rejected by the model)"


def _not_measured(sections: Sequence[Section], trend: pl.DataFrame) -> list[Section]:
    """What other commands would add to this report."""
    sentences = [] if sections else [
        "How texts move together layer by layer: tempscale diagnose, on the same corpus and model.",
        "Scores of tasks under each temperature: tempscale evaluate, on the same model.",
        "If one of these wrote its run into FOLDER, tempscale report RUN --with FOLDER adds its figures to this page.",
    ]  # fmt: skip
    if trend.is_empty() or trend["night"].n_unique() < 2:
        sentences.append("Earlier nights: none is comparable with this run. tempscale history shows comparable nights.")
    return group("Not in this report", sentences=sentences, folded=True)


def _how_made(run: dict[str, Any], tables: Mapping[str, pl.DataFrame], names: Mapping[str, str]) -> Section:
    corpus, analysis = run["corpus"], run["config"]["analysis"]
    exact = analysis.get("socm_regularization", 0) == 0 and analysis.get("socm_tolerance", 0) == 0
    read = (
        f"{count(corpus['read'], 'row')} read, {corpus['rejected']:,} rejected, {count(corpus['usable'], 'usable text')}, "
        f"of which {corpus['analysed']:,} taken"
    )
    rejected = [f"{rows} × {reason}" for reason, rows in corpus.get("rejected_reasons", {}).items()]
    texts = dict(tables["collapse_summary"].unique("model", keep="first").select("model", "texts").iter_rows())
    models = {name: [*_of_model(known, texts[name], corpus["analysed"])] for name, known in run.get("models", {}).items()}
    corpus_lines = [str(corpus.get("source", "–")), read, *rejected]
    return how_made(run, "how_audit", names, corpus=corpus_lines, models=models, exact="exact and " * exact)


def _of_model(known: Mapping[str, Any], texts: int, analysed: int) -> Iterator[str]:
    """How many texts a model embedded, and in which precision."""
    yield (f"{count(texts, 'text')} analysed, {analysed - texts:,} rejected by the model")
    if precision := known.get("precision"):
        yield (
            f"computed in {precision['precision']}: cosine to float32 {precision['cosine_least']:.6f} at least, "
            f"{precision['cosine_mean']:.6f} in the mean, over {count(precision['texts'], 'text')}"
        )
    for text, moved in known.get("cosine_rounding", {}).items():
        yield (
            f"τ {text}: pairs from embeddings rounded to {moved['precision']}: a cosine is off by at most "
            f"{moved['largest_cosine_error']:.1g}; means are exact (rounded, they would be off by "
            f"{moved['largest_mean_error']:.1g})"
        )
