"""The Arrow schema of every table: column, type, unit, meaning.

A reader who knows this file knows what a run leaves behind. `docs/tables.md` is generated from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """One kind of Parquet file."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def schema(self) -> pa.Schema:
        """The Arrow schema, each field with its unit and meaning as metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in self.columns],
            metadata={"table": self.name, "schema_version": str(SCHEMA_VERSION)},
        )

    def build(self, columns: dict[str, Any]) -> pa.Table:
        """A table from columns by name; a missing or unknown column is an error."""
        self._check(set(columns))
        return pa.Table.from_pydict(columns, schema=self.schema())

    def build_rows(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        """A table from rows; every row must have exactly the table's columns."""
        for row in rows:
            self._check(set(row))
        return pa.Table.from_pylist(list(rows), schema=self.schema())

    def _check(self, names: set[str]) -> None:
        if names != (own := {c.name for c in self.columns}):
            raise ValueError(f"{self.name}: missing columns {sorted(own - names)}, unknown columns {sorted(names - own)}")


_TEXT, _INT, _BIG, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()

_KEY = (
    Column("model", _TEXT, "", "short name of the model"),
    Column("temperature", _TEXT, "", "canonical text of the temperature schedule"),
    Column("tau", _FLOAT, "", "the temperature where it is one number, else null"),
    Column("schema_version", _INT, "", "version of this table's columns"),
)
KEY = _KEY
"""The columns that every table begins with."""
_CELL = (
    Column("interval_a", _INT, "tokens", "lower edge of one text's length interval"),
    Column("interval_b", _INT, "tokens", "lower edge of the other text's; interval_a ≤ interval_b, pairs are unordered"),
)
_SUPER = "the same without the finite-population correction: for comparing with another corpus or night"


def _with_error(name: str, meaning: str) -> tuple[Column, Column, Column]:
    return (
        Column(name, _FLOAT, "", meaning),
        Column(f"{name.removesuffix('_mean')}_se", _FLOAT, "", "standard error for this corpus; 0 when every text was used"),
        Column(f"{name.removesuffix('_mean')}_se_superpopulation", _FLOAT, "", _SUPER),
    )  # fmt: skip


SHARDS = Table(
    "shards",
    "the texts to analyse, as read; removed when the run completes",
    (
        Column("text_id", _TEXT, "", "the corpus's id, as a string"),
        Column("text", _TEXT, "", "the text, cut at max_characters"),
        Column("content_sha", _TEXT, "", "sha256 of the text as it is analysed"),
        Column("cut", _BOOL, "", "whether the text was cut by characters"),
    ),
)

REJECTED = Table(
    "rejected",
    "rows that were not analysed",
    (
        Column("text_id", _TEXT, "", "the row's id where it has a readable one, else null"),
        Column("place", _TEXT, "", "where the row stands: file and row, from 0"),
        Column("reason", _TEXT, "", "why it was not analysed"),
    ),
)


def texts(dim: int) -> Table:
    """The table of embedded texts, for embeddings of `dim` dimensions."""
    return Table(
        "texts",
        "one row a text: its embedding and its token statistics",
        (
            Column("text_id", _TEXT, "", "the corpus's id, as a string"),
            Column("content_sha", _TEXT, "", "sha256 of the text"),
            Column("tokens", _INT, "tokens", "what the model saw: special tokens included, after truncation"),
            Column("truncated", _BOOL, "", "whether the model saw less than the text"),
            Column("embedding", pa.list_(pa.float32(), dim), "", "unit-norm text embedding"),
            Column("mean_norm", pa.float32(), "", "‖μ‖, the norm of the mean token embedding"),
            Column("spread", pa.float32(), "", "tr Σ after scaling to ‖μ‖ = 1 (S2 eqs. 8, 12)"),
            Column("within_cosine", pa.float32(), "", "mean cosine over pairs of tokens (S2 H.2)"),
        ),
    )


