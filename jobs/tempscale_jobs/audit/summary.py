"""Partial tables of the steps -> the tables of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tempscale.collapse.aggregates import merge_tree
from tempscale.collapse.length import Moments, gap_intervals
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL, VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error, equal_documents, finite_population, within_error
from tempscale.stats.groups import between_strata, jackknife_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.audit import findings
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.config.nights import SHARES
from tempscale_jobs.corpus import shards
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.text import Edges
from tempscale_jobs.runs.folder import CALIBRATION, REMOVE, Model, Run, all_means_by_text, means_by_text
from tempscale_jobs.steps import calibration
from tempscale_jobs.steps.blocks import COSINE
from tempscale_jobs.steps.groups import REPLICATES
from tempscale_jobs.steps.layout import Layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.slots import largest, ranked
from tempscale_jobs.tables.audit import (
    COLLAPSE_SUMMARY,
    COLLAPSED_TEXTS,
    DECOMPOSITION,
    EXCERPTS,
    GROUP_COSINE,
    GROUP_EXPOSURE,
    NAMED_TEXTS,
    POSITIONS,
    QUERY_COSINES,
    REMOVAL,
    SERVED_MISSED,
    SERVED_RECALL,
    TABLES,
    TEMPERATURE_EFFECT,
    WHAT_IF,
    WHAT_IF_THRESHOLDS,
)
from tempscale_jobs.tables.columns import Table, finite
from tempscale_jobs.verify.stage import Verified

_RANKINGS = ("socm_pairs", "near_duplicates", "collapsed_texts", "served_missed")
"""The tables that name texts, of which excerpts are kept."""
_EXCERPT_CHARACTERS, _AT_ONCE = 280, 1 << 20
"""The length of an excerpt, and values that are summed at a time."""
_STEPS = {
    "length_collapse": "cosine", "cosine_histogram": "cosine", "exposure": "exposure", "exposure_corrected": "exposure",
    "near_duplicates": "exposure", "collapsed_texts": "exposure", "prefix_probe": "probe", "decomposition": "probe",
    "positions": "probe", "socm": "socm", "socm_pairs": "socm", "socm_scatter": "socm", "socm_search": "top",
    "what_if": "what_if", "what_if_thresholds": "what_if",
    "group_exposure": "exposure", "group_cosine": "by_group",
    "served_recall": "served", "served_missed": "served",
    "named_texts": "exposure", "removal": "exposure", "query_cosines": "query_cosines",
}  # fmt: skip


def summarise(audited: Sequence[Embedded], verified: Verified | None) -> dict[str, pa.Table]:
    """Write every table of the run, from the scope of each model, and of its verified vectors; returns them by name."""
    run, tables = audited[0].run, tables_of(audited, verified)
    for name, table in tables.items():
        run.storage.write_table(f"tables/{name}.parquet", table)
    _calibrate(run, tables["cosine_histogram"])
    if NAMED_TEXTS.name in tables:
        _list_removable(audited[0], pl.DataFrame(tables[NAMED_TEXTS.name]))
    return tables


def tables_of(audited: Sequence[Embedded], verified: Verified | None = None) -> dict[str, pa.Table]:
    """The tables by name, from what the steps so far have measured."""
    run, config, index = audited[0].run, audited[0].config, audited[0].index
    models = [scope.model for scope in audited]
    requested = {
        WHAT_IF: config.analysis.what_if, WHAT_IF_THRESHOLDS: config.other_models, GROUP_EXPOSURE: config.by,
        DECOMPOSITION: config.analysis.probe != "prefix" and config.analysis.probe_sample != 0,
        POSITIONS: config.analysis.probe == "position" and config.analysis.probe_sample != 0,
        GROUP_COSINE: config.by, SERVED_RECALL: config.results, SERVED_MISSED: config.results,
        NAMED_TEXTS: not config.quick, REMOVAL: not config.quick, QUERY_COSINES: config.queries,
    }  # fmt: skip
    collected = [table for table in TABLES if table.name in _STEPS and requested.get(table, True)]
    tables = {table.name: _collected(run, models, table, config.analysis) for table in collected}
    summaries, effects = [], []
    for scope in audited:
        figures = [_figures(scope, t, tables) for t in run.temperatures]
        summaries += [row for row, _ in figures]
        effects += _effects(scope, figures)
    nearest = [_nearest_to_all(scope, t) for scope in audited for t in run.temperatures]
    tables["collapsed_texts"] = pa.concat_tables([tables["collapsed_texts"], *nearest])
    wrong = {"verified_texts": None, "wrong_share": None} if verified is None else verified.figures
    tables["collapse_summary"] = COLLAPSE_SUMMARY.build_rows([row | wrong for row in summaries])
    tables["temperature_effect"] = TEMPERATURE_EFFECT.build_rows(effects)
    if config.keep_text and config.corpus.embedding_column is None:
        layouts = {scope.model.label: scope.texts for scope in audited}
        rankings = [tables[name] for name in _RANKINGS if name in tables]
        tables["excerpts"] = _excerpts(run, index, layouts, rankings)
        if NAMED_TEXTS.name in tables:
            named = tables[NAMED_TEXTS.name]
            tables[NAMED_TEXTS.name] = _with_excerpts(named, _excerpts(run, index, layouts, [named]))
    read = {name: pl.DataFrame(pl.from_arrow(tables[name])) for name in findings.READ if name in tables}
    edges = Edges.cut(config.analysis.intervals, [model.max_length for model in models], config.embedding.long)
    found = findings.decide(read, edges)
    if verified is not None:
        found = Findings([*found.rows, *verified.findings.rows])
        tables |= verified.tables
    return tables | {"findings": found.table()}


def _calibrate(run: Run, histogram: pa.Table) -> None:
    """Write calibration.json, if all pairs were compared: by model and temperature."""
    cards: dict[str, dict[str, Any]] = {}
    for (model, temperature), rows in pl.DataFrame(histogram).group_by("model", "temperature", maintain_order=True):
        cards.setdefault(str(model), {})[str(temperature)] = calibration.card(rows)
    if cards:
        run.storage.write_json(CALIBRATION, {"models": cards}, plain=True)


def _list_removable(scope: Embedded, named: pl.DataFrame) -> None:
    """Write remove.txt, if there is anything to remove: the ids of the texts that may go, of the first model."""
    ids = named.filter(pl.col("model") == scope.model.label, pl.col("goes"))["text_id"].to_list()
    if ids:
        scope.run.storage.write(REMOVE, "".join(f"{text_id}\n" for text_id in ids).encode())


def _collected(run: Run, models: Sequence[Model], table: Table, analysis: Analysis) -> pa.Table:
    """A table's rows from the partial tables of these models and all temperatures."""
    step = _STEPS[table.name]
    if table.name == "socm_pairs" and analysis.socm_top_over == "corpus":
        step = "top"
    names = (f"{run.place(f'partials/{step}', m, t)}/{table.name}.parquet" for m in models for t in run.temperatures)
    return pa.concat_tables(
        [table.schema().empty_table(), *(run.storage.read_table(n) for n in names if run.storage.exists(n))]
    )


