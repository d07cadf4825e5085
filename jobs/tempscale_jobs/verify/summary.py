"""Parts of the comparison -> the tables of `tempscale verify`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.stats.shares import clopper_pearson
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.verify import VERIFIED, VERIFY_SUMMARY
from tempscale_jobs.verify.compare import Judged
from tempscale_jobs.verify.earlier import EarlierTexts
from tempscale_jobs.verify.explain import PARTIALS

ANY, NOT_EXPLAINED = "any", "not explained"
PROBABLY_EDITED, EDITED = "of a text that was probably edited since", "of a text that was edited since"
OF_ANOTHER = "of another row"
_AMONG = 20_000
"""So many texts of the sample, evenly, are compared with a vector that nothing explains."""
_LEAST_AMONG = 30
"""Of fewer texts the nearest says little."""


def tables_of(run: Run, judged: Judged, by: Sequence[str], causes: Mapping[str, str | None]) -> dict[str, pa.Table]:
    """The tables by name. `causes` are those of the wrong rows, by id."""
    model, temperature = run.models[0], run.temperatures[0]
    wrong = judged.table.column("wrong").to_numpy(zero_copy_only=False)
    ids = judged.table.column("text_id").to_pylist()
    key = run.key(model, temperature)
    of_rows = [causes.get(text_id) if is_wrong else None for text_id, is_wrong in zip(ids, wrong.tolist(), strict=True)]
    columns = {name: judged.table.column(name) for name in ("text_id", "tokens", "cosine", "norm_ratio")}
    keys = {name: pa.array([value] * len(ids), VERIFIED.schema().field(name).type) for name, value in key.items()}
    tables = {"verified": VERIFIED.build(keys | columns | {"wrong": wrong, "cause": of_rows})}
    rows = list(zip(judged.table.column("groups").to_pylist(), wrong.tolist(), of_rows, strict=True))
    shares = [key | row for row in _groups(rows, by)]
    if judged.of_all:  # Then a share is exact.
        shares = [row | {"low": row["share"], "high": row["share"]} for row in shares]
    return tables | {"verify_summary": VERIFY_SUMMARY.build_rows(shares)}


def causes(run: Run, judged: Judged, compared: Sequence[str], texts: EarlierTexts | None) -> dict[str, str | None]:
    """What explains each wrong row, by id. `compared` are the parts of the comparison, `texts` those of an earlier audit."""
    cause_of = _causes(run)
    wrong = judged.table.filter(judged.table.column("wrong")).column("text_id").to_pylist()
    stored = _stored(run, [text_id for text_id in wrong if cause_of.get(text_id) is None])
    cause_of |= _by_neighbours(run, compared, judged, stored)
    if texts is not None:
        cause_of |= dict.fromkeys(_edited(judged, stored, texts, cause_of), EDITED)
    return cause_of


def _causes(run: Run) -> dict[str, str | None]:
    """What explains each wrong row: the model's own ways, then the candidates."""
    causes = dict[str, str | None]()
    for model in run.models:
        for name in run.storage.list(run.place(PARTIALS, model, run.temperatures[0])):
            table = run.storage.read_table(name)
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            causes |= {text_id: cause for text_id, cause in rows if causes.get(text_id) is None}
    return causes


def _by_neighbours(
    run: Run, compared: Sequence[str], judged: Judged, stored: Mapping[str, np.ndarray]
) -> dict[str, str]:  # fmt: skip
    """What explains vectors by the texts of the sample: they are another text's, or nearest to their own text."""
    if not stored or judged.table.num_rows < _LEAST_AMONG:
        return {}
    rules, cause_of = judged.rules, dict[str, str]()
    names, norms = (judged.table.column(name).to_pylist() for name in ("text_id", "model_norm"))
    place = {name: k for k, name in enumerate(names)}
    units = np.concatenate([parts.matrix(run.storage.read_table(name, ["embedding"]), "embedding") for name in compared])
    among = np.unique(np.linspace(0, len(units) - 1, min(len(units), _AMONG)).astype(int))
    units = units[:, : rules.width]
    units = units / np.maximum(np.linalg.norm(units, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    others = units[among]
    for text_id, vector in stored.items():
        if len(vector) != rules.width:
            continue
        own = place[text_id]
        scaled = rules.tolerance.storage.numbers(vector)
        scaled = (scaled / max(float(np.linalg.norm(scaled)), np.finfo(float).tiny)).astype(np.float32)
        cosines = others @ scaled
        cosines[among == own] = -np.inf
        nearest = int(among[np.argmax(cosines)])
        norm = 1.0 if rules.norms == "unit" else norms[nearest]
        if rules.allows(vector, norm * units[nearest].astype(np.float64), rules.tolerance.error):
            cause_of[text_id] = OF_ANOTHER
        elif float(units[own] @ scaled) >= float(cosines.max()):
            cause_of[text_id] = PROBABLY_EDITED
    return cause_of


def _edited(
    judged: Judged, stored: Mapping[str, np.ndarray], texts: EarlierTexts, cause_of: Mapping[str, str | None]
) -> Iterator[str]:  # fmt: skip
    """The rows for which the audit has another text, and whose vector is near their own text, or is the audit's.

    The first proves nothing where the audit has other texts for most right rows too: then it is of another column.
    """
    right = texts.known & {*judged.table.filter(pc.invert(judged.table.column("wrong"))).column("text_id").to_pylist()}
    is_of_these = 2 * len(right & texts.edited) < len(right)
    for text_id in texts.edited & stored.keys():
        vector, then = stored[text_id], texts.vectors.get(text_id)
        if cause_of.get(text_id) == PROBABLY_EDITED and is_of_these:
            yield text_id
        elif cause_of.get(text_id) != OF_ANOTHER and then is not None:
            norm = float(np.linalg.norm(judged.rules.tolerance.storage.numbers(vector)))
            if judged.rules.allows(vector, norm * then, judged.rules.tolerance.error):
                yield text_id


def _stored(run: Run, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """The stored vectors of some wrong rows."""
    wanted, vectors = set(ids), dict[str, np.ndarray]()
    for name in (name for name in run.storage.list("shards") if "/wrong-" in name and wanted):
        for row in run.storage.read_table(name, ["text_id", "vector"]).to_pylist():
            if row["text_id"] in wanted:
                vectors[row["text_id"]] = np.array(row["vector"], dtype=np.float64)
    return vectors


def _groups(rows: Sequence[tuple[list[str | None], bool, str | None]], by: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of the summary: all rows, then each group of each column."""
    yield from _shares(None, None, [(wrong, cause) for _, wrong, cause in rows])
    for place, column in enumerate(by):
        of_values = defaultdict[str | None, list[tuple[bool, str | None]]](list)
        for groups, wrong, cause in rows:
            of_values[groups[place]].append((wrong, cause))
        for value in sorted(of_values, key=lambda value: (value is not None, value or "")):
            yield from _shares(column, value, of_values[value])


def _shares(by: str | None, group: str | None, rows: Sequence[tuple[bool, str | None]]) -> Iterator[dict[str, Any]]:
    """The share of wrong rows, and of each cause, the most frequent first."""
    counts = Counter(cause or NOT_EXPLAINED for wrong, cause in rows if wrong)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    for cause, number in [(ANY, sum(counts.values())), *ordered]:
        low, high = clopper_pearson(number, len(rows))
        yield {
            "by": by, "group": group, "cause": cause, "sampled": len(rows), "wrong": number, "share": number / len(rows),
            "low": low, "high": high,
        }  # fmt: skip
