"""One question for each table, and the line of polars that answers it, for docs/tables.md.

RUN stands for a run's folder, NIGHTS for the folder of the nights, COMPARED for the folder of `tempscale compare --out`.
"""

PLACES = {
    "history": "NIGHTS/history/part-*.parquet",
    "compared_figures": "COMPARED/compared_figures.parquet",
    "compared_intervals": "COMPARED/compared_intervals.parquet",
    "compared_texts": "COMPARED/compared_texts.parquet",
    "swap_neighbours": "COMPARED/swap_neighbours.parquet",
    "swap_thresholds": "COMPARED/swap_thresholds.parquet",
    "swap_examples": "COMPARED/swap_examples.parquet",
    "texts": "RUN/texts/",
    "factors": "RUN/factors/",
    "neighbours": "RUN/neighbours/",
    "rejected": "RUN/rejected/*.parquet",
    "shards": "RUN/shards/*.parquet",
}
"""The paths of tables that are not in RUN/tables/NAME.parquet."""

QUESTIONS = {
    "findings": (
        "Which figures differ from what is expected by more than noise?",
        '.filter(pl.col("state").is_in(["up", "down"])).select("figure", "temperature", "value", "error")',
    ),
    "length_collapse": (
        "Are texts of one length closer together, the longer they are?",
        '.filter(pl.col("interval_a") == pl.col("interval_b"))',
    ),
    "collapse_summary": (
        "Which temperature gives the smallest gap between long and short texts?",
        '.sort("collapse_gap").select("temperature", "collapse_gap")',
    ),
    "prefix_probe": (
        "How does the mean cosine of the same texts grow with their length?",
        '.pivot("prefix_tokens", index="temperature", values="cosine_mean")',
    ),
    "decomposition": (
        "Is it pooling, context, length or topic that brings longer texts together?",
        '.select("figure", "value", "se")',
    ),
    "positions": (
        "Which part of a text does its vector follow?",
        '.pivot("tenth", index=["temperature", "tokens"], values="cosine")',
    ),
    "exposure": (
        "Whose texts take more than their share of the results, beyond noise?",
        '.filter(pl.col("exposure") - 2 * pl.col("exposure_se") > 1)',
    ),
    "group_exposure": (
        "Which groups attract themselves most?",
        '.sort("stays").select("by", "group", "stays", "stays_se", "stays_expected")',
    ),
    "group_cosine": (
        "Is a group nearer to itself than to others?",
        '.pivot("group_b", index=["by", "group_a"], values="cosine_mean")',
    ),
    "what_if": (
        "How many nearest texts does each variant keep, and at how many bytes?",
        '.filter(pl.col("by").is_null()).select("what", "neighbours_kept", "vector_bytes")',
    ),
    "what_if_thresholds": (
        "Which threshold replaces mine, if the model changes?",
        '.filter(pl.col("by").is_null()).select("what", "threshold", "new_threshold", "stay", "stay_se")',
    ),
    "served_recall": (
        "Of texts of which length does the index lose most?",
        '.filter(pl.col("by") == "text_length", pl.col("k") == pl.col("k").max()).sort("recall")',
    ),
    "served_missed": (
        "Which ten texts do most queries miss?",
        '.sort("exact_times", descending=True).head(10).select("text_id", "exact_times", "served_times")',
    ),
    "exposure_corrected": (
        "What would a correction by length make of whose texts win?",
        '.sort("k").select("interval", "exposure", "neighbours_kept")',
    ),
    "cosine_histogram": (
        "How many pairs of texts have a cosine of at least 0.5?",
        '.filter(pl.col("cosine_from") >= 0.5).select(pl.sum("pairs"))',
    ),
    "near_duplicates": ("Which texts are almost the same?", '.filter(pl.col("cosine") > 0.999)'),
    "collapsed_texts": (
        "Which three texts are nearest to all others, or in most result lists?",
        '.filter(pl.col("rank") <= 3)',
    ),
    "query_cosines": (
        "How near is the nearest text of each query?",
        '.filter(pl.col("interval").is_null()).select("cosine_from", "pairs")',
    ),
    "named_texts": (
        "Which texts does nearly every query get?",
        '.filter(pl.col("times") > 0.1 * pl.col("askers")).select("text_id", "kinds", "times", "excerpt")',
    ),
    "removal": (
        "Which lengths gain most if the texts in remove.txt go?",
        '.sort(pl.col("times_after") / pl.col("times_before")).select("interval", "exposure_before", "exposure_after")',
    ),
    "socm": ("Between which lengths does mean pooling lose most?", '.sort("socm_mean", descending=True).head(5)'),
    "socm_pairs": ("Which ten pairs are the most collapsed?", '.filter(pl.col("ranking") == "socm", pl.col("rank") <= 10)'),
    "socm_search": (
        "Which share of all pairs had to be computed?",
        '.select("ranking", pl.col("kept_by_factors") / pl.col("pairs"))',
    ),
    "socm_scatter": (
        "How many pairs are in each band of d_Σ?",
        '.filter(kind="bin").group_by("d_sigma").agg(pl.sum("pairs"))',
    ),
    "temperature_effect": (
        "Which figures does a temperature change by more than noise?",
        '.filter(pl.col("change").abs() > 2 * pl.col("change_se"))',
    ),
    "excerpts": ("How do the longest texts with an excerpt begin?", '.sort("characters", descending=True).head(5)'),
    "gate": ("Why did the night fail?", '.filter(pl.col("verdict").is_in(["failed", "not measured"]))["reason"]'),
    "history": (
        "How has the collapse gap moved from night to night?",
        '.sort("night").select("night", "collapse_gap", "gate")',
    ),
    "compared_figures": (
        "What did the model or the temperature do to the same texts?",
        '.select("figure", "change_same_texts", "change_same_texts_se")',
    ),
    "compared_intervals": (
        "Did cosines change, or did lengths?",
        '.group_by("temperature").agg(pl.sum("by_cosine", "by_lengths"))',
    ),
    "compared_texts": (
        "Which texts moved most without being edited?",
        '.filter(~pl.col("edited")).sort("rank").head(10)',
    ),
    "swap_neighbours": (
        "How many nearest texts does the new model keep, by length?",
        '.drop_nulls("by").select("group", "neighbours_kept", "neighbours_kept_se")',
    ),
    "swap_thresholds": (
        "Which threshold replaces mine, and which pairs stay?",
        '.filter(pl.col("by").is_null()).select("threshold", "passes", "new_threshold", "stay", "stay_se")',
    ),
    "swap_examples": (
        "Which texts get other results, and which?",
        '.sort("rank").select("text_id", "lost", "gained")',
    ),
    "verified": ("Which rows must be embedded again?", '.filter(pl.col("wrong")).select("text_id", "cause")'),
    "verify_summary": (
        "Which source has wrong vectors, and at least how many?",
        '.drop_nulls("by").sort("low", descending=True).select("group", "wrong", "sampled", "low")',
    ),
    "pairs": ("Which pairs does mean pooling separate worst?", '.sort("socm", descending=True).head(10)'),
    "pairs_summary": (
        "Which temperature changes the mean SOCM by more than noise?",
        '.filter(pl.col("socm_change").abs() > 2 * pl.col("socm_change_se"))',
    ),
    "layers": (
        "In which layers do the tokens of a text move together?",
        '.group_by("layer").agg(pl.mean("within_cosine")).sort("layer")',
    ),
    "heads": ("Which heads filter most?", '.group_by("layer", "head").agg(pl.mean("sigma_a")).sort("sigma_a").head(5)'),
    "spectrum_by_length": ("Does σ_a fall with length?", '.select("tau", "interval", "sigma_a_last_mean", "sigma_a_mean")'),
    "layer_summary": (
        "How much of the difference between tokens does each layer keep, over all texts?",
        '.filter(pl.col("interval").is_null()).select("layer", "hc_ratio_mean")',
    ),
    "diagnose_findings": (
        "Which differences are more than noise?",
        '.filter(pl.col("change").abs() > 2 * pl.col("change_se"))',
    ),
    "equal_norms": ("Is S2's Appendix J right about these texts?", '.select("tau", "norm_variation_mean", "agree_share")'),
    "repeated_tokens": (
        "Do texts without a common token become more similar with length?",
        '.sort("tokens").select("tokens", "cosine_mean", "cosine_se")',
    ),
    "two_texts": ("Where are the tokens of both texts?", '.drop_nulls("place").select("side", "token", "x", "y")'),
    "map": ("Which texts are farthest from the origin?", '.sort("origin_distance", descending=True).head(5)'),
    "evaluation": (
        "Which scores does a temperature change by more than noise?",
        '.filter(pl.col("change").abs() > 2 * pl.col("change_se"))',
    ),
    "evaluation_types": (
        "Which temperature suits which type of task?",
        '.filter(over="type").select("type", "temperature", "score")',
    ),
    "evaluation_lengths": (
        "Which temperature is the best for each length?",
        '.filter("best").select("task", "interval", "temperature")',
    ),
    "evaluation_ends": (
        "Are long documents found later than short ones?",
        '.filter(figure="rank").select("temperature", "end", "value")',
    ),
    "evaluation_roles": (
        "Is a temperature for queries alone better?",
        '.sort("score", descending=True).select("case", "score")',
    ),
    "evaluation_correlations": ("Is SOCM correlated with the mean score?", '.filter(pl.col("task").is_null())'),
    "evaluation_models": (
        "What did training change of the backbone?",
        '.select("model", "backbone", "score_change", "socm_change")',
    ),
    "evaluation_items": (
        "Which queries have the lowest scores?",
        '.sort("value", nulls_last=True).select("item", "value").head(10)',
    ),
    "evaluation_relevant": (
        "How long are the relevant documents that were not found?",
        '.filter(pl.col("rank").is_null())["tokens"].mean()',
    ),
    "tuning_scores": (
        "Which temperature was chosen, and what did it gain on the held-out part?",
        '.filter("chosen").select("temperature", "held_change", "reason")',
    ),
    "tuning_collapse": ("Why was each candidate chosen or not?", '.select("temperature", "eligible", "chosen", "reason")'),
    "tuning_exposure": (
        "Which fifth of the documents by length is shown most, and what do corrections make of it?",
        '.sort("exposure").select("correction", "tokens_to", "exposure")',
    ),
    "tuning_intervals": (
        "Which lengths does a candidate bring closer together?",
        '.filter(pl.col("change") > 2 * pl.col("change_se"))',
    ),
    "texts": (
        "Which texts break the papers' assumption tr Σ ≤ 2?",
        '.filter(pl.col("spread") > 2).select("temperature", "text_id")',
    ),
    "factors": ("Which texts are in the SOCM sample?", '.select("model", "temperature", "text_id", "rank")'),
    "neighbours": ("Which texts does a text find first?", '.select("text_id", pl.col("neighbours").list.first())'),
    "rejected": ("Why were rows not analysed?", '.group_by("reason").len("rows").sort("rows", descending=True)'),
    "shards": ("Which texts of an unfinished run were cut?", '.filter("cut").select("text_id")'),
}
"""For each table, a question and the polars code after `pl.read_parquet(...)` that answers it."""


def example(table: str) -> tuple[str, str]:
    """The question of a table, and the line that answers it after `import polars as pl`."""
    question, rest = QUESTIONS[table]
    place = PLACES.get(table, f"RUN/tables/{table}.parquet")
    # Each folder is one model and temperature; both become columns.
    options = ", hive_partitioning=True" if place.endswith("/") else ""
    return question, f'pl.read_parquet("{place}"{options}){rest}'
