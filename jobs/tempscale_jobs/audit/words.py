"""The sentences of an audit: every number has its error, and a change within noise is called no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tempscale.stats.enough import EQUAL_DOCUMENTS_FOR_AN_ERROR, GROUPS_FOR_AN_ERROR, TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.audit.findings import by_correction, exposed, exposures, of_row, with_findings
from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.report import findings
from tempscale_jobs.report.findings import Findings, changed, together
from tempscale_jobs.report.text import (
    FIGURES,
    count,
    encoding,
    estimate,
    interval_name,
    number,
    share,
    share_with_error,
    with_error,
)
from tempscale_jobs.steps import calibration

_ENDS = ("shortest", "longest")
_NOISE = {
    "up": "beyond noise", "down": "beyond noise, and the opposite of collapse", "noise": "no difference beyond noise",
    "unknown": "with too few texts to tell whether it is beyond noise",
}  # fmt: skip
_CORRECTED = {
    "overshoots": "moves exposure beyond the fair 1",
    "less fair": "makes exposure less fair",
    "fairer": "makes exposure fairer",
    "noise": "changes exposure by no more than noise",
}
_ASKING = {"corpus": "texts", "queries": "queries"}
NOTE = (
    "± is a 95 % confidence interval (1.96 standard errors): other texts of this kind may differ by it. It accounts "
    "for pairs that share a text and, where documents are known, texts that share one. ± ? means too few texts or documents "
    "to tell. For this corpus alone the error is smaller (0 if all of its texts were used): the …_se columns of the tables "
    "hold this smaller error."
)
Tables = dict[str, pl.DataFrame]


def labelled(tables: Tables, edges: Sequence[int]) -> Tables:
    """The tables with short labels of temperatures, and with the findings."""
    return findings.labelled(with_findings(tables, edges), tables["collapse_summary"]["temperature"])


# ---------------------------------------------------------------------------------------------- sentences


def left_out(tables: Tables, run: Mapping[str, Any]) -> list[str]:
    """Sentences on what the run still measures, and on the rejected rows of corpus and queries, where these are many."""
    sentences = [run.get("to_come", "")]
    for kind in ("corpus", "queries"):
        facts = run.get(kind, {})
        if read := facts.get("read"):
            shares = [facts["rejected"] / read]
            if kind == "corpus":  # With what the models rejected, which an older version did not count.
                known = tables["collapse_summary"].get_column("rejected_share", default=pl.Series([]))
                shares += known.drop_nulls().to_list()
            sentences.append(mention_rejected(f"rows of the {kind}", max(shares), facts.get("rejected_reasons", {})))
    return [sentence for sentence in sentences if sentence]


def protocol(known: Mapping[str, Any], edges: Sequence[int], chunked: bool) -> list[str]:
    """Sentences on how a model encoded the texts, from its entry in run.json, where that limits what was measured."""
    window, sentences = known.get("max_length") or 0, []
    if window:
        sentences.append(f"Texts are encoded with {encoding(known)}.")
    beyond = [edge for edge in edges if edge > window]
    if window and beyond and not chunked:
        empty = "Intervals from {} tokens on are" if len(beyond) > 1 else "The interval from {} tokens on is"
        sentences.append(f"{empty.format(beyond[0])} empty, because every text is cut at {window}.")
    own = known.get("own_temperature", 1)
    if own != 1:
        sentences.append(
            "The checkpoint's configuration has a temperature of its own: its logits are divided by "
            f"{number(own)} beside √d, at every length. A τ is stacked on it."
        )
    similarity = known.get("similarity", "cosine")
    if similarity != "cosine":
        measure = "dot product" if similarity == "dot" else f"{similarity} distance"
        sentences.append(
            f"The checkpoint says to compare its embeddings by {measure}. Every cosine here, and every neighbour, leaves "
            "their norms out: a search that uses them finds other texts."
        )
    return sentences + _independence(known)


def _independence(known: Mapping[str, Any]) -> list[str]:
    """What errors take for independent, from a model's entry in run.json."""
    if (documents := known.get("documents")) is not None:
        basis = f"Errors take the {count(documents, 'document')} that these texts are parts of as independent"
        equal = known.get("documents_equal", float(documents))
        few = ""
        if documents < GROUPS_FOR_AN_ERROR:
            few = f"; fewer than {GROUPS_FOR_AN_ERROR} are too few for an error"
        elif equal < EQUAL_DOCUMENTS_FOR_AN_ERROR:
            few = f"; they are so unequal in size that they count as {equal:.1f}, too few for an error"
        return [f"{basis}{few}."]
    order = known.get("source_order")
    if order is None or not order["alike"]:
        return []
    correlation, near, mean, factor = (number(order[k]) for k in ("correlation", "cosine_beside", "cosine_mean", "factor"))
    most = "about" if order["whole"] else "more than"
    return [
        "Texts beside each other in the source are alike: their mean cosines with all texts correlate at "
        f"{correlation}, and two neighbours have a cosine of {near}, two texts in the mean {mean}. If they are parts of the "
        f"same documents, the errors here are too small, that of the mean cosine by {most} a factor of {factor}: name the "
        "documents with --document-column."
    ]


