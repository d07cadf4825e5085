"""The Arrow schemas of an audit's tables: the type, unit and meaning of each column.

`docs/tables.md` is generated from it.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tempscale.collapse.aggregates import BINS
from tempscale_jobs.tables.columns import BIG, BOOL, FLOAT, INT, KEY, TEXT, Column, Table, with_error

_BIN = f"1/{BINS // 2}"
"""The width of a bin of cosines, which reach from −1 to 1."""

_CELL = (
    Column("interval_a", INT, "tokens", "lower edge of one text's length interval"),
    Column("interval_b", INT, "tokens", "lower edge of the other text's; interval_a ≤ interval_b, pairs are unordered"),
)
SHARDS = Table(
    "shards",
    "the texts to analyse, as read; removed when the run completes",
    (
        Column("text_id", TEXT, "", "the corpus's id, as a string"),
        Column("text", TEXT, "", "the text, cut at max_characters"),
        Column("content_sha", TEXT, "", "sha256 of the text as it is analysed"),
        Column("cut", BOOL, "", "whether the text was cut by characters"),
        Column("document", pa.int64(), "", "digest of its document's name; null where it has none"),
        Column("source_row", pa.int64(), "", "its place in the source where these are not all of its texts, otherwise null"),
    ),
)

REJECTED = Table(
    "rejected",
    "rows that were not analysed",
    (
        Column("text_id", TEXT, "", "the row's id where it has a readable one, else null"),
        Column("place", TEXT, "", "where the row stands: file and row, from 0"),
        Column("reason", TEXT, "", "why it was not analysed"),
    ),
)


def with_groups(table: Table) -> Table:
    """`shards` or `texts` of a run with --by."""
    return replace(table, columns=(*table.columns, Column("groups", pa.list_(TEXT), "", "its value of each column of --by")))


def texts(dim: int, groups: bool = False) -> Table:
    """The table of embedded texts, for embeddings of `dim` dimensions, and the `groups` of --by."""
    table = Table(
        "texts",
        "one row a text: its embedding and its token statistics",
        (
            Column("text_id", TEXT, "", "the corpus's id, as a string"),
            Column("content_sha", TEXT, "", "sha256 of the text"),
            Column("document", pa.int64(), "", "digest of the name of the document it is a part of; null where it has none"),
            Column("tokens", INT, "tokens", "what the model saw: special tokens included, after truncation"),
            Column("truncated", BOOL, "", "whether the model saw less than the text"),
            Column("embedding", pa.list_(pa.float32(), dim), "", "unit-norm text embedding"),
            Column("mean_norm", pa.float32(), "", "‖μ‖, the norm of the mean token embedding"),
            Column("spread", pa.float32(), "", "tr Σ after scaling to ‖μ‖ = 1 (S2 eqs. 8, 12)"),
            Column("within_cosine", pa.float32(), "", "mean cosine over pairs of tokens (S2 H.2)"),
            Column("source_row", pa.int64(), "", "its place in the source; null where the parts are in the source's order"),
        ),
    )
    return with_groups(table) if groups else table


def factors(dim: int) -> Table:
    """The table of covariance factors of the SOCM sample."""
    return Table(
        "factors",
        "one row a sampled text: unit mean and covariance factor F (rank × dim, row-major), Σ = FᵀF",
        (
            Column("text_id", TEXT, "", "the corpus's id"),
            Column("tokens", INT, "tokens", "what the model saw"),
            Column("mean", pa.list_(pa.float32(), dim), "", "mean token embedding, scaled to unit norm"),
            Column("rank", INT, "", "rows of the factor, min(tokens, dim)"),
            Column("factor", pa.large_list(pa.float32()), "", "F, row-major"),
        ),
    )


LENGTH_COLLAPSE = Table(
    "length_collapse",
    "pairwise cosine inside and between length intervals, over all unordered pairs",
    (
        *KEY, *_CELL,
        Column("texts_a", BIG, "texts", "texts in interval_a"),
        Column("texts_b", BIG, "texts", "texts in interval_b"),
        Column("pairs", BIG, "pairs", "unordered pairs of the cell"),
        *with_error("cosine_mean", "mean cosine"),
        Column("cosine_std", FLOAT, "", "standard deviation over pairs"),
        Column("cosine_p05", FLOAT, "", f"5th percentile, to one bin of {_BIN}; null without the full pass"),
        Column("cosine_p50", FLOAT, "", f"median, to one bin of {_BIN}; null without the full pass"),
        Column("cosine_p95", FLOAT, "", f"95th percentile, to one bin of {_BIN}; null without the full pass"),
        Column("near_duplicates", BIG, "pairs", "pairs whose cosine reaches the threshold; null without the full pass"),
    ),
)  # fmt: skip

COSINE_HISTOGRAM = Table(
    "cosine_histogram",
    "how many pairs of texts have which cosine, inside and between length intervals; without rows where not every pair is "
    "compared",
    (
        *KEY, *_CELL,
        Column("cosine_from", FLOAT, "", f"lower edge of the bin, of width {_BIN}"),
        Column("cosine_to", FLOAT, "", "upper edge"),
        Column("pairs", BIG, "pairs", "unordered pairs of the cell in the bin; bins without pairs have no row"),
    ),
)  # fmt: skip

QUERY_COSINES = Table(
    "query_cosines",
    "how many pairs of a query and a text have which cosine, by the text's length; at the first temperature",
    (
        *KEY,
        Column("interval", INT, "tokens", "lower edge of the text's length interval; null: queries by their nearest text"),
        Column("cosine_from", FLOAT, "", f"lower edge of the bin, of width {_BIN}"),
        Column("cosine_to", FLOAT, "", "upper edge"),
        Column("pairs", BIG, "pairs", "pairs in the bin, or queries where interval is null; no row without any"),
    ),
)

_ASKED_BY = Column(
    "asked_by", TEXT, "", "`corpus`: its texts, all or a sample, ask for their nearest others; `queries`: a file"
)
_K = Column("k", INT, "texts", "nearest texts of each")
_EXPOSURE = with_error("exposure", "slots_share over texts_share; 1 is fair")
_SLOTS_SHARE = Column("slots_share", FLOAT, "share", "its share of all results: places in lists of nearest texts")
ASKERS = Column("askers", BIG, "texts", "how many asked")
BY = Column("by", TEXT, "", "`length`, or a column of --by; null for all")
GROUP = Column(
    "group", TEXT, "", "lower edge of the length interval, or the column's value; `(none)`: null, `(others)`: joined groups"
)
EXCERPT = Column("excerpt", TEXT, "", "its first 280 characters; null where they are not known or not shown")

EXPOSURE = Table(
    "exposure",
    "who takes the search results: the share of the results by length interval against its share of the texts",
    (
        *KEY,
        _ASKED_BY,
        Column("queries", BIG, "texts", "how many asked"),
        _K,
        Column("interval", INT, "tokens", "lower edge of the length interval"),
        Column("texts", BIG, "texts", "texts in it"),
        Column("texts_share", FLOAT, "share", "its share of the texts"),
        _SLOTS_SHARE,
        *_EXPOSURE,
        Column("k_occurrence_skewness", FLOAT, "", "skewness of the k-occurrence N_k: hubness; null if a sample asked"),
        Column("reciprocity", FLOAT, "share", "neighbour relations that hold both ways; null unless every text asks"),
    ),
)

NAMED_TEXTS = Table(
    "named_texts",
    "the hubs and copies that most askers have among their nearest, at most 20; at the first temperature, not with --quick",
    (
        *KEY, _ASKED_BY, _K,
        Column("rank", INT, "", "place, from 1"),
        Column("text_id", TEXT, "", "the text"),
        Column(
            "kinds",
            TEXT,
            "",
            "`hub`: found five times as often as the mean text of its length, and more often than by chance; `tiny`: a hub "
            "of fewer than 8 tokens; `copy`: has near-duplicates; joined by a comma",
        ),
        Column("times", BIG, "texts", "how many askers have it"),
        ASKERS,
        Column("tokens", INT, "tokens", "its length"),
        Column("near_duplicates", BIG, "texts", "its near-duplicates"),
        Column("goes", BOOL, "", "whether it is in remove.txt, of the first model: a hub, or a near-duplicate of one above"),
        EXCERPT,
    ),
)  # fmt: skip

REMOVAL = Table(
    "removal",
    "the nearest texts of the same askers (queries, or up to 20,000 texts) before and after those in remove.txt go; texts "
    "that go do not ask afterwards",
    (
        *KEY, _ASKED_BY, _K,
        Column("interval", INT, "tokens", "lower edge of the length interval; null for all texts"),
        ASKERS,
        Column("texts", BIG, "texts", "texts before"),
        Column("never", BIG, "texts", "texts that no query finds; null where texts ask"),
        Column("never_share", FLOAT, "share", "their share of the texts"),
        Column("removed", BIG, "texts", "texts that go"),
        Column("slots_moved", BIG, "", "places that they leave in other askers' lists"),
        Column("askers_changed", BIG, "texts", "askers that get other texts; null by length"),
        Column("times_before", FLOAT, "texts", "mean number of askers that have a text that stays"),
        Column("times_after", FLOAT, "texts", "the same afterwards"),
        *with_error("exposure_before", "as in exposure; null for all texts"),
        *with_error("exposure_after", "the same afterwards"),
    ),
)  # fmt: skip

EXPOSURE_CORRECTED = Table(
    "exposure_corrected",
    "the same if a correction by length were taken off the cosine, which needs no new embeddings; for the first temperature",
    (
        *EXPOSURE.columns,
        Column(
            "correction",
            TEXT,
            "",
            "the correction, fitted to half of what asks; the other half asks here: docs/short-texts-win.md",
        ),
        Column(
            "neighbours_kept",
            FLOAT,
            "share",
            "of the nearest texts of askers of this length, those that are nearest still; null for k = 1 beside more",
        ),
    ),
)

NEAR_DUPLICATES = Table(
    "near_duplicates",
    "the pairs of largest cosine among those that reach the threshold of a near-duplicate",
    (
        *KEY,
        Column("rank", INT, "", "place, from 1"),
        Column("text_id_a", TEXT, "", "one text"),
        Column("text_id_b", TEXT, "", "the other; text_id_a < text_id_b"),
        Column("tokens_a", INT, "tokens", "length of one text"),
        Column("tokens_b", INT, "tokens", "length of the other"),
        Column("cosine", FLOAT, "", "cosine"),
    ),
)

WHAT_IF = Table(
    "what_if",
    "what variants of the vectors would change in searches",
    (
        *KEY,
        Column("what", TEXT, "", "the variant; empty for the vectors as they are"),
        BY, GROUP, _ASKED_BY, _K, ASKERS,
        Column("neighbours_kept", FLOAT, "share", "nearest texts of the vectors as they are that it finds; not of chunks"),
        Column("neighbours_kept_se", FLOAT, "", "its standard error over askers, or their documents"),
        Column("near_duplicates", BIG, "", "their nearest texts that are near-duplicates"),
        *_EXPOSURE,
        Column("exposure_change", FLOAT, "", "less that of the vectors as they are"),
        Column("exposure_change_se_superpopulation", FLOAT, "", "its standard error"),
        Column("collapse_gap", FLOAT, "", "of the askers with all texts of their length; null of groups, and of queries"),
        Column("collapse_gap_se_superpopulation", FLOAT, "", "its standard error"),
        Column("collapse_gap_change", FLOAT, "", "less that of the vectors as they are; null for chunks and other models"),
        Column("collapse_gap_change_se_superpopulation", FLOAT, "", "its standard error"),
        Column("vector_bytes", FLOAT, "bytes", "bytes of a stored vector"),
        Column("vectors", BIG, "", "stored vectors: one a text, or one a chunk"),
        Column("truncated_share", FLOAT, "share", "texts or chunks that the model does not read to their end"),
        Column("texts_found", FLOAT, "", "different texts among the k nearest chunks"),
    ),
)  # fmt: skip

CARRIED = (
    Column("threshold", FLOAT, "", "a cosine of today's vectors (A); a group's pairs are of two texts of it"),
    Column("over", TEXT, "", "`corpus`: shares are of all pairs, from both histograms; `sample`: of 2,000 texts"),
    Column("pairs", BIG, "pairs", "pairs that the shares are of"),
    Column("passes", FLOAT, "share", "pairs that reach the threshold today"),
    Column("passes_se", FLOAT, "", "its standard error for other texts, or documents; null where it is not known"),
    Column("new_threshold", FLOAT, "", "of the new vectors (B), as many reach it; null where fewer than 10 pairs pass"),
    Column("new_threshold_low", FLOAT, "", "lower end of its 95 % interval"),
    Column("new_threshold_high", FLOAT, "", "upper end"),
    Column("accepted", BIG, "pairs", "pairs of the sample that reach the threshold today"),
    Column("stay", FLOAT, "share", "of these, those that reach new_threshold; null for fewer than 10"),
    Column("stay_se", FLOAT, "", "its standard error for other texts, or documents"),
)  # fmt: skip
"""A threshold of random pairs of two texts, and what replaces it where the vectors are others."""
WHAT_IF_THRESHOLDS = Table(
    "what_if_thresholds",
    "thresholds carried over to another model: the cosine that as many random pairs reach, and the pairs that stay",
    (*KEY, Column("what", TEXT, "", "the other model, as `model:NAME`"), BY, GROUP, *CARRIED),
)

GROUP_EXPOSURE = Table(
    "group_exposure",
    "`exposure` by the groups that a column names, and whether a group attracts itself",
    (
        *KEY, BY, GROUP, _ASKED_BY, _K,
        Column("texts", BIG, "texts", "texts in it"),
        Column("texts_share", FLOAT, "share", "its share of the texts"),
        _SLOTS_SHARE,
        *_EXPOSURE,
        Column("stays", FLOAT, "share", "results of this group's askers that are texts of it; null without askers"),
        Column("stays_se", FLOAT, "", "its standard error for other texts, or documents; null if 0 or below 30 askers"),
        Column("stays_expected", FLOAT, "share", "the same if groups did not matter: its share of the other texts"),
    ),
)  # fmt: skip

GROUP_COSINE = Table(
    "group_cosine",
    "mean cosine of the pairs of texts inside and between the 12 largest groups of a column",
    (
        *KEY, BY,
        Column("group_a", TEXT, "", "one text's group"),
        Column("group_b", TEXT, "", "the other's, which is not larger"),
        Column("pairs", BIG, "pairs", "unordered pairs"),
        Column("cosine_mean", FLOAT, "", "mean cosine, exact"),
        Column("cosine_mean_se_superpopulation", FLOAT, "", "its standard error for other texts, or documents"),
    ),
)  # fmt: skip

OF_QUERIES, OF_TEXTS = "length", "text_length"
"""What `served_recall` is by, beside the columns of --by: the length of a query, or of an exact nearest text."""
SERVED_RECALL = Table(
    "served_recall",
    "how many of the exact nearest texts of the queries an index returned",
    (
        *KEY,
        Column("by", TEXT, "", "`length` of the query; `text_length`, or a column, of the exact nearest text; null for all"),
        GROUP,
        Column("k", INT, "", "exact nearest texts of a query, and as many served ones"),
        Column("queries", BIG, "", "queries with results that have such nearest texts"),
        Column("without_results", BIG, "", "queries without results, which count in no recall; null in rows about texts"),
        Column("fewer_results", BIG, "", "queries with fewer than k results; null in rows about texts"),
        Column("exact", BIG, "", "exact nearest texts of these queries, each as often as it is one"),
        Column("recall", FLOAT, "share", "of these, those among the first k served, or as near as the k-th"),
        Column("recall_se", FLOAT, "", "its standard error over queries, or their documents"),
        Column("difference_se", FLOAT, "", "that of the recall less the recall of all"),
        Column("exact_texts", BIG, "texts", "different texts among them; null by length"),
        Column("never_served", BIG, "texts", "of these, those never among the first k served"),
    ),
)

SERVED_MISSED = Table(
    "served_missed",
    "the 100 most missed texts: exact nearest of two queries or more, and never among the first k served",
    (
        *KEY,
        Column("text_id", TEXT, "", "the text"),
        Column("tokens", INT, "tokens", "its length"),
        Column("exact_times", BIG, "", "queries that miss it"),
        Column("served_times", BIG, "", "rows of the results that have it, at any rank"),
    ),
)

NEIGHBOURS = Table(
    "neighbours",
    "the k-nearest-neighbour graph of the corpus, one row a text, below neighbours/; of the queries, below queries/",
    (
        Column("text_id", TEXT, "", "the text that asks"),
        Column("neighbours", pa.list_(TEXT), "", "its nearest texts, nearest first; ties by the keyed hashes of their ids"),
        Column("cosines", pa.list_(pa.float32()), "", "their cosines"),
    ),
)

COLLAPSE_SUMMARY = Table(
    "collapse_summary",
    "one row a model and temperature: the figures that matter",
    (
        *KEY,
        Column("texts", BIG, "texts", "texts analysed"),
        Column("documents", BIG, "documents", "their documents, as if of equal size: (Σn)²/Σn²; null without documents"),
        Column("corpus_texts", BIG, "texts", "usable texts of the corpus that they were drawn from"),
        Column("rejected", BIG, "texts", "rows of the corpus and texts that were not analysed: see rejected/"),
        Column("rows", BIG, "rows", "rows of the corpus that were read"),
        *with_error("rejected_share", "rows that were rejected when they were read, or would be by the model", "share"),
        Column("tokens", BIG, "tokens", "tokens the model saw"),
        *with_error("truncated_share", "texts of which the model saw only a part", "share"),
        *with_error("cosine_mean", "mean cosine over all pairs"),
        *with_error("collapse_gap", "mean cosine inside the longest interval of 30 texts or more minus in the shortest"),
        Column("gap_shortest", INT, "tokens", "lower edge of the shortest interval with at least 30 texts"),
        Column("gap_longest", INT, "tokens", "lower edge of the longest interval with at least 30 texts"),
        Column("gap_texts", BIG, "texts", "texts of that of the two that holds fewer"),
        Column("gap_documents", BIG, "documents", "the same in that of the two that has fewer; null likewise"),
        *with_error("prefix_gap", "mean cosine of the same texts at the longest prefix minus at the shortest"),
        Column("prefix_shortest", INT, "tokens", "the shortest prefix"),
        Column("prefix_longest", INT, "tokens", "the longest prefix"),
        Column("prefix_texts", BIG, "texts", "texts of the probe"),
        Column("prefix_documents", BIG, "documents", "the same of these texts; null likewise"),
        *with_error("exposure_short", "exposure of the shortest interval with at least 30 texts, at the largest k"),
        *with_error("exposure_long", "exposure of the longest interval with at least 30 texts, at the largest k"),
        Column("k_occurrence_skewness", FLOAT, "", "hubness at the largest k; null if a sample asked"),
        Column("reciprocity", FLOAT, "share", "as in `exposure`, at the largest k"),
        Column("near_duplicate_pairs", BIG, "pairs", "pairs whose cosine reaches the threshold of a near-duplicate"),
        Column("effective_rank", FLOAT, "", "exp(entropy of the eigenvalues of UᵀU/n); cannot exceed the number of texts"),
        Column("top_component", FLOAT, "share", "the largest of these eigenvalues over their sum"),
        *with_error("spread_mean", "mean of tr Σ over texts"),
        *with_error("spread_over_2_share", "texts with tr Σ > 2, which break the papers' assumption", "share"),
        *with_error("within_cosine_over_third_share", "texts with (n·w−1)/(n−1) ≥ 1/3 (S2 Appendix J)", "share"),
        Column("socm_texts", BIG, "texts", "texts that SOCM was measured on"),
        Column("socm_pairs", BIG, "pairs", "their pairs that were measured"),
        Column("socm_groups", BIG, "", "groups that the texts were dealt to; null where it is all pairs of a sample"),
        *with_error("socm_mean", "mean SOCM over all pairs of the corpus, or of the sample"),
        Column("socm_freedom", FLOAT, "", "degrees of freedom of its error: groups (of documents) less one, or texts"),
        *with_error("socm_over_1_share", "pairs with SOCM > 1", "share"),
        Column("verified_texts", BIG, "texts", "vectors that [verify] compared with the model's; null without it"),
        Column("wrong_share", FLOAT, "share", "vectors among these that are not the model's"),
    ),
)  # fmt: skip

PREFIX_PROBE = Table(
    "prefix_probe",
    "the same long texts cut to growing prefixes",
    (
        *KEY,
        Column("prefix_tokens", INT, "tokens", "tokens the model saw of each text"),
        Column("texts", BIG, "texts", "texts of the probe"),
        *with_error("cosine_mean", "mean cosine over all pairs of the probe at this prefix"),
    ),
)

DECOMPOSITION = Table(
    "decomposition",
    "what the prefix gap is made of under the first temperature: differences of mean cosines over all pairs of some of the "
    "probe's texts",
    (
        *KEY,
        Column(
            "figure", TEXT, "", "`prefix_gap`; its parts `pooling` (segments embedded apart and averaged) and `context`; "
            "`fixed_content`: the first segment repeated; `topic_change`: the first segment before those of other texts",
        ),
        Column("value", FLOAT, "", "long less short, or less the text itself"),
        Column("se", FLOAT, "", "its standard error for other texts, or documents"),
        Column("texts", BIG, "texts", "texts in it"),
        Column("tokens_short", INT, "tokens", "tokens of a segment and of the short prefix"),
        Column("tokens_long", INT, "tokens", "tokens of the long ones"),
    ),
)  # fmt: skip

POSITIONS = Table(
    "positions",
    "which tenth of a text its vector follows: the cosine of the text and itself with that tenth of another text",
    (
        *KEY,
        Column("tokens", INT, "tokens", "what the texts are cut to"),
        Column("tenth", INT, "", "1 to 10, from the beginning"),
        Column("cosine", FLOAT, "", "mean over the texts; lower where the vector follows the tenth more"),
        Column("se", FLOAT, "", "its standard error for other texts, or documents"),
        Column("texts", BIG, "texts", "texts in it"),
    ),
)

SOCM = Table(
    "socm",
    "second-order collapse inside and between length intervals, over the pairs of groups or of a sample",
    (
        *KEY, *_CELL,
        Column("pairs", BIG, "pairs", "unordered pairs of the cell that were measured"),
        Column("groups", BIG, "", "groups that have such pairs; fewer than ten give no error; null for a sample"),
        Column("d_mu_mean", FLOAT, "", "mean d_μ = (1−cos)/2 of the token means"),
        Column("d_sigma_mean", FLOAT, "", "mean d_Σ"),
        *with_error("socm_mean", "mean SOCM = (1−d_μ)·d_Σ"),
        Column("socm_p50", FLOAT, "", "median"),
        Column("socm_p50_se", FLOAT, "", "its standard error; null for a sample"),
        Column("socm_p95", FLOAT, "", "95th percentile"),
        Column("socm_p95_se", FLOAT, "", "its standard error; null for a sample"),
        *with_error("socm_over_1_share", "pairs with SOCM > 1", "share"),
        Column("exact", BOOL, "", "whether d_Σ is the equation's own: no ε, every singular value"),
        Column("d_sigma_error", FLOAT, "", "certified: largest error of a d_Σ of the cell, for want of singular values"),
    ),
)  # fmt: skip

SOCM_PAIRS = Table(
    "socm_pairs",
    "the most collapsed pairs of the sample",
    (
        *KEY,
        Column(
            "over",
            TEXT,
            "",
            "`largest_trace`: all pairs of the texts of largest tr Σ in the groups (`socm_ranked`); "
            "`sample`: all pairs of the SOCM sample; `corpus`: all pairs of all texts; each exactly",
        ),
        Column("ranking", TEXT, "", "`socm`: largest SOCM; `same_mean`: largest d_Σ among the pairs of highest cosine"),
        Column("rank", INT, "", "place in the ranking, from 1"),
        Column("text_id_a", TEXT, "", "one text"),
        Column("text_id_b", TEXT, "", "the other; text_id_a < text_id_b"),
        Column("tokens_a", INT, "tokens", "length of one text"),
        Column("tokens_b", INT, "tokens", "length of the other"),
        Column("d_mu", FLOAT, "", "d_μ"),
        Column("d_sigma", FLOAT, "", "d_Σ"),
        Column("socm", FLOAT, "", "SOCM"),
        Column("cosine", FLOAT, "", "cosine of the two embeddings; 1 − 2·d_μ where they are the token means"),
    ),
)

SOCM_SEARCH = Table(
    "socm_search",
    "how the most collapsed pairs of the whole corpus were found: what each bound left",
    (
        *KEY,
        Column("ranking", TEXT, "", "as in socm_pairs"),
        Column(
            "threshold",
            FLOAT,
            "",
            "value that the bound by traces was held against; as many pairs as are ranked reach it",
        ),
        Column("pairs", BIG, "pairs", "pairs of the corpus"),
        Column("kept_by_traces", BIG, "pairs", "pairs that d_Σ ≤ (tr Σ_1 + tr Σ_2)/4 left"),
        Column("kept_by_factors", BIG, "pairs", "of these, pairs that bounds from factors left; their d_Σ is exact"),
        Column("texts", BIG, "texts", "texts whose factors were computed again"),
    ),
)

SOCM_SCATTER = Table(
    "socm_scatter",
    "the plane of (d_μ, d_Σ): a histogram of all pairs of the sample, and seeded pairs of it",
    (
        *KEY,
        Column("kind", TEXT, "", "`bin` or `pair`"),
        Column("d_mu", FLOAT, "", "lower edge of the bin, or the pair's value"),
        Column("d_sigma", FLOAT, "", "lower edge of the bin, or the pair's value"),
        Column("d_mu_width", FLOAT, "", "width of the bin; 0 for a pair"),
        Column("d_sigma_width", FLOAT, "", "width of the bin; 0 for a pair"),
        Column("pairs", BIG, "pairs", "pairs in the bin; 1 for a pair"),
    ),
)

TEMPERATURE_EFFECT = Table(
    "temperature_effect",
    "what a temperature changes against the model's first one, from per-text differences on the same texts",
    (
        *KEY,
        Column("reference", TEXT, "", "canonical text of the temperature it is compared with"),
        Column("figure", TEXT, "", "column of collapse_summary"),
        Column(
            "interval", INT, "tokens", "of `cosine_mean` inside a length: its first number of tokens; null for all texts"
        ),
        Column("reference_value", FLOAT, "", "the figure under the reference"),
        Column("value", FLOAT, "", "the figure under this temperature"),
        *with_error("change", "value − reference_value"),
        Column("texts", BIG, "texts", "texts that the differences were taken over"),
    ),
)

COLLAPSED_TEXTS = Table(
    "collapsed_texts",
    "the texts that lie nearest to all others, and those that stand in most result lists",
    (
        *KEY,
        Column(
            "ranking", TEXT, "", "`nearness`: mean cosine with all others; `hub`: how many have it among their k nearest"
        ),
        Column("rank", INT, "", "place in the ranking, from 1"),
        Column("text_id", TEXT, "", "the text"),
        Column("tokens", INT, "tokens", "its length"),
        Column("value", FLOAT, "", "mean cosine, or the k-occurrence N_k at the largest k"),
    ),
)

EXCERPTS = Table(
    "excerpts", "the beginnings of the texts that the ranking tables name; absent under --no-text", (
        Column("text_id", TEXT, "", "the corpus's id"),
        Column("characters", BIG, "characters", "length of the text as analysed"),
        Column("excerpt", TEXT, "", "its first 280 characters"),
    ),
)  # fmt: skip

TABLES = (
    LENGTH_COLLAPSE, COSINE_HISTOGRAM, QUERY_COSINES, COLLAPSE_SUMMARY, PREFIX_PROBE, DECOMPOSITION, POSITIONS, EXPOSURE,
    EXPOSURE_CORRECTED, NEAR_DUPLICATES,
    COLLAPSED_TEXTS, NAMED_TEXTS, REMOVAL, SOCM, SOCM_PAIRS, SOCM_SEARCH, SOCM_SCATTER, TEMPERATURE_EFFECT, WHAT_IF,
    WHAT_IF_THRESHOLDS, GROUP_EXPOSURE, GROUP_COSINE, SERVED_RECALL, SERVED_MISSED, EXCERPTS,
)  # fmt: skip
