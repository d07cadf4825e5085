"""Slow float64 oracles, typed from the equations of docs/equations.md. They import numpy and scipy, and nothing of ours."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf

# --- one text -------------------------------------------------------------------------------------------------------


def moments(x):
    """μ = (1/n)Σ x_j and Σ = (1/n)Σ (x_j−μ)(x_j−μ)ᵀ (S2 eqs. 2, 3), token by token."""
    x = np.asarray(x, dtype=np.float64)
    mu = np.zeros(x.shape[1])
    for token in x:
        mu += token / len(x)
    sigma = np.zeros((x.shape[1], x.shape[1]))
    for token in x:
        sigma += np.outer(token - mu, token - mu) / len(x)
    return mu, sigma


def unit_moments(x):
    """The moments of X/‖μ‖ (S2 eq. 8)."""
    x = np.asarray(x, dtype=np.float64)
    return moments(x / np.linalg.norm(moments(x)[0]))


def spread(x):
    """S(X)/‖μ‖² with S = (1/n)Σ‖x_j − μ‖² (S2 eq. 12)."""
    x = np.asarray(x, dtype=np.float64)
    mu = moments(x)[0]
    return sum(float((token - mu) @ (token - mu)) for token in x) / len(x) / float(mu @ mu)


def within_cosine(x):
    """(1/n²)Σ_jk cos(x_j, x_k) (S2 H.2), by a double loop."""
    x = np.asarray(x, dtype=np.float64)
    total = 0.0
    for j in x:
        for k in x:
            total += float(j @ k) / math.sqrt(float(j @ j) * float(k @ k))
    return total / len(x) ** 2


# --- two texts ------------------------------------------------------------------------------------------------------


def root(matrix):
    """The symmetric square root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values.clip(min=0.0))) @ vectors.T


def d_mu(x1, x2):
    """‖μ_1 − μ_2‖²/4 after scaling (S2 eq. 5)."""
    difference = unit_moments(x1)[0] - unit_moments(x2)[0]
    return float(difference @ difference) / 4


def d_sigma(x1, x2, square_root=root):
    """tr(Σ_1 + Σ_2 − 2(Σ_1^½ Σ_2 Σ_1^½)^½)/4 (S2 eq. 6), with d×d matrices."""
    return d_sigma_of(unit_moments(x1)[1], unit_moments(x2)[1], square_root)


def d_sigma_of(sigma1, sigma2, square_root=root):
    """The same, of two covariances."""
    half = square_root(sigma1)
    cross = square_root(half @ sigma2 @ half)
    return float(np.trace(sigma1) + np.trace(sigma2) - 2 * np.trace(cross).real) / 4


def socm(x1, x2, alpha=1.0, beta=1.0):
    """(1 − d_μ)^α · d_Σ^β (S2 eqs. 4, 30)."""
    return (1 - d_mu(x1, x2)) ** alpha * max(d_sigma(x1, x2), 0.0) ** beta


def published_d_sigma(x1, x2, epsilon):
    """d_Σ as the published code has it: ε before both square roots, not in the traces; clamped at 0."""
    sigma1, sigma2 = unit_moments(x1)[1], unit_moments(x2)[1]
    identity = np.eye(len(sigma1))
    half = root(sigma1 + epsilon * identity)
    cross = root(half @ sigma2 @ half + epsilon * identity)
    return max(0.0, float(np.trace(sigma1) + np.trace(sigma2) - 2 * np.trace(cross)) / 4)


def frobenius_norm_of_cross(x1, x2):
    """‖F_1F_2ᵀ‖_F = √tr(Σ_1Σ_2)."""
    return math.sqrt(float(np.trace(unit_moments(x1)[1] @ unit_moments(x2)[1])))


# --- many texts -----------------------------------------------------------------------------------------------------


