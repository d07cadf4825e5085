"""Tables of `tempscale diagnose` -> one self-contained HTML page."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.diagnose import charts, versions
from tempscale_jobs.diagnose import words as sentences
from tempscale_jobs.diagnose.findings import decide
from tempscale_jobs.report import findings
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Figure, Part, Report, Section, Table, drawn, group, subject, tabled
from tempscale_jobs.report.text import Edges, count, interval_name, labels, number, parted, share, with_error

_ROUNDING = 1 + 1e-4
"""A ratio to Theorem 2's bound above this is not explained by float32 rounding."""
_COMPARED = {
    "length": "σ_a, long − short texts", "temperature": "σ_a, against the first τ",
    "versions": "σ_a, long − short versions", "versions_cosine": "cosine between documents, long − short versions",
}  # fmt: skip
_SAYS = {"up": "rises", "down": "falls", "noise": "no difference beyond noise", "unknown": "too few texts to tell"}


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Report:
    """The report of a run of `diagnose`, from its tables by name and the content of run.json."""
    parts, summary, corpus = parts_of(tables, run), tables["layer_summary"], run["corpus"]
    texts = int(summary.filter(pl.col("interval").is_null())["texts"][0])
    by = "document" if run["config"]["diagnosis"].get("versions_of") else "length"
    where = subject(run, f"{count(texts, 'text')} looked into, by {by}")
    read = f"{count(corpus['read'], 'row')} read, {corpus['rejected']:,} rejected; lengths measured for "
    layers = summary.filter(pl.col("layer") >= 0).group_by("model").agg(pl.col("layer").n_unique())
    made = how_made(
        run, "how_diagnose", labels(summary["temperature"]),
        corpus=[str(corpus.get("source", "–")), f"{read}{count(corpus['analysed'], 'text')}"],
        models={model: [count(number, "layer")] for model, number in layers.iter_rows()},
    )  # fmt: skip
    together = _side_by_side(labelled(tables)) if len(parts) > 1 else []
    left_out = filter(None, [_left_out(run)])
    return Report("Why do these embeddings collapse?", where, parts, [*left_out], before=together, after=[made])


def _left_out(run: dict[str, Any]) -> str:
    facts = run.get("corpus", {})
    if not facts.get("read"):
        return ""
    return mention_rejected("rows of the corpus", facts["rejected"] / facts["read"], facts.get("rejected_reasons", {}))


def parts_of(tables: dict[str, pl.DataFrame], run: dict[str, Any], prefix: str = "m") -> list[Part]:
    """What a report says of each model; `prefix` begins the ids."""
    models = findings.of_each_model(labelled(tables), "layer_summary")
    return [_part(f"{prefix}{place}", name, mine, run) for place, (name, mine) in enumerate(models.items())]


