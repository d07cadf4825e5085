"""Parts of the comparison -> the tables of `tempscale verify`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale.stats.shares import clopper_pearson
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.corpus.stored import StoredRow, rows_of
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.verify import VERIFIED, VERIFY_SUMMARY
from tempscale_jobs.verify import earlier
from tempscale_jobs.verify.compare import Judged, Rules
from tempscale_jobs.verify.earlier import Earlier
from tempscale_jobs.verify.explain import PARTIALS

ANY, NOT_EXPLAINED = "any", "not explained"
PROBABLY_EDITED, EDITED = "of a text that was probably edited since", "of a text that was edited since"
OF_ANOTHER = "of another row"
_AMONG = 20_000
"""So many texts of the sample, evenly, are compared with a vector that nothing explains."""
_LEAST_AMONG = 30
"""Of fewer texts the nearest says little."""


def tables_of(run: Run, config: VerifyConfig, judged: Judged, compared: Sequence[str]) -> dict[str, pa.Table]:
    """The tables by name. `compared` are the parts of the comparison."""
    model, temperature = run.models[0], run.temperatures[0]
    causes = _causes(run)
    wrong = judged.table.column("wrong").to_numpy(zero_copy_only=False)
    ids = judged.table.column("text_id").to_pylist()
    left = [k for k in np.flatnonzero(wrong).tolist() if causes.get(ids[k]) is None]
    rows = _wrong_rows(run, [ids[k] for k in left])
    causes |= _by_neighbours(run, compared, judged, rows)
    if config.earlier is not None and rows:
        known = earlier.read(config.earlier, model, temperature, [*rows])
        causes |= dict.fromkeys(_edited(rows, known, causes, judged.rules), EDITED)
    key = run.key(model, temperature)
    of_rows = [causes.get(text_id) if is_wrong else None for text_id, is_wrong in zip(ids, wrong.tolist(), strict=True)]
    columns = {name: judged.table.column(name) for name in ("text_id", "tokens", "cosine", "norm_ratio")}
    keys = {name: pa.array([value] * len(ids), VERIFIED.schema().field(name).type) for name, value in key.items()}
    tables = {"verified": VERIFIED.build(keys | columns | {"wrong": wrong, "cause": of_rows})}
    in_groups = list(zip(judged.table.column("groups").to_pylist(), wrong.tolist(), of_rows, strict=True))
    shares = [key | row for row in _groups(in_groups, config.by)]
    if judged.of_all:  # Then a share is exact.
        shares = [row | {"low": row["share"], "high": row["share"]} for row in shares]
    return tables | {"verify_summary": VERIFY_SUMMARY.build_rows(shares)}


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
    run: Run, compared: Sequence[str], judged: Judged, rows: Mapping[str, StoredRow]
) -> dict[str, str]:  # fmt: skip
    """What explains vectors by the texts of the sample: they are another text's, or nearest to their own text."""
    if not rows or judged.table.num_rows < _LEAST_AMONG:
        return {}
    rules, cause_of = judged.rules, dict[str, str]()
    names, norms = (judged.table.column(name).to_pylist() for name in ("text_id", "model_norm"))
    place = {name: k for k, name in enumerate(names)}
    units = np.concatenate([parts.matrix(run.storage.read_table(name, ["embedding"]), "embedding") for name in compared])
    among = np.unique(np.linspace(0, len(units) - 1, min(len(units), _AMONG)).astype(int))
    units = units[:, : rules.width]
    units = units / np.maximum(np.linalg.norm(units, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    others = units[among]
    for text_id, vector in ((text_id, row.vector) for text_id, row in rows.items() if len(row.vector) == rules.width):
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
    rows: Mapping[str, StoredRow], known: Earlier, causes: Mapping[str, str | None], rules: Rules
) -> Iterator[str]:  # fmt: skip
    """The rows whose text an earlier audit has otherwise, and whose vector is near their text or that audit's vector."""
    for text_id, row in rows.items():
        if causes.get(text_id) == OF_ANOTHER or not known.is_edited(row):
            continue
        then = known.vectors.get(text_id)
        is_that = then is not None and rules.allows(row.vector, then, rules.tolerance.error)
        if is_that or causes.get(text_id) == PROBABLY_EDITED:
            yield text_id


def _wrong_rows(run: Run, ids: Sequence[str]) -> dict[str, StoredRow]:
    """Some wrong rows by their ids."""
    wanted = set(ids)
    names = [name for name in run.storage.list("shards") if "/wrong-" in name] if ids else []
    rows = (row for name in names for row in rows_of(run.storage.read_table(name)))
    return {row.text_id: row for row in rows if row.text_id in wanted}


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
