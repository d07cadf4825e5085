"""The Arrow schemas of the tables of `tempscale diagnose`."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables.columns import KEY, Column, Table

KINDS = ("partials/layers", "partials/heads", "partials/seen")
"""The folders of the parts, which describe the observed texts."""
REPEATED_PARTS, PAIR_PARTS = "partials/repeated", "partials/two_texts"
_TEXT, _INT, _FLOAT = pa.string(), pa.int32(), pa.float64()
_SEEN = (
    Column("text_id", _TEXT, "", "the corpus's id, as a string"),
    Column("tokens", _INT, "tokens", "what the model saw: special tokens included, after truncation"),
    Column("layer", _INT, "", "number of the layer, from 0"),
)
_EMBEDDING_LAYER = (
    "number of the layer, from 0; −1 is the embedding layer, whose output has a spread and a within_cosine and nothing else "
    "(S2 Fig 11–16)"
)
_SEEN_LAYER = (*_SEEN[:2], Column("layer", _INT, "", _EMBEDDING_LAYER))

_LAYER = (
    Column("hc_ratio", _FLOAT, "", "‖HC[X]‖/‖HC[H]‖: what the layer leaves of the difference between tokens (S1 Fig 2)"),
    Column("hc_attention", _FLOAT, "", "the attention's part of it; the four parts multiply to hc_ratio"),
    Column("hc_attention_bound", _FLOAT, "", "Σ_h σ_a‖W^o_hW^v_h‖, never below hc_attention (S1 Theorem 2, all heads)"),
    Column("hc_residual", _FLOAT, "", "that of the two residual sums, from the branch to the sum"),
    Column("hc_norms", _FLOAT, "", "that of all norms"),
    Column("hc_feed_forward", _FLOAT, "", "that of the feed-forward"),
    Column("sigma_a_mean", _FLOAT, "", "mean σ_a over heads"),
    Column("rho", _FLOAT, "", "ρ = S(Z)/S(H)"),
    Column("r", _FLOAT, "", "r = S(H)/‖μ(Y)‖² (S2 14)"),
    Column("C", _FLOAT, "", "C = [S(X)/‖μ(X)‖²]/[S(Y)/‖μ(Y)‖²] (S2 Def 3)"),
    Column("spread", _FLOAT, "", "S(X)/‖μ(X)‖² of the layer's output"),
    Column("spread_bound", _FLOAT, "", "C(1+√ρ)²r, never below the spread (S2 47)"),
    Column("within_cosine", _FLOAT, "", "mean cosine between tokens of the layer's output (S2 H.2)"),
    Column("lambda", _FLOAT, "", "mean of λ over heads (S2 13)"),
)
_HEAD = (
    Column("head", _INT, "", "number of the head, from 0"),
    Column("sigma_a", _FLOAT, "", "‖(I − (1/n)11ᵀ)A‖₂ (S1 §2)"),
    Column("sigma_s", _FLOAT, "", "standard deviation of the logits"),
    Column("tau_s", _FLOAT, "", "1/σ_s (S1 4)"),
    Column(
        "sigma_a_bound",
        _FLOAT,
        "",
        "Theorem 3's, from σ_s and n; an approximation, which Gaussian logits exceed from a σ_s on that grows with n",
    ),
    Column("lambda", _FLOAT, "", "λ_h = ‖W^o_hW^v_h‖²·‖PA_h‖²_F/(n−1) (S2 13)"),
    Column(
        "thm2_ratio",
        _FLOAT,
        "",
        "‖HC[SA(X)]‖ / (σ_a‖W_V‖‖HC[X]‖), at most 1 (S1 Theorem 2); null where the tokens differ by rounding alone",
    ),
)

LAYERS = Table("layers", "one row a text and layer: what the layer does to the text", (*KEY, *_SEEN_LAYER, *_LAYER))
HEADS = Table("heads", "one row a text, layer and head: attention as a filter", (*KEY, *_SEEN, *_HEAD))
LAYER_PART = Table("layers", "the layers of some texts; below partials/", (*_SEEN_LAYER, *_LAYER))
HEAD_PART = Table("heads", "the heads of some texts; below partials/", (*_SEEN, *_HEAD))


def seen(dim: int, words: int) -> Table:
    """The texts of a piece of work, for `dim` dimensions of the model and `words` of its word embeddings."""
    return Table(
        "seen",
        "the texts that were looked into; below partials/",
        (
            *_SEEN[:2],
            Column("embedding", pa.list_(pa.float32(), dim), "", "unit-norm text embedding"),
            Column("words", pa.list_(pa.float32(), words), "", "unit mean of the word embeddings, special tokens left out"),
            Column("spread", _FLOAT, "", "tr Σ after unit-mean scaling, of the tokens that are pooled"),
            Column("within_cosine", _FLOAT, "", "mean cosine between these tokens"),
            Column("norm_variation", _FLOAT, "", "standard deviation of their norms over the mean of their norms"),
        ),
    )


SPECTRUM = Table(
    "spectrum_by_length",
    "σ_a against length (S1 Fig 5), and how texts of that length resemble one another (S1 Fig 1c, Fig 3)",
    (
        *KEY,
        Column("interval", _INT, "tokens", "lower edge of the length interval"),
        Column("texts", _INT, "", "texts looked into"),
        Column("tokens_mean", _FLOAT, "tokens", "their mean length"),
        Column("sigma_a_last_mean", _FLOAT, "", "mean σ_a over the heads of the last layer, then texts, as in print"),
        Column("sigma_a_last_se", _FLOAT, "", "its standard error over texts"),
        Column("sigma_s_last_mean", _FLOAT, "", "mean σ_s of the last layer"),
        Column("sigma_a_bound_last_mean", _FLOAT, "", "mean of Theorem 3's bound in the last layer"),
        Column("sigma_a_mean", _FLOAT, "", "mean σ_a over heads and all layers, then texts"),
        Column("sigma_a_se", _FLOAT, "", "its standard error over texts"),
        Column("sigma_s_mean", _FLOAT, "", "mean σ_s over all layers"),
        Column("sigma_a_bound_mean", _FLOAT, "", "mean of Theorem 3's bound over all layers"),
        Column("over_bound_share", _FLOAT, "", "share of heads, layers and texts whose σ_a exceeds Theorem 3's bound"),
        Column("cosine_mean", _FLOAT, "", "mean cosine between the texts' embeddings, pooled as the model pools"),
        Column("cosine_se", _FLOAT, "", "its standard error: 2·sd of the texts' means/√n"),
        Column("words_cosine_mean", _FLOAT, "", "the same of their mean word embeddings, which no layer has touched"),
        Column("words_cosine_se", _FLOAT, "", "its standard error"),
    ),
)

LAYER_SUMMARY = Table(
    "layer_summary",
    "each layer's figures, the mean over the texts of a length interval",
    (
        *KEY,
        Column("layer", _INT, "", _EMBEDDING_LAYER),
        Column("interval", _INT, "tokens", "lower edge of the length interval; null over all texts"),
        Column("texts", _INT, "", "texts looked into"),
        *(Column(f"{column.name}_mean", _FLOAT, "", f"mean of {column.name}") for column in _LAYER),
        *(Column(f"{column.name}_se", _FLOAT, "", "its standard error over texts") for column in _LAYER),
    ),
)

FINDINGS = Table(
    "diagnose_findings",
    "what the measurement says of S1's two claims for this model and corpus",
    (
        *KEY,
        Column("finding", _TEXT, "", "`length`: σ_a of the longest interval minus that of the shortest; `temperature`: σ_a "
               "under this temperature minus that under the first, on the same texts; `versions`: σ_a of each document's "
               "longest version minus that of its shortest; `versions_cosine`: mean cosine between documents by their "
               "longest versions minus that by their shortest; `model`: within-text cosine behind the last layer, this "
               "model's minus the first's, on the same texts"),
        Column("layers", _TEXT, "", "`last`: of the last layer; `all`: their mean; null where it is of embeddings"),
        Column("texts", _INT, "", "texts it stands on; documents for `versions` and `versions_cosine`"),
        Column("change", _FLOAT, "", "the difference of means"),
        Column("change_se", _FLOAT, "", "its standard error"),
    ),
)  # fmt: skip

EQUAL_NORMS = Table(
    "equal_norms",
    "S2's Appendix J takes the tokens of a text as equally long, and concludes tr Σ ≤ 2 from their cosine: does it hold?",
    (
        *KEY,
        Column("texts", _INT, "", "texts looked into"),
        Column("norm_variation_mean", _FLOAT, "share", "standard deviation of a text's token norms over their mean, "
               "the mean over texts; 0 is the assumption"),
        Column("norm_variation_se", _FLOAT, "", "its standard error over texts"),
        Column("condition_share", _FLOAT, "share", "texts with (n·w−1)/(n−1) ≥ 1/3, w the within-text cosine"),
        Column("spread_within_2_share", _FLOAT, "share", "texts with tr Σ ≤ 2"),
        Column("agree_share", _FLOAT, "share", "texts where both hold or neither does"),
    ),
)  # fmt: skip
REPEATED = Table(
    "repeated_tokens",
    "texts of one token repeated (S1 App. E.4): two without a common token grow alike with length",
    (
        *KEY,
        Column("tokens", _INT, "tokens", "length, special tokens included"),
        Column("pairs", _INT, "", "pairs of tokens"),
        Column("cosine_mean", _FLOAT, "", "mean cosine between the two texts' embeddings, pooled as the model pools"),
        Column("cosine_se", _FLOAT, "", "its standard error over pairs"),
    ),
)
_TOKEN = (
    Column("side", _TEXT, "", "`a` or `b`"),
    Column("text_id", _TEXT, "", "the corpus's id, as a string"),
    Column("place", _INT, "", "place of the token in the text, from 0; null for the text's mean"),
    Column("token", _TEXT, "", "the token, as the vocabulary writes it; null for the mean"),
    Column("x", _FLOAT, "", "first axis of the uncentred PCA of both texts' tokens, each text scaled to ‖μ‖ = 1"),
    Column("y", _FLOAT, "", "second axis"),
    Column("d_mu", _FLOAT, "", "d_μ of the two texts"),
    Column("d_sigma", _FLOAT, "", "their d_Σ"),
    Column("socm", _FLOAT, "", "their SOCM"),
)
MAP = Table(
    "map",
    "the embeddings in the plane by t-SNE (S1 Fig 1b), one map a temperature",
    (
        *KEY,
        Column("text_id", _TEXT, "", "the corpus's id, as a string"),
        Column("tokens", _INT, "tokens", "what the model saw: special tokens included, after truncation"),
        Column("interval", _INT, "tokens", "lower edge of its length interval"),
        Column("document", _TEXT, "", "of which it is a version; null where versions are not asked for"),
        Column("x", _FLOAT, "", "first coordinate"),
        Column("y", _FLOAT, "", "second"),
        Column("origin_distance", _FLOAT, "", "distance to the map's origin, the mean of all texts"),
    ),
)
PAIR_PART = Table("two_texts", "the tokens of a pair; below partials/", _TOKEN)
TWO_TEXTS = Table(
    "two_texts",
    "two texts token by token (S2 Fig 1): the pair that is named, else the most collapsed among those of highest cosine",
    (*KEY, *_TOKEN),
)
TABLES = (LAYERS, HEADS, SPECTRUM, LAYER_SUMMARY, FINDINGS, EQUAL_NORMS, REPEATED, TWO_TEXTS, MAP)