def factors(dim: int) -> Table:
    """The table of covariance factors of the SOCM sample."""
    return Table(
        "factors",
        "one row a sampled text: unit mean and covariance factor F (rank × dim, row-major), Σ = FᵀF",
        (
            Column("text_id", _TEXT, "", "the corpus's id"),
            Column("tokens", _INT, "tokens", "what the model saw"),
            Column("mean", pa.list_(pa.float32(), dim), "", "mean token embedding, scaled to unit norm"),
            Column("rank", _INT, "", "rows of the factor, min(tokens, dim)"),
            Column("factor", pa.large_list(pa.float32()), "", "F, row-major"),
        ),
    )


LENGTH_COLLAPSE = Table(
    "length_collapse",
    "pairwise cosine inside and between length intervals, over all unordered pairs",
    (
        *_KEY, *_CELL,
        Column("texts_a", _BIG, "texts", "texts in interval_a"),
        Column("texts_b", _BIG, "texts", "texts in interval_b"),
        Column("pairs", _BIG, "pairs", "unordered pairs of the cell"),
        *_with_error("cosine_mean", "mean cosine"),
        Column("cosine_std", _FLOAT, "", "standard deviation over pairs"),
        Column("cosine_p05", _FLOAT, "", "5th percentile, to one bin of 1/2048; null without the full pass"),
        Column("cosine_p50", _FLOAT, "", "median, to one bin of 1/2048; null without the full pass"),
        Column("cosine_p95", _FLOAT, "", "95th percentile, to one bin of 1/2048; null without the full pass"),
        Column("near_duplicates", _BIG, "pairs", "pairs whose cosine reaches the threshold; null without the full pass"),
    ),
)  # fmt: skip

EXPOSURE = Table(
    "exposure",
    "who takes the search results: neighbour slots by length interval against its share of the texts",
    (
        *_KEY,
        Column("asked_by", _TEXT, "", "`corpus`: every text asks for its nearest others; `queries`: a file of queries asks"),
        Column("queries", _BIG, "texts", "how many asked"),
        Column("k", _INT, "texts", "nearest texts of each"),
        Column("interval", _INT, "tokens", "lower edge of the length interval"),
        Column("texts", _BIG, "texts", "texts in it"),
        Column("texts_share", _FLOAT, "share", "its share of the texts"),
        Column("slots_share", _FLOAT, "share", "its share of all neighbour slots"),
        *_with_error("exposure", "slots_share over texts_share; 1 is fair"),
        Column("k_occurrence_skewness", _FLOAT, "", "skewness of the k-occurrence N_k over all texts: hubness"),
    ),
)

NEAR_DUPLICATES = Table(
    "near_duplicates",
    "the pairs of largest cosine among those that reach the threshold of a near-duplicate",
    (
        *_KEY,
        Column("rank", _INT, "", "place, from 1"),
        Column("text_id_a", _TEXT, "", "one text"),
        Column("text_id_b", _TEXT, "", "the other; text_id_a < text_id_b"),
        Column("tokens_a", _INT, "tokens", "length of one text"),
        Column("tokens_b", _INT, "tokens", "length of the other"),
        Column("cosine", _FLOAT, "", "cosine"),
    ),
)

NEIGHBOURS = Table(
    "neighbours",
    "the k-nearest-neighbour graph of the corpus, one row a text, below neighbours/; of the queries, below queries/",
    (
        Column("text_id", _TEXT, "", "the text that asks"),
        Column("neighbours", pa.list_(_TEXT), "", "its nearest texts, nearest first; ties by id"),
        Column("cosines", pa.list_(pa.float32()), "", "their cosines"),
    ),
)

