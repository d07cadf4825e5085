"""The finding in words: every number with its error, and «no difference beyond noise» where that is so."""

from __future__ import annotations

from typing import Any

import polars as pl

_Z = 1.96
NOTE = (
    "± is a 95 % interval for texts drawn like these (1.96 standard errors, from per-text means because pairs share texts). "
    "For this very corpus the error is smaller, and 0 where every text was used: the …_se columns of the tables."
)
Tables = dict[str, pl.DataFrame]


def number(value: float | None, digits: int = 3) -> str:
    """A figure to `digits` significant digits, never as 0.000 unless it is 0."""
    if value is None:
        return "–"
    if value != 0 and abs(value) < 0.001:
        return "<0.001" if value > 0 else ">−0.001"
    text = f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def with_error(value: float | None, error: float | None) -> str:
    """A figure and the 95 % half-width of its error, to the same decimal place."""
    if value is None:
        return "–"
    if error is None or error == 0:
        return number(value)
    half = _Z * error
    places = min(6, max(0, -int(f"{half:e}".split("e")[1]) + 1))
    return f"{value:.{places}f} ± {half:.{places}f}".replace("-", "−")


def beyond_noise(value: float, error: float | None) -> bool:
    """Whether a figure differs from 0 by more than its 95 % error; a figure without an error never does."""
    return error is not None and abs(value) > _Z * error


def headline(tables: Tables) -> list[str]:
    """The sentences of the report's first screen, model by model."""
    sentences: list[str] = []
    summary = tables["collapse_summary"]
    for model in summary["model"].unique(maintain_order=True):
        rows = summary.filter(pl.col("model") == model).to_dicts()
        effects = tables["temperature_effect"].filter(pl.col("model") == model).to_dicts()
        name = f"{model}: " if summary["model"].n_unique() > 1 else ""
        sentences.append(name + _length(rows[0], tables))
        sentences.append(_prefix(rows[0], tables))
        sentences += [_effect(rows[0], row, effects) for row in rows[1:]]
        sentences += [_second_order(rows[0]), _assumptions(rows[0])]
    return sentences