@dataclass(frozen=True)
class Sampled:
    """The per-text values behind a figure, from which its standard errors are computed."""

    sets: list[np.ndarray]
    """One array for each set of texts; the figure is the mean of the first, less that of the second if there is one.

    Of a share they say of each text whether it belongs to it.
    """
    documents: list[np.ndarray] | None
    """The documents of the same texts; None where texts come without documents."""
    over_pairs: bool
    """Whether the values are means over pairs, which count each text twice."""
    correction: float
    """Finite-population correction."""

    @property
    def texts(self) -> int:
        """The number of texts."""
        return sum(len(values) for values in self.sets)

    def less(self, other: Sampled) -> Sampled:
        """The change from another figure on the same texts."""
        return replace(self, sets=[new - old for new, old in zip(self.sets, other.sets, strict=True)])

    def errors(self) -> tuple[float | None, float | None]:
        """Standard errors for another corpus and for this one; None where there are too few texts, or documents."""
        if any(len(values) < VALUES_FOR_AN_ERROR for values in self.sets):
            return None, None
        # Means over pairs count each text twice (see within_error); plain means once. Sets of texts add in squares.
        squares = [within_error(_variance(values), len(values)) ** 2 for values in self.sets]
        counted = 1.0 if self.over_pairs else 0.5
        error = counted * float(np.sqrt(sum(squares)))
        if self.documents is None:
            return error, self.correction * error
        weights = [2.0 * counted, -2.0 * counted][: len(self.sets)]
        return finite(documents_error(self.sets, weights, self.documents)), self.correction * error