COLLAPSE_SUMMARY = Table(
    "collapse_summary",
    "one row a model and temperature: the figures that matter",
    (
        *_KEY,
        Column("texts", _BIG, "texts", "texts analysed"),
        Column("corpus_texts", _BIG, "texts", "usable texts of the corpus that they were drawn from"),
        Column("rejected", _BIG, "texts", "rows of the corpus and texts that were not analysed: see rejected/"),
        Column("tokens", _BIG, "tokens", "tokens the model saw"),
        Column("truncated_share", _FLOAT, "share", "texts of which the model saw only a part"),
        *_with_error("cosine_mean", "mean cosine over all pairs"),
        *_with_error("collapse_gap", "mean cosine inside the longest interval of 30 texts or more minus in the shortest"),
        Column("gap_shortest", _INT, "tokens", "lower edge of the shortest interval with at least 30 texts"),
        Column("gap_longest", _INT, "tokens", "lower edge of the longest interval with at least 30 texts"),
        Column("gap_texts", _BIG, "texts", "texts of that of the two that holds fewer"),
        *_with_error("prefix_gap", "mean cosine of the same texts at the longest prefix minus at the shortest"),
        Column("prefix_shortest", _INT, "tokens", "the shortest prefix"),
        Column("prefix_longest", _INT, "tokens", "the longest prefix"),
        Column("prefix_texts", _BIG, "texts", "texts of the probe"),
        *_with_error("exposure_short", "exposure of the shortest interval with at least 30 texts, at the largest k"),
        *_with_error("exposure_long", "exposure of the longest interval with at least 30 texts, at the largest k"),
        Column("k_occurrence_skewness", _FLOAT, "", "hubness at the largest k"),
        Column("near_duplicate_pairs", _BIG, "pairs", "pairs whose cosine reaches the threshold of a near-duplicate"),
        Column("effective_rank", _FLOAT, "", "exp(entropy of the eigenvalues of UᵀU/n); cannot exceed the number of texts"),
        *_with_error("spread_mean", "mean of tr Σ over texts"),
        Column("spread_over_2_share", _FLOAT, "share", "texts with tr Σ > 2, which break the papers' assumption"),
        Column("within_cosine_over_third_share", _FLOAT, "share", "texts with (n·w−1)/(n−1) ≥ 1/3 (S2 Appendix J)"),
        Column("socm_texts", _BIG, "texts", "texts of the SOCM sample"),
        *_with_error("socm_mean", "mean SOCM over all pairs of the sample"),
        Column("socm_freedom", _FLOAT, "", "degrees of freedom of its error (Satterthwaite, where drawn by interval)"),
        Column("socm_over_1_share", _FLOAT, "share", "pairs of the sample with SOCM > 1"),
    ),
)  # fmt: skip

PREFIX_PROBE = Table(
    "prefix_probe",
    "the same long texts cut to growing prefixes: length without topic",
    (
        *_KEY,
        Column("prefix_tokens", _INT, "tokens", "tokens the model saw of each text"),
        Column("texts", _BIG, "texts", "texts of the probe"),
        *_with_error("cosine_mean", "mean cosine over all pairs of the probe at this prefix"),
    ),
)

SOCM = Table(
    "socm",
    "second-order collapse inside and between length intervals, over all pairs of the sample",
    (
        *_KEY, *_CELL,
        Column("pairs", _BIG, "pairs", "unordered pairs of the cell"),
        Column("d_mu_mean", _FLOAT, "", "mean d_μ = (1−cos)/2 of the token means"),
        Column("d_sigma_mean", _FLOAT, "", "mean d_Σ"),
        *_with_error("socm_mean", "mean SOCM = (1−d_μ)·d_Σ"),
        Column("socm_p50", _FLOAT, "", "median"),
        Column("socm_p95", _FLOAT, "", "95th percentile"),
        Column("socm_over_1_share", _FLOAT, "share", "pairs with SOCM > 1"),
        Column("exact", _BOOL, "", "whether d_Σ is the equation's own: no ε, every singular value"),
        Column("d_sigma_error", _FLOAT, "", "certified: largest error of a d_Σ of the cell, for want of singular values"),
    ),
)  # fmt: skip

