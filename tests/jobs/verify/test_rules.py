"""Which stored vectors are wrong, in what shares, and what the gate and the findings make of it, from vectors alone."""

from collections import Counter
from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from scipy.stats import beta

from tempscale.stored.rounding import Storage as Stored
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.stored import StoredRow
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import gate
from tempscale_jobs.runs.folder import Model, Run, place
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.verify import ROWS, compared
from tempscale_jobs.verify import earlier, explain, findings, sample, summary, variants, words
from tempscale_jobs.verify.compare import PARTIALS, Rules, Tolerance, judge
from tempscale_jobs.workers.dispatch import Piece

MODEL, DIM, ROWS_COMPARED, ERROR = Model("m", "m", "f", 64), 16, 40, 1e-4
TOLERANCE = Tolerance(Stored(), None, ERROR)


@pytest.fixture
def right():
    """Vectors of a model, of norms around 3."""
    vectors = np.random.default_rng(0).standard_normal((ROWS_COMPARED, DIM))
    norms = np.linspace(2, 4, ROWS_COMPARED)[:, None]
    return norms * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sha_of(text):
    return sha256(text.encode()).hexdigest()


def judged(folder, right, stored, days=None):
    """The run, and its rows as they are judged; `stored` are rows of any width."""
    from tempscale_jobs.verify import compare

    run = Run(Storage(str(folder)), [MODEL], [Temperature.of(1.0)], "2026-11-24")
    rows = [compare._compared(TOLERANCE, np.asarray(v, float), u) for v, u in zip(stored, right, strict=True)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns |= {"text_id": [f"t{k}" for k in range(len(rows))], "groups": [[day] for day in days or ["a"] * len(rows)]}
    units = right / np.linalg.norm(right, axis=1, keepdims=True)
    columns["text_sha"] = [sha_of(f"t{k}") for k in range(len(rows))]
    columns |= {"tokens": [9] * len(rows), "embedding": parts.fixed_lists(units.astype(np.float32))}
    name = run.part(PARTIALS, MODEL, run.temperatures[0], 0)
    run.storage.write_table(name, compared(DIM).build(columns))
    return run, judge(run, MODEL, [Piece(0, (), "part", (name,))], TOLERANCE)


def wrong_of(judgement):
    return np.flatnonzero(judgement.table.column("wrong").to_numpy(zero_copy_only=False)).tolist()


def test_direction_norm_width_and_zeros_are_each_enough_to_be_wrong(right, tmp_path):
    stored = [row.astype(np.float32) for row in right]
    stored[3], stored[5], stored[7], stored[9] = stored[4], 2 * stored[5], stored[7][:9], 0 * stored[9]
    stored[11] = np.full(DIM, np.nan)
    _, judgement = judged(tmp_path, right, stored)
    assert wrong_of(judgement) == [3, 5, 7, 9, 11]
    assert (judgement.rules.norms, judgement.rules.format, judgement.rules.width) == ("model", "float32", DIM)


def test_an_index_of_norm_1_is_judged_by_norm_1(right, tmp_path):
    stored = right / np.linalg.norm(right, axis=1, keepdims=True)
    stored[3] = right[3]
    _, judgement = judged(tmp_path, right, stored)
    assert wrong_of(judgement) == [3]
    assert judgement.rules.norms == "unit"


@pytest.mark.parametrize(("times", "wrong"), [(0.5, []), (3.0, [6])])
def test_a_vector_may_be_as_far_away_as_the_computation_explains(times, wrong, right, tmp_path):
    across = np.zeros(DIM)
    across[:2] = right[6, 1], -right[6, 0]
    stored = right.copy()
    stored[6] += times * ERROR * np.linalg.norm(right[6]) * across / np.linalg.norm(across)
    assert wrong_of(judged(tmp_path, right, stored)[1]) == wrong


def test_another_way_explains_a_vector_only_if_it_is_much_nearer_than_the_models_own(right):
    rules, u = Rules(TOLERANCE, "model", "float64", DIM), right[0]
    across = np.zeros(DIM)
    across[:2] = u[1], -u[0]
    across *= np.linalg.norm(u) / np.linalg.norm(across)
    stored = u + 3 * ERROR * across
    assert rules.explains(stored, stored, u)
    assert rules.explains(stored, u + 2 * ERROR * across, u)
    assert not rules.explains(stored, u + 1.2 * ERROR * across, u)
    assert not rules.explains(stored, u, u)
    assert not rules.explains(u + across, u + 0.9 * across, u)  # Nearer, and beyond any rounding.
    assert not rules.allows(0 * u, u, 1.0)  # It has no direction.


def test_vectors_wider_than_the_models_are_refused(right, tmp_path):
    with pytest.raises(UsageError, match="17 dimensions"):
        judged(tmp_path, right, np.hstack([right, right[:, :1]]))


def test_a_scale_of_another_width_and_a_sample_without_rows_are_refused(right, tmp_path):
    run, _ = judged(tmp_path, right, right)
    (name,) = run.storage.list(run.place(PARTIALS, MODEL, run.temperatures[0]))
    part = [Piece(0, (), "part", (name,))]
    with pytest.raises(UsageError, match=r"scale of .* 3 numbers, and most vectors have 16"):
        judge(run, MODEL, part, TOLERANCE._replace(storage=Stored(False, (1.0, 2.0, 3.0))))
    run.storage.write_table(name, run.storage.read_table(name).slice(0, 0))
    with pytest.raises(UsageError, match="nothing can be compared"):
        judge(run, MODEL, part, TOLERANCE)


class NoWays:
    """Ways that make nothing, of these vectors and of norms before the model's last stage."""

    def __init__(self, right, before_norm):
        self.right, self.before_norm, self.left = right, np.full(len(right), before_norm), list(range(len(right)))

    def __iter__(self):
        return iter(())


NORM, BEFORE = 3.0, 7.0
OF_NUMBERS = {
    "zero": lambda u: 0 * u,
    "not finite": lambda u: u * np.inf,
    "cut to the first 5 of 16 dimensions": lambda u: u * (np.arange(DIM) < 5),
    "scaled to norm 1": lambda u: u / NORM,
    "with the model's own norm": lambda u: u,
    "without the last normalisation": lambda u: u * BEFORE / NORM,
    "2 times as long": lambda u: 2 * u,
    "stored as float16": lambda u: u.astype(np.float16).astype(float),
    None: lambda u: np.append(u, 1.0),
}


@pytest.mark.parametrize("cause", OF_NUMBERS)
def test_what_the_numbers_alone_explain(cause, right):
    model = NORM * right[:3] / np.linalg.norm(right[:3], axis=1, keepdims=True)
    rules = Rules(TOLERANCE._replace(error=1e-6), "unit", "float64", DIM)
    rows = [StoredRow(f"t{k}", "", OF_NUMBERS[cause](u), None, None, None, []) for k, u in enumerate(model)]
    expected = {} if cause is None else dict.fromkeys(range(3), cause)
    with np.errstate(invalid="ignore"):
        assert explain.causes(NoWays(model, BEFORE), rows, rules) == expected
    if cause in ("2 times as long", None):  # Where the model itself gives no vector, nothing can be said.
        assert explain.causes(NoWays(model * np.nan, BEFORE), rows, rules) == {}


def test_a_candidate_makes_nothing_where_the_model_has_explained_all():
    tokenizer = SimpleNamespace(limit=64, max_length=32, prompt="")
    made = variants.of_candidate(SimpleNamespace(tokenizer=tokenizer), "other", [], {"max_length": 64, "prompt": "a"})
    assert list(made) == []


def test_shares_are_of_all_rows_and_of_each_group_with_exact_intervals(right, tmp_path):
    stored, days = right.copy(), ["late" if k >= 30 else "early" for k in range(ROWS_COMPARED)]
    stored[[31, 33]] = -right[[31, 33]]
    run, judgement = judged(tmp_path, right, stored, days)
    table = pl.DataFrame(summary.tables_of(run, judgement, ["day"], {})["verify_summary"])
    rows = {(row["group"], row["cause"]): row for row in table.to_dicts()}
    assert {key: (row["sampled"], row["wrong"]) for key, row in rows.items()} == {
        (None, "any"): (40, 2), (None, "not explained"): (40, 2), ("early", "any"): (30, 0), ("late", "any"): (10, 2),
        ("late", "not explained"): (10, 2),
    }  # fmt: skip
    total = rows[None, "any"]
    assert (total["low"], total["high"]) == pytest.approx((beta.ppf(0.025, 2, 39), beta.ppf(0.975, 3, 38)))
    assert words.answer(table).endswith("all from day=late; nothing that was tried explains them.")
    exact = summary.tables_of(run, judgement._replace(of_all=True), [], {})["verify_summary"].to_pylist()[0]
    assert exact["low"] == exact["share"] == exact["high"] == 2 / ROWS_COMPARED


def explained(folder, right, stored, wrong, texts=None):
    """The cause of each wrong row; `wrong` are their places."""
    run, judgement = judged(folder, right, stored)
    assert wrong_of(judgement) == wrong
    empty = dict.fromkeys((c.name for c in ROWS.columns), "") | {"groups": []}
    rows = [empty | {"text_id": f"t{k}", "vector": np.asarray(stored[k]).tolist()} for k in wrong]
    run.storage.write_table("shards/wrong-00000000.parquet", ROWS.build_rows(rows))
    return summary.causes(run, judgement, [run.part(PARTIALS, MODEL, run.temperatures[0], 0)], texts)


def test_a_vector_of_another_row_is_told_from_one_whose_text_was_edited(right, tmp_path):
    stored = right.copy()
    stored[3], stored[5] = right[20], right[5] + 0.3 * right[6]
    assert explained(tmp_path, right, stored, [3, 5]) == {"t3": summary.OF_ANOTHER, "t5": summary.PROBABLY_EDITED}


def known_earlier(folder, texts, vectors, fingerprint=MODEL.fingerprint):
    """What an audit of these texts and vectors, by their places, knows of the rows, whose texts are their ids."""
    audit, ids = Storage(str(folder)), [f"t{k}" for k in texts]
    unit = np.array([vectors[k] / np.linalg.norm(vectors[k]) for k in texts]).astype(np.float32)
    columns = {"text_id": ids, "content_sha": [*map(sha_of, texts.values())], "embedding": parts.fixed_lists(unit)}
    audit.write_table(place("texts", MODEL, Temperature.of(1.0)) + "/part-00000000.parquet", pa.table(columns))
    model = {"name": "m", "fingerprint": fingerprint, "max_length": 64, "similarity": "cosine"}
    audit.write_json("run.json", {"models": {"m": model}, "config": {"corpus": {}}})
    return earlier.read(audit.root, MODEL, Temperature.of(1.0), {f"t{k}": sha_of(f"t{k}") for k in range(ROWS_COMPARED)})


@pytest.mark.parametrize("fingerprint", [MODEL.fingerprint, "of another model"])
@pytest.mark.parametrize("has_other_texts", [False, True])
def test_an_earlier_audit_knows_which_texts_were_edited(fingerprint, has_other_texts, right, tmp_path):
    """By another text where the vector is nearest to its own, if it has the texts of right rows; or by its own vector."""
    stored, edited = right.copy(), (3, 5, 7, 11)
    stored[3], stored[5], stored[7] = right[20], right[5] + 0.3 * right[6], -right[7]
    stored[9], stored[11] = right[9] + 0.3 * right[6], -right[11]
    then = {k: stored[k] if k in (3, 7) else right[k] for k in range(ROWS_COMPARED)}
    texts = {k: "an older text" if k in edited or has_other_texts else f"t{k}" for k in range(30)}
    known = known_earlier(tmp_path / "audit", texts, then, fingerprint)
    assert len(known.known) == 30
    assert explained(tmp_path / "run", right, stored, [3, 5, 7, 9, 11], known) == {
        "t3": summary.OF_ANOTHER,
        "t5": summary.PROBABLY_EDITED if has_other_texts else summary.EDITED,
        **({"t7": summary.EDITED} if fingerprint == MODEL.fingerprint else {}),
        "t9": summary.PROBABLY_EDITED,
    }


@pytest.mark.parametrize("times", [0.01, 1, 100])
def test_the_vector_of_an_earlier_audit_is_compared_at_the_norm_of_the_stored_one(times, right, tmp_path):
    stored = times * right
    stored[7] = -times * right[7]
    near = {k: -right[7] + 0.5 * right[6] if k == 7 else right[k] for k in range(ROWS_COMPARED)}
    for vectors, cause in (({**near, 7: -right[7]}, summary.EDITED), (near, None)):
        known = known_earlier(tmp_path / str(cause), {7: "an older text"}, vectors)
        assert explained(tmp_path / f"run {cause}", times * right, stored, [7], known).get("t7") == cause


def test_a_sample_takes_each_group_and_length_by_its_share_and_each_row_once(tmp_path):
    storage = Storage(str(tmp_path))
    ids = [f"t{k}" for k in range(1000)]
    rows = {"text_id": ids, "text": ["x" * (3 if k % 2 else 300) for k in range(1000)]}
    groups = pa.array([["a" if k % 10 < 7 else "b"] for k in range(1000)], pa.list_(pa.string()))
    storage.write_table("shards/one.parquet", pa.table(rows | {"groups": groups}))
    index = Index("x", {}, "f", 1000, 0, 1000, 1000, {}, (Shard("shards/one.parquet", 1000),))
    chosen = sample.chosen(storage, index, 100, 0)[0]
    assert len(set(chosen)) == 100
    counts = Counter((k % 10 < 7, k % 2) for k in chosen)
    assert {key: abs(count - share) <= 1 for (key, share), count in zip(
        (((True, 0), 40), ((True, 1), 30), ((False, 0), 10), ((False, 1), 20)),
        (counts[True, 0], counts[True, 1], counts[False, 0], counts[False, 1]), strict=True,
    )} == dict.fromkeys([(True, 0), (True, 1), (False, 0), (False, 1)], True)  # fmt: skip
    assert sample.chosen(storage, index, 100, 1)[0] != chosen
    assert sample.chosen(storage, index, 5000, 0)[0] == list(range(1000))


@pytest.mark.parametrize(("low", "limit", "verdict"), [(0.0, 0.0, "held"), (1e-6, 0.0, "failed"), (0.01, 0.01, "held")])
def test_the_gate_fails_where_the_lower_end_is_above_the_limit(low, limit, verdict):
    row = {"model": "given", "temperature": "1.0", "tau": 1.0, "schema_version": 1, "wrong_share": 0.02}
    check = gate.of_vectors({"low": low, "max_wrong": limit, "answer": "3 of 150 vectors are not the model's."}, row)
    assert (check["verdict"], check["figure"], check["value"]) == (verdict, "wrong_share", 0.02)
    assert gate.verdict([check])[1] == [check["reason"]] * (verdict == "failed")


@pytest.mark.parametrize(
    ("wrong", "low", "limit", "state"), [(0, 0.0, 0.0, "measured"), (3, 0.01, 0.0, "up"), (3, 0.01, 0.05, "noise")]
)
def test_more_wrong_vectors_than_the_limit_are_a_finding(wrong, low, limit, state):
    key = {"model": "m", "temperature": "1.0", "tau": 1.0, "by": None, "group": None}
    row = key | {"cause": "any", "sampled": 100, "wrong": wrong, "share": wrong / 100, "low": low, "high": 0.2}
    table = pl.DataFrame([row], schema_overrides={"by": pl.String})
    assert findings.decide({"verify_summary": table}, limit).of(findings.WRONG, "m", "1.0").state == state


def test_an_audit_is_verified_by_the_settings_by_which_it_is_read():
    corpus = {"source": "x.parquet", "embedding_column": "v", "text_column": "body", "limit": 9, "scale": 0.5, "dims": 4}
    data = {"corpus": corpus, "verify": {"model": "m", "max_length": 64, "by": ["day"], "candidates": ["n"]}, "seed": 3}
    config = checked(AuditConfig, data)
    verifying = config.verification
    assert verifying.model_names == ["m", "n"]
    read = verifying.drawn()
    assert (read.source, read.embedding_column, read.text_column, read.limit) == ("x.parquet", "v", "body", 9)
    assert (read.scale, read.dims, read.sample, verifying.seed) == (0.5, None, 12_000, 3)
    assert (verifying.embedding.max_length, verifying.by) == (64, ["day"])
    # Models count by their files, and an audit without [verify] has the identity that it had before.
    moved = checked(AuditConfig, data | {"verify": data["verify"] | {"model": "elsewhere/m", "candidates": ["elsewhere/n"]}})
    assert moved.identity() == config.identity()
    assert "verify" not in checked(AuditConfig, {"corpus": {"source": "x.parquet"}}).identity()