@dataclass(frozen=True)
class Replicates:
    """The estimates without each group behind a figure, from which its standard errors are computed."""

    replicates: np.ndarray
    texts: int
    interval_means: np.ndarray
    """The mean of a text of each interval with all texts."""
    layout: Layout
    known_elsewhere: bool
    """Whether groups tell the error for another corpus: not where they are dealt from texts that come in documents."""

    def less(self, other: Replicates) -> Replicates:
        """The change from another figure in the same groups."""
        moved = {name: getattr(self, name) - getattr(other, name) for name in ("replicates", "interval_means")}
        return replace(self, **moved)

    def errors(self) -> tuple[float | None, float | None]:
        """Standard errors for another corpus, whose intervals hold other shares of the texts, and for this one."""
        error, layout = jackknife_error(self.replicates), self.layout
        if not np.isfinite(error):
            return None, None
        between = between_strata(layout.texts_by_interval(), self.interval_means, float(len(layout)))
        corpus_error = float(np.sqrt(error**2 + between * layout.correction**2))
        if not self.known_elsewhere:
            return None, corpus_error
        if layout.documents is not None:
            means = self.interval_means[layout.interval]
            known = np.isfinite(means)
            between = documents_error([means[known]], [2.0], [layout.documents[known]]) ** 2
        return finite(float(np.sqrt(error**2 + between))), corpus_error


Samples = dict[str, Sampled | Replicates]


def _variance(values: np.ndarray) -> float:
    """Sample variance (n − 1) of many values, or of how many of them are true, in steps that need little memory."""
    steps = (values[start : start + _AT_ONCE, None] for start in range(0, len(values), _AT_ONCE))
    whole: Moments = merge_tree((Moments.of(chunk.astype(np.float64)) for chunk in steps), Moments.merged)
    return float(whole.variance()[0]) if whole.values[0] == len(values) else float("nan")