def cell_cosines(embeddings, interval, intervals):
    """The cosines of all unordered pairs, listed by cell (a ≤ b)."""
    embeddings = np.asarray(embeddings, dtype=np.float64)
    cells = {(a, b): [] for a in range(intervals) for b in range(a, intervals)}
    for i in range(len(embeddings)):
        for j in range(i + 1, len(embeddings)):
            a, b = sorted((int(interval[i]), int(interval[j])))
            cells[a, b].append(float(embeddings[i] @ embeddings[j]))
    return cells


def text_means(embeddings, interval, intervals):
    """Each text's mean cosine with the other texts of each interval; NaN where there is none."""
    embeddings = np.asarray(embeddings, dtype=np.float64)
    means = np.full((len(embeddings), intervals), np.nan)
    for i in range(len(embeddings)):
        for k in range(intervals):
            others = [float(embeddings[i] @ embeddings[j]) for j in range(len(embeddings)) if j != i and interval[j] == k]
            if others:
                means[i, k] = sum(others) / len(others)
    return means


def within_error(own_means):
    """2·sd(per-text means)/√n."""
    own_means = [float(mean) for mean in own_means]
    n = len(own_means)
    centre = sum(own_means) / n
    return 2 * math.sqrt(sum((mean - centre) ** 2 for mean in own_means) / (n - 1)) / math.sqrt(n)


def between_error(row_means, column_means):
    """√(var(row means)/n_a + var(column means)/n_b)."""
    total = 0.0
    for means in (row_means, column_means):
        centre = sum(means) / len(means)
        total += sum((mean - centre) ** 2 for mean in means) / (len(means) - 1) / len(means)
    return math.sqrt(total)


def nearest(cosines, labels, counted, k):
    """Each row's k columns of largest cosine, as (cosine, label) lists; ties by label, columns not counted left out."""
    found = []
    for row, allowed in zip(np.asarray(cosines, dtype=np.float64), counted, strict=True):
        ranked = sorted((-float(c), int(label)) for c, label, one in zip(row, labels, allowed, strict=True) if one)
        found.append([(-c, label) for c, label in ranked[:k]])
    return found


def near_duplicates(cosines, row_labels, column_labels, counted, threshold):
    """All counted pairs that reach the threshold: (cosine, smaller label, larger label), largest cosine first."""
    found = []
    for i in range(len(row_labels)):
        for j in range(len(column_labels)):
            if counted[i][j] and float(cosines[i][j]) >= threshold:
                pair = sorted((int(row_labels[i]), int(column_labels[j])))
                found.append((-float(cosines[i][j]), *pair))
    return [(-c, a, b) for c, a, b in sorted(found)]


def exposure(neighbours, interval, intervals):
    """Share of the neighbour slots that each interval takes over its share of the texts, slot by slot; NaN without text."""
    slots, taken = 0, [0] * intervals
    for own in neighbours:
        for text in own:
            slots, taken[interval[text]] = slots + 1, taken[interval[text]] + 1
    texts = [sum(int(k == b) for k in interval) for b in range(intervals)]
    return [taken[b] / slots / (texts[b] / len(interval)) if texts[b] else math.nan for b in range(intervals)]


def exposure_variance(neighbours, interval, b, own):
    """V and Σ_u T_u² of the exposure of interval b, from every two slots that share a text, one by one.

    Slots are dyads (Aronow, Samii & Assenova 2015): V = Σ_{p ~ q} e_p e_q, and what each text moves in the interval's share
    of the texts is taken off its own sum: − 2Σ_t S_t D_t + Σ_t D_t².
    """
    n = len(interval)
    slots = [(("text", i) if own else ("query", i), ("text", j)) for i, row in enumerate(neighbours) for j in row]
    here = {("text", j): float(interval[j] == b) for j in range(n)}
    p, s = sum(here.values()) / n, sum(here[filler] for _, filler in slots) / len(slots)
    e = [(here[filler] - s) / (p * len(slots)) for _, filler in slots]
    variance, dyads = 0.0, 0.0
    for one, x in zip(slots, e, strict=True):
        for other, y in zip(slots, e, strict=True):
            variance += x * y * bool(set(one) & set(other))
            dyads += x * y * (set(one) == set(other))
    for text, is_here in here.items():
        moved = s / p * (is_here - p) / (p * n)
        variance += moved**2 - 2 * moved * sum(x for slot, x in zip(slots, e, strict=True) if text in slot)
    return variance, dyads