def in_words(tables: Tables, edges: Sequence[int]) -> list[str]:
    """The report's sentences on one model, from its tables as `labelled` returns them."""
    found, (first, *others) = Findings.read(tables["findings"]), tables["collapse_summary"].to_dicts()
    return [
        _length(first, found, tables, edges),
        _prefix(first, found, tables),
        *_exposures(first, found, tables, edges),
        *(_effect(first, row, found) for row in others),
        _second_order(first),
    ]


def _length(row: dict[str, Any], found: Findings, tables: Tables, edges: Sequence[int]) -> str:
    state = found.at("collapse_gap", row).state
    if state == "absent":
        return "Length collapse cannot be measured: fewer than two length intervals have at least 30 texts."
    cells = of_row(tables["length_collapse"], row).filter(pl.col("interval_a") == pl.col("interval_b"))
    short, long = (cells.row(by_predicate=pl.col("interval_a") == row[f"gap_{end}"], named=True) for end in _ENDS)
    names = [interval_name(row[f"gap_{end}"], edges) for end in _ENDS]
    return (
        f"At {row['temperature']} the mean cosine of two texts of {names[1]} tokens is {estimate(long, 'cosine_mean')}, and "
        f"of two texts of {names[0]} tokens {estimate(short, 'cosine_mean')}. The difference, the collapse gap, is "
        f"{estimate(row, 'collapse_gap')}, {_NOISE[state]}."
    )


def _prefix(row: dict[str, Any], found: Findings, tables: Tables) -> str:
    """How prefixes of the same texts change with their length, within the range of the probe."""
    gap, probed = found.at("collapse_gap", row), found.at("prefix_gap", row)
    if probed.state == "absent":
        return "Prefixes of the same texts were not compared: too few texts are long enough, or the probe was left out."
    rows = of_row(tables["prefix_probe"], row).sort("prefix_tokens").to_dicts()
    first, last = rows[0], rows[-1]
    short, long = first["prefix_tokens"], last["prefix_tokens"]
    sentence = (
        f"The same {count(first['texts'], 'long text')} have a mean cosine of {estimate(first, 'cosine_mean')} when cut to "
        f"{short} tokens, and of {estimate(last, 'cosine_mean')} when cut to {long}. The difference, the prefix gap, is "
        f"{estimate(row, 'prefix_gap')}, {_NOISE[probed.state]}."
    )
    if gap.is_beyond_noise and not probed.is_beyond_noise:
        sentence += " So the collapse gap, which is between different texts, is not shown for the same texts."
    elif gap.is_beyond_noise:
        sign = "same" if probed.state == gap.state else "opposite"
        sentence += f" The collapse gap, which is between different texts, has the {sign} sign."
    return f"{sentence} This says nothing about lengths below {short} or above {long} tokens."


def _exposures(row: dict[str, Any], found: Findings, tables: Tables, edges: Sequence[int]) -> list[str]:
    """Which lengths fill the search results: one sentence for searches by the corpus's own texts, one for the queries."""
    sentences = []
    for asked_by in ("corpus", "queries"):
        rows = exposures(tables, row, asked_by)
        unfair = [r for r in rows if found.at(exposed(r["interval"], asked_by), row).is_beyond_noise]
        if not rows:
            continue
        k, queries = rows[0]["k"], rows[0]["queries"]
        sampled = f"each of {queries:,} random texts" if queries < row["texts"] else "each text"
        asking = sampled if asked_by == "corpus" else "the query" if queries == 1 else f"{queries:,} queries"
        results = f"the {count(k, 'nearest text')} of {asking}" if k > 1 else f"the nearest text of {asking}"
        if not unfair:
            sentences.append(
                f"Search results ({results}) at {row['temperature']}: no length takes more or less than its share beyond "
                f"noise{least_certain(rows, edges)}."
            )
            continue
        parts = [
            f"texts of {interval_name(r['interval'], edges)} tokens are {share(r['texts_share'])} of the corpus and "
            f"{share(r['slots_share'])} of the results (exposure {_of(r)})"
            for r in sorted(unfair, key=lambda r: -abs(r["exposure"] - 1))[:2]
        ]
        if more := len(unfair) - len(parts):
            parts.append(f"{more} other length{'s' * (more > 1)} also differ{'s' * (more == 1)} from 1 beyond noise")
        sentences.append(f"Search results ({results}) at {row['temperature']}: {'; '.join(parts)}.")
    return sentences