def _figures(
    scope: Embedded, temperature: Temperature, tables: dict[str, pa.Table]
) -> tuple[dict[str, Any], Samples]:  # fmt: skip
    """The summary row of one model and temperature, and the per-text values behind its figures."""
    run, model, layout, index = scope.run, scope.model, scope.texts, scope.index
    n, tokens_seen = len(layout), scope.source.embedding_column is None
    correction = layout.correction
    columns = ["tokens", "truncated", *(("spread", "within_cosine") if tokens_seen else ())]
    parts = run.storage.list(run.place("texts", model, temperature))
    texts = dict(zip(columns, run.storage.arrays(parts, columns, n), strict=True))
    means = all_means_by_text(run.storage, run.place(COSINE, model, temperature))
    closed = run.storage.read_json(f"{run.place(COSINE, model, temperature)}/closed.json")
    inside, overall = run.storage.arrays(means, ["inside", "overall"], n)
    documents = layout.documents
    drawn = None if documents is None else [documents]
    stored_documents = None if documents is None else documents[np.argsort(layout.stored)]  # In the order of texts/.
    of_texts = None if stored_documents is None else [stored_documents]
    samples: Samples = {
        "cosine_mean": Sampled([overall], drawn, True, correction),
        "truncated_share": Sampled([texts["truncated"]], of_texts, False, correction),
    }
    row: dict[str, Any] = run.key(model, temperature) | {
        "texts": n,
        "documents": None if documents is None else _count(documents),
        "corpus_texts": max(n, layout.corpus_texts),
        "rejected": index.rejected + index.analysed - n,
        "rows": index.read,
        "tokens": int(texts["tokens"].sum()),
        "truncated_share": float(texts["truncated"].mean()),
        "cosine_mean": closed["cosine_mean"],
        "effective_rank": closed["effective_rank"],
        "top_component": closed["top_component"],
        "spread_mean": None,
        "spread_over_2_share": None,
        "within_cosine_over_third_share": None,
    }
    if tokens_seen:
        several = texts["tokens"] > 1
        condition = _condition(texts["tokens"][several], texts["within_cosine"][several])
        of_several = None if stored_documents is None else [stored_documents[several]]
        samples |= {
            "spread_mean": Sampled([texts["spread"]], of_texts, False, correction),
            "spread_over_2_share": Sampled([texts["spread"] > 2], of_texts, False, correction),
            "within_cosine_over_third_share": Sampled([condition], of_several, False, correction),
        }
        row |= {
            "spread_mean": float(texts["spread"].mean(dtype=np.float64)),
            "spread_over_2_share": float((texts["spread"] > 2).mean()),
            "within_cosine_over_third_share": _mean(condition),
        }
    for k in np.flatnonzero(layout.texts_by_interval() >= TEXTS_FOR_AN_INTERVAL).tolist():
        of_length = layout.interval == k
        within = None if documents is None else [documents[of_length]]
        samples[findings.inside(layout.edges[k])] = Sampled([inside[of_length]], within, True, correction)
    ends = gap_intervals(layout.texts_by_interval().tolist())
    row |= dict.fromkeys(("collapse_gap", "gap_shortest", "gap_longest", "gap_texts", "gap_documents"))
    if ends is not None:
        at_ends = [layout.interval == k for k in ends]
        short, long = (inside[mask] for mask in at_ends)
        both = None if documents is None else [documents[mask] for mask in at_ends[::-1]]
        row["gap_documents"] = None if both is None else min(map(_count, both))
        row |= {"collapse_gap": float(long.mean() - short.mean()), "gap_texts": min(len(long), len(short))}
        row |= {"gap_shortest": layout.edges[ends[0]], "gap_longest": layout.edges[ends[1]]}
        samples["collapse_gap"] = Sampled([long, short], both, True, correction)
    row |= _exposure(tables["exposure"], tables["length_collapse"], row)
    row |= _probe_gap(run, model, temperature, samples)
    row |= socm_figures(run, model, temperature, layout, samples)
    shares = [figure for figure, column in SHARES.items() if column == "texts"]
    for figure in ("cosine_mean", "collapse_gap", "prefix_gap", "spread_mean", "socm_mean", "socm_over_1_share", *shares):
        name = figure.removesuffix("_mean")
        known = row[figure] is not None and figure in samples
        row[f"{name}_se_superpopulation"], row[f"{name}_se"] = samples[figure].errors() if known else (None, None)
    return row | rejected_share(index, n), samples


def rejected_share(index: Index, texts: int) -> dict[str, float]:
    """The share of the corpus's rows that cannot be analysed, with its errors.

    Every row has been read, so only what the model rejects of a sample has an error for this corpus.
    """
    usable, lost = index.usable / index.read, 1 - texts / index.analysed
    share = 1 - usable * (1 - lost)
    error = usable * np.sqrt(lost * (1 - lost) / index.analysed) * finite_population(index.analysed, index.usable)
    superpopulation_error = np.sqrt(share * (1 - share) / index.read)
    return {
        "rejected_share": share, "rejected_share_se": float(error),
        "rejected_share_se_superpopulation": float(superpopulation_error),
    }  # fmt: skip