def labelled(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables with a short label in place of each temperature."""
    return findings.labelled(
        tables | {"findings": Findings.stored(tables, decide).frame()}, tables["layer_summary"]["temperature"]
    )


def _side_by_side(tables: dict[str, pl.DataFrame]) -> list[Section]:
    """The section that compares all models."""
    summary, models = tables["layer_summary"], tables["layer_summary"]["model"].unique(maintain_order=True).to_list()
    last = summary.filter(pl.col("interval").is_null())
    last = last.filter(pl.col("layer") == pl.col("layer").max().over("model"))
    columns = {
        "within_cosine": "within-text cosine", "spread": "S(X)/‖μ(X)‖²", "rho": "ρ", "lambda": "λ", "sigma_a_mean": "σ_a",
    }  # fmt: skip
    heads = ("model", "temperature")
    rows = [
        (row["model"], row["temperature"], *(with_error(row[f"{name}_mean"], row[f"{name}_se"]) for name in columns))
        for row in last.to_dicts()
    ]
    return group(
        f"Side by side: the same {count(int(last['texts'][0]), 'text')} in every model",
        drawn("all", "together", charts.together(summary)),
        tabled("last_layer", Table((*heads, *columns.values()), rows, words=2)),
        sentences=sentences.of_models(tables, models[0]),
    )  # fmt: skip


def _part(place: str, name: str, mine: dict[str, pl.DataFrame], run: dict[str, Any]) -> Part:
    """What the report says of one model: first the sentence that answers, then all with the charts."""
    edges = Edges.of(run, "diagnosis")
    spectrum, summary = mine["spectrum_by_length"], mine["layer_summary"]
    exceeded = (pl.col("sigma_a") > pl.col("sigma_a_bound")).mean().alias("over")
    heads = mine["heads"].group_by("temperature", maintain_order=True)
    broken = (pl.col("thm2_ratio") > _ROUNDING).sum().alias("broken")
    bounds = heads.agg(pl.col("thm2_ratio").max().alias("worst"), broken, exceeded, pl.len().alias("rows")).to_dicts()
    answer, *further = sentences.of_model(mine, bounds, edges)
    theorems = Table(
        (
            "temperature", "Theorem 2: largest ratio to its bound", "heads that break it", "σ_a above Theorem 3's curve",
            "heads × layers × texts",
        ),
        [
            (row["temperature"], number(row["worst"]), f"{row['broken']:,}", share(row["over"]), f"{row['rows']:,}")
            for row in bounds
        ],
    )  # fmt: skip
    return Part(
        place,
        name,
        answer,
        _figures(mine),
        sentences.to_do(mine, run),
        sections=[
            *group("In words", sentences=further),
            *group(
                "Attention as a filter",
                drawn(place, "filter", charts.filter_by_length(spectrum, edges)),
                drawn(place, "parts", charts.parts(summary)),
                drawn(place, "resemblance", charts.resemblance(spectrum, edges)),
                drawn(place, "repeated", charts.repeated(mine["repeated_tokens"])),
            ),
            *group(
                "Contraction, layer by layer",
                drawn(place, "contraction", charts.by_layer(summary, charts.CONTRACTION)),
                drawn(place, "concentration", charts.by_layer(summary, charts.CONCENTRATION)),
            ),
            *group(
                "The texts in the plane",
                drawn(place, "map", charts.text_map(mine["map"], edges, _distances(mine["map"], edges))),
                drawn(place, "pair", charts.two_texts(mine["two_texts"]) if "two_texts" in mine else None),
            ),
            Section("Both theorems", table=theorems, folded=True),
        ],
    )  # fmt: skip


def _figures(mine: dict[str, pl.DataFrame]) -> list[Figure]:
    """The first four differences: of the last layer, where it is known, as in print."""
    # The first temperature has no finding against itself.
    known = [(row, found) for row, found in sentences.with_findings(mine) if row["finding"] in _COMPARED]
    known = [(row, found) for row, found in known if found.state != "absent"]
    last = [(row, found) for row, found in known if row["layers"] != "all"]
    return [
        Figure(f"{_COMPARED[row['finding']]}, {row['temperature']}", *parted(str(found)), _SAYS[found.state])
        for row, found in (last or known)[:4]
    ]


def _distances(table: pl.DataFrame, edges: Edges) -> Table:
    """Mean distance to the map's origin by temperature: per length interval, and of the shortest and longest versions."""
    rows, heads = [], dict[str, None]()
    for (label,), mine in table.group_by("temperature", maintain_order=True):
        by_interval = mine.group_by("interval").agg(pl.col("origin_distance").mean()).sort("interval")
        means = {interval_name(edge, edges): mean for edge, mean in by_interval.iter_rows()}
        lengths = dict(mine.select("text_id", "tokens").iter_rows())
        documents = dict(mine.filter(pl.col("document").is_not_null()).select("text_id", "document").iter_rows())
        pairs = versions.shortest_and_longest(documents, lengths)
        if pairs:
            distance = dict(mine.select("text_id", "origin_distance").iter_rows())
            for place, name in enumerate(("shortest versions", "longest versions")):
                means[name] = sum(distance[pair[place]] for pair in pairs) / len(pairs)
        heads |= dict.fromkeys(means)
        rows.append((str(label), means))
    return Table(("temperature", *heads), [(label, *(number(means.get(head)) for head in heads)) for label, means in rows])