def least_certain(rows: Sequence[dict[str, Any]], edges: Sequence[int]) -> str:
    """The length whose exposure has the widest interval, as the end of a sentence on what is not beyond noise."""
    known = [row for row in rows if row["exposure_se_superpopulation"]]
    if not known:
        return ""
    widest = max(known, key=lambda row: row["exposure_se_superpopulation"])
    return (
        f"; least certain are texts of {interval_name(widest['interval'], edges)} tokens, with an exposure of {_of(widest)}"
    )


def thresholds(card: Sequence[dict[str, Any]], edges: Sequence[int]) -> str:
    """Which cosine one of a hundred random pairs reaches, by length; empty without a card."""
    known = [row for row in card if row["percentiles"]["99"] is not None]
    if not known:
        return ""
    same = [row for row in known if row["interval_a"] is not None and row["interval_a"] == row["interval_b"]]
    all_pairs = known[0]
    most = number(all_pairs["percentiles"]["99"])
    sentence = f"Of the {count(all_pairs['pairs'], 'pair')} of texts one in 100 has a cosine of {most} or more"
    if len(same) > 1:
        low, high = (pick(same, key=lambda row: row["percentiles"]["99"]) for pick in (min, max))
        reached = [
            f"where both have {interval_name(row['interval_a'], edges)} tokens, one in 100 has "
            f"{number(row['percentiles']['99'])} or more"
            for row in (low, high)
        ]
        sentence += (
            f"; {'; '.join(reached)}. With one threshold for all lengths, the share of pairs "
            "above it would depend on their length"
        )
    return f"{sentence}."


def query_thresholds(table: pl.DataFrame, edges: Sequence[int]) -> str:
    """Which cosine one of a hundred pairs of a query and a text reaches, and which queries have no such text."""
    known = [row for row in calibration.query_card(table) if row["percentiles"]["99"] is not None]
    if not known:
        return ""
    every, *by_length = known
    most, pairs = every["percentiles"]["99"], count(every["pairs"], "pair")
    sentence = f"Of the {pairs} of a query and a text one in 100 has a cosine of {number(most)} or more"
    if len(by_length) > 1:
        ends = (pick(by_length, key=lambda row: row["percentiles"]["99"]) for pick in (min, max))
        reached = [
            f"{number(row['percentiles']['99'])} for texts of {interval_name(row['interval_a'], edges)} tokens"
            for row in ends
        ]
        sentence += f": {', '.join(reached)}"
    below, queries = calibration.queries_below(table, most)
    none = share_with_error(below, (below * (1 - below) / max(1, queries)) ** 0.5)
    return f"{sentence}. {none} of {queries:,} queries have no text that reaches {number(most)}."


def corrected(tables: Tables, row: dict[str, Any], asked_by: str, edges: Sequence[int]) -> str:
    """What a correction by length would do to exposure, hubs and the nearest texts of short ones; empty where unknown."""
    before, after, verdicts = by_the_correction(tables, row, asked_by)
    if not before:
        return ""
    farthest = sorted(before, key=lambda edge: -abs(before[edge]["exposure"] - 1))
    sentences = []
    for decided in [one for one in _CORRECTED if one in verdicts.values() and one != "noise"] or ["noise"]:
        places = sorted([edge for edge in farthest if verdicts[edge] == decided][:2])
        moved = [
            f"for texts of {interval_name(edge, edges)} tokens from {_of(before[edge])} to {_of(after[edge])}"
            for edge in places
        ]
        sentences.append(f"Correcting the cosine for text length {_CORRECTED[decided]}: {', '.join(moved)}.")
    if kept := kept_by_correction(after, asked_by, edges):
        sentences.append(f"The correction keeps {kept}.")
    return " ".join(sentences)


def by_the_correction(
    tables: Tables, row: dict[str, Any], asked_by: str
) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]], dict[int, str]]:
    """The exposure of each length before and after the correction by length, and what it does to each; empty if unknown."""
    if "exposure_corrected" not in tables:
        return {}, {}, {}
    rows = of_row(tables["exposure_corrected"], row).filter(asked_by=asked_by)
    after = {r["interval"]: r for r in rows.filter(pl.col("k") == pl.col("k").max()).to_dicts()}
    before = {r["interval"]: r for r in exposures(tables, row, asked_by) if r["interval"] in after}
    return before, after, {edge: _by_correction(before[edge], after[edge], len(before)) for edge in before}