SOCM_PAIRS = Table(
    "socm_pairs",
    "the most collapsed pairs of the sample",
    (
        *_KEY,
        Column("over", _TEXT, "", "`sample`: all pairs of the SOCM sample; `corpus`: all pairs of all texts, exactly"),
        Column("ranking", _TEXT, "", "`socm`: largest SOCM; `same_mean`: largest d_Σ among the pairs of highest cosine"),
        Column("rank", _INT, "", "place in the ranking, from 1"),
        Column("text_id_a", _TEXT, "", "one text"),
        Column("text_id_b", _TEXT, "", "the other; text_id_a < text_id_b"),
        Column("tokens_a", _INT, "tokens", "length of one text"),
        Column("tokens_b", _INT, "tokens", "length of the other"),
        Column("d_mu", _FLOAT, "", "d_μ"),
        Column("d_sigma", _FLOAT, "", "d_Σ"),
        Column("socm", _FLOAT, "", "SOCM"),
    ),
)

SOCM_SEARCH = Table(
    "socm_search",
    "how the most collapsed pairs of the whole corpus were found: what each bound left",
    (
        *_KEY,
        Column("ranking", _TEXT, "", "as in socm_pairs"),
        Column("threshold", _FLOAT, "", "value that the bounds were held against, reached by as many pairs as are ranked"),
        Column("pairs", _BIG, "pairs", "pairs of the corpus"),
        Column("kept_by_traces", _BIG, "pairs", "pairs that d_Σ ≤ (tr Σ_1 + tr Σ_2)/4 left"),
        Column("kept_by_frobenius", _BIG, "pairs", "of these, pairs that d_Σ ≤ (tr Σ_1 + tr Σ_2 − 2‖F_1F_2ᵀ‖_F)/4 left"),
        Column("texts", _BIG, "texts", "texts whose factors were computed again"),
    ),
)

SOCM_SCATTER = Table(
    "socm_scatter",
    "the plane of (d_μ, d_Σ): a histogram of all pairs of the sample, and seeded pairs of it",
    (
        *_KEY,
        Column("kind", _TEXT, "", "`bin` or `pair`"),
        Column("d_mu", _FLOAT, "", "lower edge of the bin, or the pair's value"),
        Column("d_sigma", _FLOAT, "", "lower edge of the bin, or the pair's value"),
        Column("d_mu_width", _FLOAT, "", "width of the bin; 0 for a pair"),
        Column("d_sigma_width", _FLOAT, "", "width of the bin; 0 for a pair"),
        Column("pairs", _BIG, "pairs", "pairs in the bin; 1 for a pair"),
    ),
)

TEMPERATURE_EFFECT = Table(
    "temperature_effect",
    "what a temperature changes against the model's first one, from per-text differences on the same texts",
    (
        *_KEY,
        Column("reference", _TEXT, "", "canonical text of the temperature it is compared with"),
        Column("figure", _TEXT, "", "column of collapse_summary"),
        Column("reference_value", _FLOAT, "", "the figure under the reference"),
        Column("value", _FLOAT, "", "the figure under this temperature"),
        *_with_error("change", "value − reference_value"),
        Column("texts", _BIG, "texts", "texts that the differences were taken over"),
    ),
)

EXCERPTS = Table(
    "excerpts", "the beginnings of the texts that the ranking tables name; absent under --no-text", (
        Column("text_id", _TEXT, "", "the corpus's id"),
        Column("characters", _BIG, "characters", "length of the text as analysed"),
        Column("excerpt", _TEXT, "", "its first 280 characters"),
    ),
)  # fmt: skip

TABLES = (
    LENGTH_COLLAPSE, COLLAPSE_SUMMARY, PREFIX_PROBE, EXPOSURE, NEAR_DUPLICATES, SOCM, SOCM_PAIRS, SOCM_SEARCH, SOCM_SCATTER,
    TEMPERATURE_EFFECT, EXCERPTS,
)  # fmt: skip
