"""The Arrow schemas of the tables about nights: the gate's verdicts, the record of nights, and the results of `compare`."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables.audit import ASKERS, BY, CARRIED, COLLAPSE_SUMMARY, EXCERPT, GROUP
from tempscale_jobs.tables.columns import KEY, Column, Table

_TEXT, _INT, _BIG, _FLOAT = pa.string(), pa.int32(), pa.int64(), pa.float64()

GATE = Table(
    "gate",
    "the checks of the night: one row a check",
    (
        *KEY,
        Column(
            "check",
            _TEXT,
            "",
            "`threshold` on the figure itself, `drift` from the baseline, or `series` where the night does not continue the "
            "nights before",
        ),
        Column("figure", _TEXT, "", "column of collapse_summary; `model` of a series"),
        Column("value", _FLOAT, "", "the figure of this night"),
        Column("limit", _TEXT, "", "what it is held to, such as `<= 0.15`; for a drift the size that a change must exceed"),
        Column("baseline", _TEXT, "", "the run it is compared with: its night and id; null for a threshold"),
        Column("baseline_value", _FLOAT, "", "the figure of that run"),
        Column("change", _FLOAT, "", "value − baseline_value"),
        Column(
            "noise",
            _FLOAT,
            "",
            "what noise alone exceeds in fewer nights than false_alarms, over all checks together; null where not known",
        ),
        Column(
            "verdict",
            _TEXT,
            "",
            "`held`, `failed`, `not measured` (which fails too), `unknown noise` (a change larger than its limit), `first "
            "night` of a series, or `not comparable`",
        ),
        Column("reason", _TEXT, "", "the verdict in words"),
    ),
)

NIGHT_COLUMNS = (
    Column("run", _TEXT, "", "id of the run, the same through all its attempts"),
    Column("night", _TEXT, "date", "the night"),
    Column("name", _TEXT, "", "what the night is about, where several corpora share a record"),
    Column("started", _TEXT, "time", "when the run began, UTC"),
    Column("finished", _TEXT, "time", "when it ended, UTC"),
    Column("folder", _TEXT, "", "its run folder: below the folder that holds the record, else its whole path"),
    Column("tempscale", _TEXT, "", "version that made it"),
    Column("corpus", _TEXT, "", "the source"),
    Column("corpus_fingerprint", _TEXT, "", "sha256 of the corpus as it was read"),
    Column("model_fingerprint", _TEXT, "", "sha256 of the model's weights"),
    Column("measured", _TEXT, "", "what decides the figures besides corpus, model and temperature, as JSON"),
    Column("texts_added", _BIG, "texts", "texts that the night before did not have; null where its texts are gone"),
    Column("texts_removed", _BIG, "texts", "texts of the night before that this one does not have"),
    Column("texts_edited", _BIG, "texts", "texts of both nights, by id, that are no longer the same"),
    Column("gate", _TEXT, "", "`passed`, `failed`, or `none` where the night was held to nothing"),
    Column("gate_reason", _TEXT, "", "what failed, in words; empty where nothing did"),
    Column("gate_note", _TEXT, "", "what else is to be known: a series that begins, unknown noise, what is not compared"),
    Column(
        "compared",
        pa.bool_(),
        "",
        "whether there was a night to compare with, or this is the first; where false, it is no baseline unless accepted",
    ),
)

HISTORY = Table(
    "history",
    "the record of nights: one row a run, model and temperature, in one part a run",
    (*KEY, *NIGHT_COLUMNS, *(c for c in COLLAPSE_SUMMARY.columns if c not in KEY)),
)

COMPARED_FIGURES = Table(
    "compared_figures",
    "what changed from run A to run B, figure by figure",
    (
        *KEY,
        Column("figure", _TEXT, "", "column of collapse_summary"),
        Column("value_a", _FLOAT, "", "in run A"),
        Column("value_b", _FLOAT, "", "in run B"),
        Column("change", _FLOAT, "", "value_b − value_a; null where they are told between other lengths"),
        Column("change_se", _FLOAT, "", "its standard error, as of two corpora drawn apart; null where it is not known"),
        Column("same_texts", _BIG, "texts", "texts of both runs, unchanged"),
        Column("value_a_same_texts", _FLOAT, "", "in run A over these texts only; null where embeddings are gone"),
        Column("value_b_same_texts", _FLOAT, "", "in run B over these texts only"),
        Column("change_same_texts", _FLOAT, "", "what the model or the temperature did to the same texts"),
        Column("change_same_texts_se", _FLOAT, "", "its standard error, from per-text differences"),
        Column("change_of_corpus", _FLOAT, "", "the rest of the change: what other texts did"),
    ),
)

COMPARED_INTERVALS = Table(
    "compared_intervals",
    "what changed from run A to run B, by length interval; the parts of all cells add up to the change of the mean cosine",
    (
        *KEY,
        Column("interval_a", _INT, "tokens", "lower edge of one text's length interval"),
        Column("interval_b", _INT, "tokens", "lower edge of the other text's"),
        Column("pairs_share_a", _FLOAT, "share", "share of all pairs that the cell holds in run A"),
        Column("pairs_share_b", _FLOAT, "share", "in run B"),
        Column("cosine_mean_a", _FLOAT, "", "mean cosine of the cell in run A; null where it is empty"),
        Column("cosine_mean_b", _FLOAT, "", "in run B"),
        Column("change", _FLOAT, "", "cosine_mean_b − cosine_mean_a"),
        Column("change_se", _FLOAT, "", "its standard error, as of two corpora drawn apart"),
        Column("by_cosine", _FLOAT, "", "part of the change of the mean over all pairs: the cell's cosines became others"),
        Column("by_lengths", _FLOAT, "", "part of it: other lengths are more frequent"),
    ),
)

COMPARED_TEXTS = Table(
    "compared_texts",
    "the texts of both runs that moved most: by how near they lie to all others",
    (
        *KEY,
        Column("rank", _INT, "", "place, from 1"),
        Column("text_id", _TEXT, "", "the text"),
        Column("edited", pa.bool_(), "", "whether its words changed"),
        Column("tokens_a", _INT, "tokens", "its length in run A"),
        Column("tokens_b", _INT, "tokens", "in run B"),
        Column("nearness_a", _FLOAT, "", "its mean cosine to the other texts of both runs, in run A"),
        Column("nearness_b", _FLOAT, "", "in run B"),
        Column("change", _FLOAT, "", "nearness_b − nearness_a"),
        Column("cosine_to_itself", _FLOAT, "", "of its two embeddings; null where they are of two models"),
    ),
)

SWAP_NEIGHBOURS = Table(
    "swap_neighbours",
    "which nearest texts stay from run A to run B, of another model or temperature; the unchanged texts of both ask, or "
    "10,000 of them",
    (
        *KEY, BY, GROUP,
        Column("k", _INT, "", "nearest texts of each; fewer where lists name texts of one run alone"),
        ASKERS,
        Column("neighbours_kept", _FLOAT, "share", "of an asker's k nearest texts in A, those among its k nearest in B"),
        Column("neighbours_kept_se", _FLOAT, "", "its standard error over askers, or their documents"),
    ),
)  # fmt: skip

SWAP_THRESHOLDS = Table(
    "swap_thresholds",
    "thresholds of run A carried over to run B: the cosine that as many random pairs reach, and the pairs that stay",
    (
        *KEY, BY, GROUP,
        *CARRIED,
    ),
)  # fmt: skip

SWAP_EXAMPLES = Table(
    "swap_examples",
    "the texts whose nearest texts change most from run A to run B",
    (
        *KEY,
        Column("rank", _INT, "", "place, from 1: fewest kept, then the largest cosine of a lost one"),
        Column("text_id", _TEXT, "", "the text that asks"),
        EXCERPT,
        Column("k", _INT, "", "its nearest texts"),
        Column("kept", _INT, "", "those that stay"),
        Column("lost", pa.list_(_TEXT), "", "those of A alone, nearest first"),
        Column("gained", pa.list_(_TEXT), "", "those of B alone, nearest first"),
    ),
)

SWAP = (SWAP_NEIGHBOURS, SWAP_THRESHOLDS, SWAP_EXAMPLES)
COMPARED = (COMPARED_FIGURES, COMPARED_INTERVALS, COMPARED_TEXTS, *SWAP)
TABLES = (GATE, HISTORY, *COMPARED)