def sampled_exposure_variance(near, interval, b, texts_drawn, ask):
    """The variances of the exposure of interval b for another corpus, and for the corpus of which a share was drawn.

    `near` has the neighbours of the texts that ask. Of two slots, what both need to be there is drawn by chance: a text with
    `texts_drawn`, one that asks with `texts_drawn`·`ask`; e·e'·(1 − π_s·π_s'/π_ss') of Horvitz and Thompson (1952).
    """
    n = len(interval)
    dyads = [(q, t) for q, found in near.items() for t in found]
    p, s = sum(float(k == b) for k in interval) / n, sum(float(interval[t] == b) for _, t in dyads) / len(dyads)
    e = [(float(interval[t] == b) - s) / (p * len(dyads)) for _, t in dyads]

    def chance(askers, others):
        return (texts_drawn * ask) ** len(askers) * texts_drawn ** len(others - askers)

    elsewhere = here = 0.0
    for (q, t), x in zip(dyads, e, strict=True):
        for (r, u), y in zip(dyads, e, strict=True):
            if {q, t} & {r, u}:
                both = chance({q, r}, {t, u})
                elsewhere += x * y
                here += x * y * (1 - chance({q}, {t}) * chance({r}, {u}) / both)
    for text in range(n):
        moved = s / p * (float(interval[text] == b) - p) / (p * n)
        own = sum(x for dyad, x in zip(dyads, e, strict=True) if text in dyad)
        elsewhere += moved**2 - 2 * moved * own
        here += (moved**2 - 2 * moved * own) * (1 - texts_drawn)
    return elsewhere, here


def effective_rank(embeddings):
    """exp(entropy) of the eigenvalues of the n×n Gram matrix UUᵀ/n, which are those of UᵀU/n that are not 0."""
    gram = np.asarray(embeddings, dtype=np.float64) @ np.asarray(embeddings, dtype=np.float64).T
    values = np.linalg.eigvals(gram / len(gram)).real
    return math.exp(-sum(float(value) * math.log(value) for value in values if value > 1e-14))


def top_component(embeddings):
    """σ₁²/Σσ² of the singular values of U, which are the roots of the eigenvalues of UᵀU."""
    values = np.linalg.svd(np.asarray(embeddings, dtype=np.float64), compute_uv=False)
    return max(float(value) ** 2 for value in values) / sum(float(value) ** 2 for value in values)


def reciprocity(nearest):
    """The share of pairs (a, b), b in the a-th list, for which a is in the b-th list; other numbers than texts are none."""
    relations = {(a, int(b)) for a, own in enumerate(nearest) for b in own if 0 <= b < len(nearest)}
    return sum((b, a) in relations for a, b in relations) / len(relations)


def standard_error(values):
    """sd/√n."""
    return np.std(values, ddof=1) / math.sqrt(len(values))


def dyadic_error(values, first, second):
    """Aronow, Samii & Assenova's double sum, times c = 1ᵀBBᵀ1 / tr(A·M·BBᵀ·M), with dense matrices."""
    pairs = [frozenset(pair) for pair in zip(first, second, strict=True)]
    n, mean = len(values), sum(values) / len(values)
    total = 0.0
    for p in range(n):
        for q in range(n):
            if pairs[p] & pairs[q]:
                total += (values[p] - mean) * (values[q] - mean)
    texts = sorted(set().union(*pairs))
    incidence = np.array([[float(text in pair) for text in texts] for pair in pairs])
    shares = np.array([[float(bool(one & other)) for other in pairs] for one in pairs])
    centring = np.eye(n) - np.ones((n, n)) / n
    model = incidence @ incidence.T
    expected = np.trace(shares @ centring @ model @ centring)
    if expected < 1e-9 * model.sum():
        return math.nan
    if total > 1e-12:
        return math.sqrt(total / n**2 * model.sum() / expected)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / n / (n - 1))