def _exposure(exposures: pa.Table, cells: pa.Table, row: dict[str, Any]) -> dict[str, Any]:
    """The summary row's figures on neighbours: exposure at both ends of the gap, hubness, reciprocity, near-duplicates."""
    rows = [
        r for r in exposures.to_pylist()
        if (r["model"], r["temperature"], r["asked_by"]) == (row["model"], row["temperature"], "corpus")
    ]  # fmt: skip
    widest = [r for r in rows if r["k"] == max(r["k"] for r in rows)]
    names = ("k_occurrence_skewness", "reciprocity")
    figures: dict[str, Any] = {name: widest[0][name] if widest else None for name in names}
    for name, edge in (("exposure_short", row["gap_shortest"]), ("exposure_long", row["gap_longest"])):
        interval = next((r for r in widest if r["interval"] == edge), dict.fromkeys(widest[0] if widest else ()))
        for suffix in ("", "_se", "_se_superpopulation"):
            figures[name + suffix] = interval.get(f"exposure{suffix}")
    pairs = [
        c["near_duplicates"] for c in cells.to_pylist()
        if (c["model"], c["temperature"]) == (row["model"], row["temperature"])
    ]  # fmt: skip
    return figures | {"near_duplicate_pairs": None if not pairs or None in pairs else sum(pairs)}


def _probe_gap(run: Run, model: Model, temperature: Temperature, samples: Samples) -> dict[str, Any]:
    """The prefix gap: the same texts at their longest prefix minus at their shortest; its values go into `samples`."""
    place = run.place("partials/probe", model, temperature)
    if not run.storage.exists(f"{place}/prefix_probe.parquet"):
        return dict.fromkeys(("prefix_gap", "prefix_shortest", "prefix_longest", "prefix_texts", "prefix_documents"))
    means = run.storage.read_table(means_by_text(place))
    prefix, inside = means.column("group").to_numpy(), means.column("inside").to_numpy()
    longest = prefix == prefix.max()
    gap, documents = inside[longest] - inside[prefix == prefix.min()], _documents(means, longest)
    correction = run.storage.read_json(f"{place}/done.json")["correction"]
    samples["prefix_gap"] = Sampled([gap], documents, True, correction)
    return {
        "prefix_gap": float(gap.mean()), "prefix_shortest": int(prefix.min()), "prefix_longest": int(prefix.max()),
        "prefix_texts": len(gap), "prefix_documents": None if documents is None else _count(documents[0]),
    }  # fmt: skip


def socm_figures(run: Run, model: Model, temperature: Temperature, layout: Layout, samples: Samples) -> dict[str, Any]:
    """The figures of SOCM; what is behind them goes into `samples`."""
    place = run.place("partials/socm", model, temperature)
    none = dict.fromkeys(("socm_pairs", "socm_groups", "socm_freedom", "socm_mean", "socm_over_1_share"))
    if not run.storage.exists(f"{place}/done.json"):
        return {"socm_texts": 0} | none
    summary = run.storage.read_json(f"{place}/done.json")
    figures = {f"socm_{name}": summary[name] for name in ("texts", "pairs")}
    figures |= {name: summary[name] for name in ("socm_mean", "socm_over_1_share")}
    if summary["way"] == "groups":
        replicates = run.storage.read_table(f"{place}/{REPLICATES}")
        for name in ("socm_mean", "socm_over_1_share"):
            means = np.array(summary["interval_means"][name], dtype=float)
            values = replicates.column(name).to_numpy()
            known = layout.documents is None or summary["by_document"]
            samples[name] = Replicates(values, summary["texts"], means, layout, known)
        return figures | {"socm_groups": summary["groups"], "socm_freedom": summary["freedom"]}
    if summary["pairs"]:
        means = run.storage.read_table(means_by_text(place))
        documents = _documents(means, np.ones(means.num_rows, dtype=bool))
        samples["socm_mean"] = Sampled([means.column("overall").to_numpy()], documents, True, summary["correction"])
        figures["socm_freedom"] = (summary["texts"] if documents is None else _count(documents[0])) - 1.0
    return {"socm_freedom": None} | figures | {"socm_groups": None}