def closing_figures(tables: Tables) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Per model: its temperatures, and a row for each figure that matters: its name, then value ± error at each."""
    figures = {}
    for model, rows in tables["collapse_summary"].group_by("model", maintain_order=True):
        each = rows.to_dicts()
        lines = [
            [label, *(with_error(row[name], _error(row, name)) for row in each)]
            for label, name in (
                ("mean cosine", "cosine_mean"), ("collapse gap", "collapse_gap"),
                ("prefix gap", "prefix_gap"), ("mean SOCM", "socm_mean"),
            )
        ]  # fmt: skip
        figures[str(model[0])] = [f"τ {row['temperature']}" for row in each], lines
    return figures


def interval_name(edge: int, edges: list[int]) -> str:
    """`100–199` for the interval from 100 to the next edge, `500+` for the last."""
    later = [e for e in edges if e > edge]
    return f"{edge}–{min(later) - 1}" if later else f"{edge}+"


def _error(row: dict[str, Any], name: str) -> float | None:
    error: float | None = row[f"{name.removesuffix('_mean')}_se_superpopulation"]
    return error


def _length(row: dict[str, Any], tables: Tables) -> str:
    if row["collapse_gap"] is None:
        return "Length collapse cannot be measured: fewer than two length intervals hold at least 30 texts."
    cells = tables["length_collapse"].filter(
        (pl.col("model") == row["model"])
        & (pl.col("temperature") == row["temperature"])
        & (pl.col("interval_a") == pl.col("interval_b"))
    )
    edges = sorted(tables["length_collapse"]["interval_a"].unique().to_list())
    ends = [cells.filter(pl.col("interval_a") == row[key]).to_dicts()[0] for key in ("gap_shortest", "gap_longest")]
    names = [interval_name(end["interval_a"], edges) for end in ends]
    values = [with_error(end["cosine_mean"], end["cosine_se_superpopulation"]) for end in ends]
    gap = with_error(row["collapse_gap"], row["collapse_gap_se_superpopulation"])
    if not beyond_noise(row["collapse_gap"], row["collapse_gap_se_superpopulation"]):
        start = "Longer texts do not collapse measurably: no difference beyond noise"
    elif row["collapse_gap"] > 0:
        start = "Longer texts lie closer together"
    else:
        start = "Longer texts lie further apart, the opposite of length collapse"
    return (
        f"{start}. At τ {row['temperature']} two texts of {names[1]} tokens have a mean cosine of {values[1]}, "
        f"two of {names[0]} tokens {values[0]}: a collapse gap of {gap}."
    )


def _prefix(row: dict[str, Any], tables: Tables) -> str:
    if row["prefix_gap"] is None:
        return (
            "How much of that is length itself is not known: fewer than 30 texts are long enough for the prefix probe, "
            "or it was left out."
        )
    probe = tables["prefix_probe"].filter((pl.col("model") == row["model"]) & (pl.col("temperature") == row["temperature"]))
    first, last, texts = probe["prefix_tokens"].min(), probe["prefix_tokens"].max(), probe["texts"][0]
    gap = with_error(row["prefix_gap"], row["prefix_gap_se_superpopulation"])
    seen = beyond_noise(row["prefix_gap"], row["prefix_gap_se_superpopulation"])
    start = "Length itself does part of this" if seen and row["prefix_gap"] > 0 else (
        "Length itself drives texts apart here" if seen else "Of length itself there is no effect beyond noise"
    )  # fmt: skip
    return (
        f"{start}: the same {texts:,} texts, cut to {first} and to {last} tokens, change their mean cosine by {gap}; "
        "what remains of the gap is that long texts are also about other things."
    )


def _effect(reference: dict[str, Any], row: dict[str, Any], effects: list[dict[str, Any]]) -> str:
    found = {e["figure"]: e for e in effects if e["temperature"] == row["temperature"]}
    labels = {
        "collapse_gap": "the collapse gap",
        "prefix_gap": "the prefix gap",
        "cosine_mean": "mean cosine",
        "socm_mean": "mean SOCM",
    }
    moved, still = [], []
    for figure, label in labels.items():
        effect = found.get(figure)
        if effect is None:
            continue
        if beyond_noise(effect["change"], effect["change_se_superpopulation"]):
            moved.append(f"{label} by {with_error(effect['change'], effect['change_se_superpopulation'])}")
        else:
            still.append(label)
    text = f"τ {row['temperature']} against τ {reference['temperature']}, on the same texts: "
    text += f"it moves {', '.join(moved)}" if moved else "no difference beyond noise"
    if moved and still:
        text += f"; no difference beyond noise in {', '.join(still)}"
    return text + ". Whether that helps is for downstream scores to say; a changed τ means embedding the whole index again."


def _second_order(row: dict[str, Any]) -> str:
    if row["socm_mean"] is None:
        return "Second-order collapse was not measured: no SOCM sample."
    value = with_error(row["socm_mean"], row["socm_se_superpopulation"])
    return (
        f"Second-order collapse: mean SOCM {value} over all pairs of {row['socm_texts']:,} texts at τ {row['temperature']}. "
        "In print, on 1,000 Wikipedia sentences and with a regulariser that lowers it: bert-base-uncased .396, "
        "all-MiniLM-L12-v2 .313, e5-base-v2 .029, gte-base .018."
    )


def _assumptions(row: dict[str, Any]) -> str:
    share = f"{100 * row['spread_over_2_share']:.0f} %"
    over = (
        ""
        if row["socm_over_1_share"] is None
        else f", and {100 * row['socm_over_1_share']:.1f} % of the pairs have SOCM above 1"
    )
    cut = f"{100 * row['truncated_share']:.1f} %"
    return (
        f"Assumptions: {share} of the texts have tr Σ > 2, which the papers take never to happen{over}; "
        f"{cut} of the texts were truncated."
    )