def kept_by_correction(after: Mapping[int, dict[str, Any]], asked_by: str, edges: Sequence[int]) -> str:
    """How many nearest texts a correction keeps, for the shortest askers for which this is known; empty where it is not."""
    kept = next((row for _, row in sorted(after.items()) if row["neighbours_kept"] is not None), None)
    if kept is None:
        return ""
    texts = f"{_ASKING[asked_by]} of {interval_name(kept['interval'], edges)} tokens"
    return f"{share(kept['neighbours_kept'])} of the {count(kept['k'], 'nearest neighbour')} of {texts}"


def _of(row: dict[str, Any]) -> str:
    """The exposure of a row."""
    return with_error(row["exposure"], row["exposure_se_superpopulation"])


def _by_correction(before: dict[str, Any], after: dict[str, Any], lengths: int) -> str:
    """`findings.by_correction` of a length that is one of several; noise where it has too few texts for an error."""
    enough = min(before["texts"], after["texts"]) >= TEXTS_FOR_AN_INTERVAL
    error, error_after = (row["exposure_se_superpopulation"] if enough else None for row in (before, after))
    return by_correction(before["exposure"], after["exposure"], (error, error_after), together(lengths))


def _effect(reference: dict[str, Any], row: dict[str, Any], found: Findings) -> str:
    changes = [(f"the {label}", found.at(changed(figure), row)) for figure, label in FIGURES.items()]
    moved = [f"{label} by {change}" for label, change in changes if change.is_beyond_noise]
    noise, unknown = ([label for label, change in changes if change.state == state] for state in ("noise", "unknown"))
    said = {"it moves": moved, "no difference beyond noise in": noise, "too few texts to tell for": unknown}
    parts = [f"{start} {', '.join(labels)}" for start, labels in said.items() if labels]
    text = f"{row['temperature']} compared with {reference['temperature']}, on the same texts: "
    text += "; ".join(parts) or "nothing was measured under both"
    helps = "Only downstream scores can show whether that helps; a" if moved else "A"
    return f"{text}. {helps} changed temperature means embedding the whole index again."


def _second_order(row: dict[str, Any]) -> str:
    if row["socm_mean"] is None:
        why = "lengths are those given, and no tokens were seen" if row["spread_mean"] is None else "no SOCM sample"
        return f"Second-order collapse was not measured: {why}."
    known = row["socm_se_superpopulation"] is not None
    unknown = "" if known else ", too few texts to tell how far off it is"
    return (
        f"Second-order collapse at {row['temperature']}: mean SOCM {estimate(row, 'socm_mean')}, {measured_pairs(row)}"
        f"{unknown}. Published values, not comparable with this one (1,000 Wikipedia sentences, and a method "
        "that gives lower values): bert-base-uncased .396, all-MiniLM-L12-v2 .313, e5-base-v2 .029, gte-base .018. SOCM "
        "differs by length: of all-mpnet-base-v2, such sentences have .067 below 12 tokens and .121 from 60."
    )


def measured_pairs(row: dict[str, Any]) -> str:
    """How many pairs a mean SOCM stands on, and how they were drawn."""
    texts, groups = row["socm_texts"], row["socm_groups"]
    if groups is None:
        return f"of the {count(texts * (texts - 1) // 2, 'pair')} of {count(texts, 'text')}"
    return f"estimated from {row['socm_pairs']:,} pairs of {texts:,} texts in {groups} random groups"


def plain_figures(row: Mapping[str, Any], tables: Tables) -> list[str]:
    """What the top component and reciprocity are and how large; a run of an older version lacks them."""
    top, both_ways, sentences = row.get("top_component"), row.get("reciprocity"), []
    if top is not None:
        sentences.append(
            f"Top component at {row['temperature']}: {share(top)} of the squared length of all vectors is along one "
            "direction; if it were 100 %, all vectors would be on one line. The vectors are not centred, so what all have "
            "in common counts."
        )
    if both_ways is not None:
        k = exposures(tables, dict(row), "corpus")[0]["k"]
        nearest = f"one of its {k} nearest texts" if k > 1 else "its nearest text"
        other = f"among the {k} nearest texts" if k > 1 else "the nearest text"
        sentences.append(
            f"Reciprocity at {row['temperature']}: of all pairs of a text and {nearest}, in {share(both_ways)} each is "
            f"{other} of the other. arXiv 2605.26575 relates reciprocity between languages to hubness."
        )
    return sentences


def text_in_words(row: Mapping[str, Any], excerpts: Mapping[str, dict[str, Any]] | None, side: str = "") -> str:
    """A text that a row names: its id and length, and below them its excerpt if there is one."""
    text_id = row[f"text_id{side}"]
    lines = [f"{text_id} · {count(row[f'tokens{side}'], 'token')}"]
    if excerpts and text_id in excerpts:
        excerpt = excerpts[text_id]
        lines.append(excerpt["excerpt"] + " …" * (excerpt["characters"] > len(excerpt["excerpt"])))
    return "\n".join(lines)
