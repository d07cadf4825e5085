"""The sentences and table lines of `tempscale compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from tempscale_jobs.nights.compare import Compared
from tempscale_jobs.nights.findings import SAME
from tempscale_jobs.nights.finished import Row
from tempscale_jobs.nights.record import changed_settings, measured
from tempscale_jobs.report.findings import Finding, changed
from tempscale_jobs.report.text import (
    NAMES,
    Edges,
    count,
    interval_name,
    labels,
    model_at,
    model_name,
    number,
    share,
    share_with_error,
    with_error,
)
from tempscale_jobs.steps.calibration import LEAST_PAIRS_ABOVE
from tempscale_jobs.tables.nights import SWAP, SWAP_NEIGHBOURS, SWAP_THRESHOLDS
from tempscale_jobs.urls import masked

_MOST_TEXTS, _MOST_CELLS, _MOST_EXAMPLES, _MOST_NAMED, _EXCERPT = 10, 8, 3, 3, 60
_SIDES = ("lost", "gained")


def sentences(found: Compared) -> list[str]:
    """Sentences on the differences between the runs, then on the mean cosine of each model and temperature."""
    return [*of_runs(found), *(line for place in range(len(found.pairs)) for line in of_pair(found, place))]


def of_runs(compared: Compared) -> list[str]:
    """Sentences on the differences between the runs."""
    a, b = compared.a.record, compared.b.record
    lines = [f"A is {_named(compared.a)}, B is {_named(compared.b)}."]
    models = [
        (row_a["model"], row_a["fingerprint"], row_b["model"], row_b["fingerprint"]) for row_a, row_b in compared.pairs
    ]
    changed = list(dict.fromkeys((x, y) for x, old, y, new in models if old != new))
    lines += [f"The model differs: {x} in A, {y} in B." if x != y else f"{x} has other weights in B." for x, y in changed]
    if not changed:
        vectors_given = not any(new for *_, new in models)
        lines.append("The model is not known: embeddings were given." if vectors_given else "The model is the same.")
    settings = [
        measured(run["config"], run["models"][row["model"]]) for run, row in zip((a, b), compared.pairs[0], strict=True)
    ]
    lines += [f"Measured differently: {key} was {x!r} and is {y!r}." for key, x, y in changed_settings(*settings)]
    versions = [run["versions"] | {"tempscale": run["tempscale"]} for run in (a, b)]
    newer = [k for k in sorted({*versions[0], *versions[1]}) if versions[0].get(k) != versions[1].get(k)]
    if newer:
        lines.append(f"Versions differ: {', '.join(f'{k} {versions[0].get(k)} → {versions[1].get(k)}' for k in newer)}.")
    return [*lines, corpus_words(compared)]


def corpus_words(found: Compared) -> str:
    """Whether both runs read the same corpus, and how many texts are others."""
    a, b = (run.record["corpus"] for run in (found.a, found.b))
    changed = found.changed[0]
    # Fingerprints of earlier versions are of another kind, and tell nothing beside one of today's.
    alike = a["fingerprint"].startswith("sum:") == b["fingerprint"].startswith("sum:")
    unchanged = all(changed[key] == 0 for key in ("added", "removed", "edited"))
    if a["fingerprint"] == b["fingerprint"] or (unchanged and not alike):
        return f"The corpus is the same: {count(b['analysed'], 'text')}."
    sizes = f"{count(a['analysed'], 'text')} in A, {count(b['analysed'], 'text')} in B"
    if changed["added"] is None:
        return f"The corpus differs: {sizes}; it is not known which texts changed, because their embeddings are gone."
    if changed["edited"] is None and not changed["added"] and not changed["removed"]:
        return f"The texts have the same ids: {count(b['analysed'], 'text')}; whether some were edited is not known."
    what = ", ".join(f"{n:,} {key}" for key, n in changed.items() if n is not None)
    return f"The corpus differs: {sizes}; {what}."


def _named(run: Any) -> str:
    folder = masked(run.storage.root).rstrip("/").rsplit("/", 1)[-1]
    return f"{folder} (run {run.record.get('run', '–')}, begun {run.record['started'][:10]})"


def of_pair(compared: Compared, place: int) -> list[str]:
    """Sentences on the mean cosine of one model and temperature and what changed it."""
    a, b = compared.pairs[place]
    names = labels([a["temperature"], b["temperature"]])
    figures = {row["figure"]: row for row in _of(compared.figures, b).to_dicts()}
    if "cosine_mean" not in figures:
        none = f"{b['model']}: one of the runs has no pair of texts, so there is no mean cosine to compare."
        return [none, *_swapped(compared, place)]
    cosine = figures["cosine_mean"]
    at = names[b["temperature"]]
    if a["temperature"] != b["temperature"]:
        at = f"{names[a['temperature']]} in A and {at} in B"
    change = compared.findings.at(changed("cosine_mean"), b)
    lines = [f"{model_name(b['model'])}, {at}: the mean cosine {_moved(cosine, change)}."]
    if cosine["change_same_texts"] is not None:
        lines.append(_same_texts(cosine, a, b))
    cells = _of(compared.intervals, b).to_dicts()
    if cells and abs(cosine["change"]) > SAME:
        lines.append(_by_length(cells, Edges.of(compared.b.record)))
    return [*lines, *_swapped(compared, place)]


def _moved(row: Row, change: Finding) -> str:
    if abs(row["change"]) <= SAME:
        return f"is the same, {number(row['value_b'])}"
    way = "rose" if row["change"] > 0 else "fell"
    noise = "" if change.is_beyond_noise else ", no difference beyond the noise of two corpora"
    values = f"from {number(row['value_a'])} to {number(row['value_b'])}"
    return f"{way} {values}, by {change}{noise}"


def _same_texts(row: Row, a: Row, b: Row) -> str:
    same = f"On the {count(row['same_texts'], 'text')} that are unchanged in both runs,"
    others = [what for what, key in (("the model", "fingerprint"), ("the temperature", "temperature")) if a[key] != b[key]]
    if not others and abs(row["change_same_texts"]) <= SAME:
        return (
            f"{same} nothing moved: model and temperature are the same, so the whole change comes from texts that were "
            "added, removed or edited."
        )
    what = " and ".join(others) or "the way of measuring"
    return (
        f"{same} {what} moved it by {with_error(row['change_same_texts'], row['change_same_texts_se'])}; "
        f"the rest, {number(row['change_of_corpus'])}, comes from texts that were added, removed or edited."
    )


def _by_length(cells: list[Row], edges: Edges) -> str:
    by_cosine, by_lengths = (sum(cell[key] for cell in cells) for key in ("by_cosine", "by_lengths"))
    largest = max(cells, key=lambda cell: (abs(cell["by_cosine"] + cell["by_lengths"]), -cell["interval_a"]))
    ends = [interval_name(largest[key], edges) for key in ("interval_a", "interval_b")]
    of = f"two texts of {ends[0]} tokens" if ends[0] == ends[1] else f"texts of {ends[0]} with texts of {ends[1]} tokens"
    shares = f"{share(largest['pairs_share_a'])} of the pairs in A, {share(largest['pairs_share_b'])} in B"
    most = number(largest["by_cosine"] + largest["by_lengths"])
    return (
        f"By length: {number(by_cosine)} of it comes from other cosines at the same lengths, {number(by_lengths)} from a "
        f"change in how frequent the lengths are. The largest part, {most}, comes from {of} ({shares})."
    )


def _swapped(compared: Compared, place: int) -> list[str]:
    """Sentences on what another model or temperature changes: thresholds, nearest texts, and the texts that lose most."""
    neighbours, thresholds, examples = (_of(compared.swap[table.name], compared.pairs[place][1]) for table in SWAP)
    return [
        *compared.notes[place],
        *(carried(row, " of A", " of B") for row in thresholds.filter(pl.col("by").is_null()).to_dicts()),
        *(
            f"Of the {count(row['k'], 'nearest text')} of a text in A, "
            f"{share_with_error(row['neighbours_kept'], row['neighbours_kept_se'])} are among as many in B "
            f"({count(row['askers'], 'text')} asked)."
            for row in neighbours.filter(pl.col("by").is_null()).to_dicts()
        ),
        *map(_example, examples.head(_MOST_EXAMPLES).to_dicts()),
    ]


def carried(row: Row, old: str, new: str) -> str:
    """What replaces a threshold; `old` and `new` say whose each is."""
    if row["new_threshold"] is None:
        few = f"fewer than {LEAST_PAIRS_ABOVE} random pairs reach it"
        return f"The threshold {row['threshold']:g}{old} is not carried over: {few}."
    ends = f" ({number(row['new_threshold_low'])} to {number(row['new_threshold_high'])})"
    passes = share_with_error(row["passes"], row["passes_se"])
    sentence = (
        f"Your {row['threshold']:g}{old} passes {passes} of random pairs; {number(row['new_threshold'])}"
        f"{ends * (row['new_threshold_low'] is not None)}{new} passes as many"
    )
    if row["stay"] is None:
        return f"{sentence}."
    return f"{sentence}; of the pairs you accept today {share_with_error(row['stay'], row['stay_se'])} stay."


def _example(row: Row) -> str:
    """What one text loses and gains."""
    excerpt = f" («{' '.join(row['excerpt'].split())[:_EXCERPT]} …»)" if row["excerpt"] else ""
    lost, gained = (", ".join([*row[side][:_MOST_NAMED], *["…"] * (len(row[side]) > _MOST_NAMED)]) for side in _SIDES)
    return f"{row['text_id']}{excerpt} keeps {row['kept']} of {row['k']}: it loses {lost}, and gains {gained}."


def _of(table: pl.DataFrame, row: Row) -> pl.DataFrame:
    return table.filter((pl.col("model") == row["model"]) & (pl.col("temperature") == row["temperature"]))


def tables(found: Compared) -> Iterator[tuple[tuple[str, ...], list[list[str]]]]:
    """The heads and the lines of each table that the terminal shows: figures, lengths, texts that moved most, thresholds."""
    several, edges = len(found.pairs) > 1, Edges.of(found.b.record)
    for _, b in found.pairs:
        lines = [_figure_line(row) for row in _of(found.figures, b).to_dicts()]
        yield (model_at(b), "A", "B", "change", "on the same texts"), lines
    for _, b in found.pairs:
        cells = _of(found.intervals, b).with_columns((pl.col("by_cosine") + pl.col("by_lengths")).alias("part"))
        moved = cells.filter(pl.col("part").abs() > SAME).sort(pl.col("part").abs(), descending=True).head(_MOST_CELLS)
        first = f"{b['model']}: " * several + "where the mean moved, tokens"
        heads = (first, "pairs", "cosine A", "B", "change", "by cosines", "by lengths")
        if len(moved):
            yield heads, [_interval_line(row, edges) for row in moved.to_dicts()]
    for _, b in found.pairs:
        texts = [row for row in _of(found.texts, b).head(_MOST_TEXTS).to_dicts() if abs(row["change"]) > SAME]
        first = f"{b['model']}: " * several + "texts that moved most"
        if texts:
            yield (first, "words", "tokens", "mean cosine to all, A", "B", "change"), [_text_line(row) for row in texts]
    edges = Edges.of(found.a.record)
    for _, b in found.pairs:
        first = f"{b['model']}: " * several + "two texts of"
        lengths = _of(found.swap[SWAP_THRESHOLDS.name], b).filter(by="length").to_dicts()
        if lengths:
            yield (first, "threshold of A", "passes", "of B", "stay"), [threshold_line(row, edges) for row in lengths]
        lengths = _of(found.swap[SWAP_NEIGHBOURS.name], b).filter(by="length").to_dicts()
        if lengths:
            first = f"{b['model']}: " * several + "texts of"
            yield (first, "asked", "nearest texts that stay"), [_neighbours_line(row, edges) for row in lengths]


def _figure_line(row: Row) -> list[str]:
    return [
        NAMES[row["figure"]], number(row["value_a"]), number(row["value_b"]),
        "other lengths" if row["change"] is None else with_error(row["change"], row["change_se"]),
        with_error(row["change_same_texts"], row["change_same_texts_se"]),
    ]  # fmt: skip


def _interval_line(row: Row, edges: Edges) -> list[str]:
    return [
        " and ".join(dict.fromkeys(interval_name(row[key], edges) for key in ("interval_a", "interval_b"))),
        f"{share(row['pairs_share_a'])} → {share(row['pairs_share_b'])}",
        number(row["cosine_mean_a"]), number(row["cosine_mean_b"]), with_error(row["change"], row["change_se"]),
        number(row["by_cosine"]), number(row["by_lengths"]),
    ]  # fmt: skip


def _text_line(row: Row) -> list[str]:
    return [
        row["text_id"], "edited" if row["edited"] else "the same", f"{row['tokens_a']} → {row['tokens_b']}",
        number(row["nearness_a"]), number(row["nearness_b"]), number(row["change"]),
    ]  # fmt: skip


def threshold_line(row: Row, edges: Sequence[int]) -> list[str]:
    """The length of two texts, a threshold, the pairs that pass, what replaces it, and the pairs that stay."""
    return [
        f"{interval_name(int(row['group']), edges)} tokens", f"{row['threshold']:g}",
        share_with_error(row["passes"], row["passes_se"]), number(row["new_threshold"]),
        share_with_error(row["stay"], row["stay_se"]),
    ]  # fmt: skip


def _neighbours_line(row: Row, edges: Edges) -> list[str]:
    kept = share_with_error(row["neighbours_kept"], row["neighbours_kept_se"])
    return [f"{interval_name(int(row['group']), edges)} tokens", f"{row['askers']:,}", kept]