def sharing_error(values, things):
    """The double sum over values that have a thing in common, times c = 1ᵀA1 / tr(A·M·A·M), with dense matrices."""
    n, things = len(values), [frozenset(own) for own in things]
    if n < 2:
        return None
    shares = np.array([[float(bool(one & other)) for other in things] for one in things])
    centring = np.eye(n) - np.ones((n, n)) / n
    expected = np.trace(shares @ centring @ shares @ centring)
    if expected < 1e-9 * shares.sum():
        return None
    residual = [value - sum(values) / n for value in values]
    total = sum(shares[i, j] * residual[i] * residual[j] for i in range(n) for j in range(n))
    if total > 1e-12:
        return math.sqrt(total / n**2 * shares.sum() / expected)
    return math.sqrt(sum(r**2 for r in residual) / n / (n - 1))


# --- attention ------------------------------------------------------------------------------------------------------

_BERT = {
    "layer": "encoder.layer.{}.",
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "output": "attention.output.dense", "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip
_DISTILBERT = {
    "layer": "transformer.layer.{}.",
    "query": "attention.q_lin", "key": "attention.k_lin", "value": "attention.v_lin",
    "output": "attention.out_lin", "norm1": "sa_layer_norm",
    "up": "ffn.lin1", "down": "ffn.lin2", "norm2": "output_layer_norm",
}  # fmt: skip


def softmax(logits):
    """Row by row."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def forward(state, family, layers, heads, ids, tau=1.0, first_position=0, epsilon=1e-12):
    """Last hidden states and every layer's attention of one unpadded text: A = softmax(QKᵀ/(τ√d)) (S1 eq. 6).

    Embeddings, post-norm layers and exact GELU of BERT, RoBERTa and DistilBERT, in float64. `state` is the model's state
    dict as numpy arrays.
    """
    state = {key: np.asarray(value, dtype=np.float64) for key, value in state.items()}
    names = _DISTILBERT if family == "distilbert" else _BERT

    def linear(x, name):
        return x @ state[name + ".weight"].T + state[name + ".bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return scaled * state[name + ".weight"] + state[name + ".bias"]

    positions = first_position + np.arange(len(ids))
    x = state["embeddings.word_embeddings.weight"][np.asarray(ids)]
    x = x + state["embeddings.position_embeddings.weight"][positions]
    if "embeddings.token_type_embeddings.weight" in state:
        x = x + state["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    attentions = []
    for layer in range(layers):
        prefix = names["layer"].format(layer)
        size = x.shape[1] // heads
        query, key, value = (linear(x, prefix + names[part]) for part in ("query", "key", "value"))
        branches, weights = [], []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            logits = query[:, own] @ key[:, own].T / math.sqrt(size)
            weights.append(softmax(logits / tau))
            branches.append(weights[-1] @ value[:, own])
        attentions.append(np.stack(weights))
        x = norm(x + linear(np.concatenate(branches, axis=1), prefix + names["output"]), prefix + names["norm1"])
        inner = linear(x, prefix + names["up"])
        inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
        x = norm(x + linear(inner, prefix + names["down"]), prefix + names["norm2"])
    return x, attentions


def sigma_a(attention):
    """‖(I − (1/n)11ᵀ)A‖₂ by a full decomposition."""
    a = np.asarray(attention, dtype=np.float64)
    return float(np.linalg.svd((np.eye(len(a)) - np.ones_like(a) / len(a)) @ a, compute_uv=False)[0])