def _documents(means: pa.Table, mask: np.ndarray) -> list[np.ndarray] | None:
    """The documents of some of the texts with means; None where texts come without documents."""
    column = means.column("document")
    return None if column.null_count else [column.to_numpy()[mask]]


def _count(documents: np.ndarray) -> int:
    """Documents as if of equal size, rounded down."""
    return int(equal_documents(documents) + 1e-9)


def _condition(tokens: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Whether (n·w−1)/(n−1) ≥ 1/3 for each text, the condition of S2 Appendix J; each has two tokens or more."""
    n, w = tokens.astype(np.float64), within.astype(np.float64)
    return np.asarray((n * w - 1) / (n - 1) >= 1 / 3)


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _effects(scope: Embedded, figures: list[tuple[dict[str, Any], Samples]]) -> list[dict[str, Any]]:
    """The change of each figure from the first temperature to each other one, from differences on the same texts."""
    (reference, before), run, rows = figures[0], scope.run, list[dict[str, Any]]()
    for temperature, (row, after) in zip(run.temperatures[1:], figures[1:], strict=True):
        key = run.key(scope.model, temperature) | {"reference": run.temperatures[0].canonical}
        for figure in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean", "spread_mean"):
            if figure in before and figure in after and reference[figure] is not None and row[figure] is not None:
                values = reference[figure], row[figure]
                rows.append(key | {"figure": figure, "interval": None} | _effect(values, before[figure], after[figure]))
        for edge in scope.texts.edges:
            old, new = (of.get(findings.inside(edge)) for of in (before, after))
            if isinstance(old, Sampled) and isinstance(new, Sampled):
                values = float(old.sets[0].mean()), float(new.sets[0].mean())
                rows.append(key | {"figure": "cosine_mean", "interval": edge} | _effect(values, old, new))
    return rows


def _effect(values: tuple[float, float], before: Sampled | Replicates, after: Sampled | Replicates) -> dict[str, Any]:
    """A change of a figure with its errors."""
    change = after.less(before)  # type: ignore[arg-type]  # The same figure has the same kind.
    superpopulation, error = change.errors()
    return {
        "reference_value": values[0], "value": values[1], "change": values[1] - values[0], "change_se": error,
        "change_se_superpopulation": superpopulation, "texts": change.texts,
    }  # fmt: skip


def _nearest_to_all(scope: Embedded, temperature: Temperature) -> pa.Table:
    run, model, layout = scope.run, scope.model, scope.texts
    means = all_means_by_text(run.storage, run.place(COSINE, model, temperature))
    (values,) = run.storage.arrays(means, ["overall"], len(layout))
    places = largest(values, layout.key)
    return COLLAPSED_TEXTS.build_rows(ranked(run.key(model, temperature), "nearness", places, values[places], layout))


def _excerpts(run: Run, index: Index, layouts: dict[str, Layout], rankings: list[pa.Table]) -> pa.Table:
    """The first characters of the texts in the rankings."""
    sides = [(table, name) for table in rankings for name in table.column_names if name.startswith("text_id")]
    ids = sorted({i for table, name in sides for i in table.column(name).to_pylist()})
    texts: dict[str, str] = {}
    for layout in layouts.values():  # One model may have rejected what another ranks.
        left = set(ids) - texts.keys()
        texts |= shards.texts_of(run.storage, layout.within(index, left), left)
    rows = [{"text_id": i, "characters": len(texts[i]), "excerpt": texts[i][:_EXCERPT_CHARACTERS]} for i in ids]
    return EXCERPTS.build_rows(rows)


def _with_excerpts(named: pa.Table, excerpts: pa.Table) -> pa.Table:
    """The table `named_texts` with what its texts begin with."""
    known = dict(zip(*(excerpts.column(name).to_pylist() for name in ("text_id", "excerpt")), strict=True))
    return NAMED_TEXTS.build_rows([row | {"excerpt": known[row["text_id"]]} for row in named.to_pylist()])
