"""Mistakes in the code that decides: each is one replacement that some test must notice. `mutants.py` makes them.

They are found by their shape (`shapes.py`): a local variable may be renamed and code may move inside its function. `...` in a
quotation is code that does not matter, and `**...` such keywords or items of a dictionary.
"""

from __future__ import annotations

from typing import NamedTuple

JOBS, SCIENCE = "jobs/tempscale_jobs", "tempscale"


class Mutation(NamedTuple):
    """A mistake: code that a function has once, and what it is replaced by."""

    file: str
    function: str
    """`function`, `Class.method` or `Class`; empty for what is outside of both."""
    old: str
    """An expression or statements; the condition of an `if` is an expression."""
    new: str
    reason: str = ""
    """Why no test can notice it; empty where one must."""


class Subject(NamedTuple):
    """Mistakes that the same tests must notice, the fastest tests first."""

    name: str
    tests: tuple[str, ...]
    mutations: tuple[Mutation, ...]


def of(file: str, *entries: tuple[str, ...]) -> tuple[Mutation, ...]:
    """Mutations of one file from (function, old, new) or (function, old, new, reason)."""
    return tuple(Mutation(file, *entry) for entry in entries)


GATE = Subject(
    "the gate, its noise and its baseline",
    (
        "tests/jobs/nights/test_gate.py",
        "tests/jobs/nights/test_series.py",
        "tests/jobs/nights/test_record.py",
        "tests/jobs/nights/test_compare.py",
    ),
    of(
        f"{JOBS}/nights/gate.py",
        ("_judged", "check.excess > max(check.size, noise or 0.0)", "check.excess > min(check.size, noise or 0.0)"),
        ("_judged", "check.excess > max(check.size, noise or 0.0)", "check.excess >= max(check.size, noise or 0.0)"),
        ("_judged", "check.error is None and check.excess > check.size", "False"),
        ("_judged", "check.error is None and check.excess > check.size", "check.error is None"),
        ("_judged", 'verdict = "failed" if unknown == "fail" else "unknown noise"', 'verdict = "unknown noise"'),
        ("_judged", 'verdict = "failed" if unknown == "fail" else "unknown noise"', 'verdict = "failed"'),
        ("_drift", "error and freedom < _LEAST_FREEDOM", "False"),
        ("_drift", "error and freedom < _LEAST_FREEDOM", "freedom < _LEAST_FREEDOM"),
        (
            "Baseline.begins",
            'self.first or (self.other and gate.on_other_model == "new-series")',
            "self.first or self.other",
        ),
        ("Baseline.begins", 'self.first or (self.other and gate.on_other_model == "new-series")', "self.first"),
        ("judge", "checks += _series(gate, row, baseline)", "pass"),
        ("_series", "baseline.other", "False"),
        ("_noise", 'tail = alpha if check.kind == "threshold" else alpha / 2', "tail = alpha"),
        ("judge", "gate.false_alarms / max(1, noisy)", "gate.false_alarms"),
        ("judge", "check.decided is None and check.excess is not None and bool(check.error)", "check.decided is None"),
        ("", "_LEAST_FREEDOM = 2", "_LEAST_FREEDOM = 200"),
        ("_threshold", "max(threshold.excess(value), math.ulp(0.0))", "threshold.excess(value)"),
        (
            "_threshold",
            "error = standard_error(row, threshold.figure, of_this_corpus=exact)",
            "error = standard_error(row, threshold.figure)",
        ),
        (
            "_drift",
            "None if None in errors else math.hypot(*(e for e in errors if e is not None))",
            "None if errors == (None, None) else math.hypot(*(e for e in errors if e is not None))",
        ),
        ("_drift", "freedom = min(_freedom(other, figure), _freedom(row, figure))", "freedom = _freedom(row, figure)"),
        ("_drift", "math.hypot(*(e for e in errors if e is not None))", "max(e for e in errors if e is not None)"),
        ("", '_FAILED = ("failed", "not measured")', '_FAILED = ("failed",)'),
        (
            "verdict",
            'return ("failed" if failed else "passed") if rows else "none", failed',
            'return "failed" if failed else "passed", failed',
        ),
        ("_drift", "other[name] != row[name]", "False"),
        ("judge", 'gate.holds_for(row["temperature"])', "True"),
        ("_pooled", "return max(pooled[0], own[0]), max(pooled[1], own[1])", "return pooled[0], pooled[1]"),
        ("_drift", "figure in SHARES and None not in errors", "False"),
        ("_drift", 'errors = (errors[1], errors[1]) if other.get("documents") is None else (errors[0], errors[0])', "pass"),
        ("_known", "return None if value is None else finite(value)", "return value"),
        (
            "standard_error",
            "return None if found is None or not math.isfinite(found) else float(found)",
            "return 0.0 if found is None else float(found)",
        ),
    )
    + of(
        f"{JOBS}/config/nights.py",
        ("Threshold.holds", '(excess == 0 and self.relation in ("<=", ">="))', "excess == 0"),
        ("Threshold.excess", 'self.relation in ("<=", "<")', 'self.relation == "<="'),
    )
    + of(
        f"{JOBS}/nights/record.py",
        ("_fit", 'night["gate"] == "passed" and night["compared"] is not False', 'night["gate"] == "passed"'),
        (
            "_fit",
            'night["gate"] == "passed" and night["compared"] is not False',
            'night["gate"] == "passed" and night["compared"]',
        ),
        ("_fit", 'night["accepted"] or (...)', "..."),
        ("_continued", 'same = ("temperature", "model_fingerprint")', 'same = ("temperature",)'),
        ("_continued", "all(... for key in same) and comparable(before, row)", "all(... for key in same)"),
        ("_latest", "_continued(then, tonight)", "_continued(then, [row])"),
        ("_latest", "not _continued(then, tonight)", "False"),
        ("_latest", '[then for then in good if then["run"] == good[-1]["run"]]', "[then for then in good if False]"),
        (
            "_latest",
            '[then for then in good if then["run"] == good[-1]["run"]] or earlier',
            '[then for then in good if then["run"] == good[-1]["run"]]',
        ),
        ("_latest", "any(map(_has_width, earlier))", "False"),
        ("", '_UNKNOWN_BEFORE = ("dimensions",)', "_UNKNOWN_BEFORE = ()"),
        ("_in_run", "any(not _continued(other, tonight) for other in same)", "False"),
        (
            "read",
            '(...).unique(..., keep="last", maintain_order=True)',
            '(...).unique(..., keep="first", maintain_order=True)',
        ),
        ("_latest", "Baseline(fit[-1], ...)", "Baseline(fit[0], ...)"),
    )
    + of(
        f"{JOBS}/nights/night.py",
        ("judge", "baseline.begins(config)", "baseline.first"),
        ("judge", "[at for at, baseline in ... if not baseline.begins(config)]", "[at for at, baseline in ...]"),
    ),
)

NUMBERS = Subject(
    "numbers that users give, and means of rounding errors",
    (
        "tests/jobs/config/test_numbers.py",
        "tests/jobs/nights/test_gate.py",
        "tests/jobs/corpus/test_magnitudes.py",
        "tests/jobs/steps/test_cancelling.py",
        "tests/tempscale/second_order/test_moments.py",
    ),
    of(
        f"{JOBS}/config/nights.py",
        ("Threshold.read", "math.isinf(float(limit))", "False"),
    )
    + of(
        f"{JOBS}/config/strict.py",
        ("Strict", "ConfigDict(**..., allow_inf_nan=False)", "ConfigDict(**...)"),
        ("_large_numbers", "value.bit_length() > _BITS", "value.bit_length() > 64"),
        ("_large_numbers", "isinstance(value, list)", "False"),
    )
    + of(
        f"{JOBS}/config/given.py",
        (
            "read_toml",
            "try: ...\nexcept ...: ...\nexcept ...: ...\nexcept ... as error: ...\nexcept ValueError: ...",
            "try: ...\nexcept ...: ...\nexcept ...: ...\nexcept ... as error: ...\nexcept KeyError: ...",
        ),
    )
    + of(
        f"{JOBS}/corpus/vectors.py",
        ("unit_rows", "scaled = np.ldexp(rows, -exponent[:, None])", "scaled = rows"),
        ("numbers", "row = np.asarray(value, dtype=np.float64)", "row = np.asarray(value, dtype=np.float32)"),
        ("Reader.__init__", "np.asarray(settings.scale, dtype=np.float64)", "np.asarray(settings.scale, dtype=np.float32)"),
        ("unit_rows", "np.flatnonzero(~finite).tolist()", "[]"),
        ("unit_rows", "np.flatnonzero(largest == 0).tolist()", "[]"),
    )
    + of(
        f"{JOBS}/steps/embed.py",
        (
            "without_direction",
            "np.isnan(out.moments.spread.numpy()) & np.isfinite(out.moments.mean_norm.numpy())",
            "np.isnan(out.moments.spread.numpy())",
        ),
    )
    + of(
        f"{SCIENCE}/second_order/moments.py",
        ("", "_ROUNDING = 4.0", "_ROUNDING = 2.0"),
        ("", "_ROUNDING = 4.0", "_ROUNDING = 8.0"),
        ("", "_MARGIN = 2.0", "_MARGIN = 1.0"),
        ("TokenSums.moments", "torch.where(spread < most, spread, torch.nan)", "spread"),
        ("_most_spread", "1 / (_ROUNDING**2 * tokens * epsilon**2)", "1 / (_ROUNDING**2 * epsilon**2)"),
        (
            "_epsilon",
            "return min(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)",
            "return torch.finfo(torch.float32).eps",
        ),
        (
            "Scatter.factor",
            "_with_direction(self.mean / norm, rows, self.tokens, _epsilon(torch.float32)).float()",
            "(self.mean / norm).float()",
        ),
    ),
)

BOUNDS = Subject(
    "the most collapsed pairs by bounds",
    ("tests/tempscale/second_order/test_bounds.py", "tests/jobs/steps/test_factor_pairs.py"),
    of(
        f"{SCIENCE}/second_order/bounds.py",
        ("d_sigma_bound", "(both - 2 * norms) / 4", "(both - 3 * norms) / 4"),
        ("d_sigma_bound", "SLACK * both", "0.0"),
        ("d_sigma_bound", "factor[:rows]", "factor[-rows:]"),
    )
    + of(
        f"{SCIENCE}/second_order/nuclear.py",
        (
            "principal_rows",
            "torch.linalg.eigh(wide @ wide.mT).eigenvectors.flip(1)",
            "torch.linalg.eigh(wide @ wide.mT).eigenvectors",
        ),
        ("principal_rows", "axes.mT @ wide", "axes @ wide"),
    )
    + of(
        f"{JOBS}/steps/factor_pairs.py",
        ("most_collapsed", "max(thresholds[ranking], float(reached))", "thresholds[ranking]"),
        ("most_collapsed", "max(thresholds[ranking], float(reached))", "2 * float(reached)"),
        ("most_collapsed", "len(chosen) == analysis.worst_pairs", "True"),
        ("most_collapsed", "len(places) <= _FEW * analysis.worst_pairs", "False"),
        ("most_collapsed", "remaining[ranking][places] &= kept", "pass"),
        ("_largest", "np.argpartition(values[allowed], -count)[-count:]", "np.argpartition(values[allowed], count)[:count]"),
    ),
)

ERRORS = Subject(
    "standard errors",
    (
        "tests/tempscale/stats/test_errors_by_hand.py",
        "tests/tempscale/stats/test_documents.py",
        "tests/tempscale/collapse/test_aggregates.py",
        "tests/tempscale/stats/test_paired.py",
        "tests/jobs/steps/test_cosine_stage.py",
    ),
    of(
        f"{SCIENCE}/stats/errors.py",
        ("within_error", "return float(2.0 * np.sqrt(variance / texts))", "return float(np.sqrt(variance / texts))"),
        ("between_error", "np.sqrt(row_variance / rows + column_variance / columns)", "np.sqrt(row_variance / rows)"),
        ("finite_population", "np.sqrt(max(0.0, 1.0 - texts / population))", "np.sqrt(max(0.0, texts / population))"),
        ("finite_population", "... if population > 0 else 0.0", "... if population > 0 else 1.0"),
        ("_equal", "texts.sum() ** 2 / np.square(texts).sum()", "texts.sum() / texts.max()"),
        (
            "_enough",
            "len(texts) >= GROUPS_FOR_AN_ERROR and _equal(texts) >= EQUAL_DOCUMENTS_FOR_AN_ERROR",
            "_equal(texts) >= EQUAL_DOCUMENTS_FOR_AN_ERROR",
        ),
        ("_enough", "_equal(texts) >= EQUAL_DOCUMENTS_FOR_AN_ERROR", "True"),
        ("error_of_sums", "weight * np.sqrt(count / (count - 1)) * centred / texts", "weight * centred / texts"),
        ("error_of_sums", "centred = sums - own.texts * (sums.sum() / texts)", "centred = sums - sums.mean()"),
        ("DocumentSums.merged", "texts[here] += own.texts", "texts[here] = own.texts"),
        (
            "error_of_sums",
            "np.square(np.bincount(place, np.concatenate(shares))).sum()",
            "np.square(np.concatenate(shares)).sum()",
        ),
    ),
)

GROUPS = Subject(
    "SOCM of groups",
    (
        "tests/tempscale/stats/test_groups.py",
        "tests/jobs/steps/test_group_tables.py",
        "tests/tempscale/stats/test_documents.py",
        "tests/jobs/audit/test_groups.py",
    ),
    of(
        f"{SCIENCE}/stats/groups.py",
        ("jackknife_error", "(groups - 1) / groups * ...", "1 / groups * ..."),
        ("jackknife_error", "groups < GROUPS_FOR_AN_ERROR", "groups < 2"),
        (
            "shares_of_pairs",
            "np.fill_diagonal(pairs, texts * (texts - 1) / 2)",
            "np.fill_diagonal(pairs, texts * texts / 2)",
        ),
        ("pairs_of_sets", "np.concatenate([every - same, same], axis=1)", "np.concatenate([every, same], axis=1)"),
        ("_weighted", "known = np.where(counts > 0, weights, 0.0)", "known = weights * np.ones(counts.shape)"),
        ("GroupSums.replicates", "values.sum(0) - values[has]", "values.sum(0) - values"),
        ("quantile", "float(high - low) / (2 * Z_95)", "float(high - low) / Z_95"),
        ("quantile", "... or ends[0] <= 0 or ends[1] >= 1 or ...", "... or ends[0] <= 0 or ..."),
        ("covariance_of_shares", "4 / texts * (np.diag(p) - np.outer(p, p))", "4 / texts * np.diag(p)"),
        ("covariance_of_shares", "4 * len(names) / (len(names) - 1) * moved.T", "4 * moved.T"),
        ("texts_of_a_group", "(found + 1) * groups <= texts", "found * groups <= texts"),
    )
    + of(
        f"{JOBS}/steps/dealing.py",
        (
            "document_sets",
            "set_of[order] = np.arange(len(names)) % count",
            "set_of[order] = np.arange(len(names)) * count // len(names)",
        ),
        ("_dealt", "chosen[turn * size : (turn + 1) * size]", "chosen[:size]"),
        ("_dealt", "here if set_of is None else here[set_of[here] == number]", "here"),
        ("document_sets", "return found if enough_documents(found) else None", "return found"),
    )
    + of(
        f"{JOBS}/steps/group_tables.py",
        ("Cells.of", "place[np.minimum(one, other), np.maximum(one, other)]", "place[one, other]"),
        (
            "Cells.of",
            "(document[found.first] == document[found.second])",
            "(document[found.first] != document[found.second])",
        ),
    ),
)

CACHE = Subject(
    "the cache",
    (
        "tests/jobs/steps/test_key.py",
        "tests/jobs/runs/test_finished_pieces.py",
        "tests/jobs/steps/test_cache.py",
    ),
    of(
        f"{JOBS}/steps/cache.py",
        ("key", '{**..., "model": model.fingerprint, **...}', "{**..., **...}"),
        ("key", "temperature.canonical", '""'),
        ("key", '{**..., "role": cache.role if temperature.roles else None, **...}', "{**..., **...}"),
        ("key", '{**..., "max_length": model.max_length, **...}', "{**..., **...}"),
        ("key", '{**..., "long": cache.encoding.long, **...}', "{**..., **...}"),
        ("key", '{**..., "precision": _computed_in(cache.encoding.precision, bool(cluster.gpus)), **...}', "{**..., **...}"),
        ("key", '{**..., "max_characters": cache.max_characters, **...}', "{**..., **...}"),
        ("key", '{**..., "device": "gpu" if cluster.gpus else "cpu", **...}', "{**..., **...}"),
        ("key", '("torch", "transformers")', '("torch",)'),
        ("key", '".".join(metadata.version(name).split(".")[:2])', '""'),
        ("key", 'values["prompt"] = prompt', "pass"),
        ("key", '("compiled", "packed")', '("compiled",)'),
        (
            "cached_texts",
            "try:\n    table = store.read_table(name)\nexcept Exception: ...",
            "try:\n    table = store.read_table(name)\nexcept OSError: ...",
        ),
        ("cached_texts", "not table.schema.equals(schema)", "False"),
        ("_usable", "good &= ~table.column(name).is_null().to_numpy()", "pass"),
        ("_usable", 'good &= np.isfinite(table.column(name).fill_null(float("nan")).to_numpy())', "pass"),
        ("_usable", "good & (np.abs(norms - 1) <= _TOLERANCE)", "good"),
        ("cached_texts", "tables.append(table.filter(pa.array(good)))", "tables.append(table)"),
        ("_each_once", "at = first.setdefault(sha, row)", "at = first[sha] = row"),
        ("_each_once", "conflicts.add(sha)", "pass"),
        ("is_foreign", "not isinstance(written, dict) or {key: written.get(key) for key in values} != values", "False"),
        ("add_texts", "is_foreign(store, values)", "False"),
    )
    + of(
        f"{JOBS}/steps/lookup.py",
        (
            "look_up_range",
            'everywhere &= set(tables[-1].column("content_sha").to_pylist())',
            'everywhere |= set(tables[-1].column("content_sha").to_pylist())',
        ),
        ("look_up_range", 'columns |= {"truncated": pc.or_(rows.column("truncated"), hits.column("cut"))}', ""),
        (
            "look_up_range",
            'columns |= {"truncated": pc.or_(rows.column("truncated"), ...)}\ncolumns |= {column: hits.column(column) for column in ...}',
            'columns |= {"truncated": pc.or_(rows.column("truncated"), ...)}\ncolumns |= {column: rows.column(column) for column in ()} | {column: hits.column(column).take(pa.array(range(hits.num_rows))[::-1]) for column in ...}',
        ),
        ("look_up", "run.temperatures", "()"),
    )
    + of(
        f"{JOBS}/steps/prune.py",
        ("prune", "age >= unused_days", "age > 0"),
        ("_merge", "name != kept", "True"),
        ("_merge", 'np.searchsorted(hashes, found, "right") > np.searchsorted(hashes, found)', "np.full(len(found), True)"),
        ("_files", "_OURS.fullmatch", "bool"),
        ("_readable", "store.remove(name)", "pass"),
        (
            "_merge",
            "{name: table for name, table in tables.items() if table.schema.equals(next(iter(tables.values())).schema)}",
            "{name: table for name, table in tables.items()}",
        ),
    ),
)

LOCKS = Subject(
    "locks",
    ("tests/jobs/runs/test_lock.py",),
    of(
        f"{JOBS}/runs/lock.py",
        ("Lock.check", "self.lost.is_set() or not _tried(lambda: _holds(self._storage, own))", "self.lost.is_set()"),
        (
            "Lock.check",
            "self.lost.is_set() or not _tried(lambda: _holds(self._storage, own))",
            "not _tried(lambda: _holds(self._storage, own))",
        ),
        ("_taken", "if _tried(lambda: _holds(storage, own)):\n    return True", "return True"),
        ("_taken", "not owner_is_gone(other, waiting, storage)", "False"),
        ("_taken", "_tried(lambda: _read(storage)) == other", "True"),
        ("_created", "storage.create(NAME, _written(own)) or _holds(storage, own)", "storage.create(NAME, _written(own))"),
        ("_tried", "wait is None or error.errno in _LASTING", "True"),
        ("owner_is_gone", "process.status() == psutil.STATUS_ZOMBIE", "False"),
        ("owner_is_gone", 'return bool(other["ticks"] != started_ticks(other["pid"]))', "return False"),
        ("owner_is_gone", 'other.get("ticks") is not None', "False"),
        ("owner_is_gone", 'time.time() - other["renewed"] > _FORGOTTEN_SECONDS', "False"),
        ("owner_is_gone", "now != other", "False"),
        ("locked", "if _holds(storage, own):\n    storage.remove(NAME)", "storage.remove(NAME)"),
        ("_renew", "lost.set()\nreturn", "pass"),
    )
    + of(
        f"{JOBS}/lifecycle.py",
        ("Lifecycle.finish", "self.lock.check()", ""),
    )
    + of(
        f"{JOBS}/runs/storage.py",
        ("Storage.create", "if error.errno not in _NO_LINKS:\n    raise", "pass"),
        ("_created_alone", "os.O_CREAT | os.O_EXCL | os.O_WRONLY", "os.O_CREAT | os.O_WRONLY"),
        ("Storage.create", "not _CREATES.intersection(...)", "False and not _CREATES.intersection(...)"),
    ),
)

STORAGE = Subject(
    "storage, and what notices damage",
    (
        "tests/jobs/runs/test_storage.py",
        "tests/jobs/runs/test_object_storage.py",
        "tests/jobs/runs/test_sealed.py",
    ),
    of(
        f"{JOBS}/runs/storage.py",
        ("Storage.write", 'fs.info(target)["size"] != len(data)', "False"),
        ("Storage.remove", "self.is_local or not has_magic(path)", "True"),
        (
            "Storage.__init__",
            'scheme, remote, rest = root.partition("://")\nself.root = f"{scheme}://{rest.rstrip(\'/\')}" if remote else ...',
            'scheme, remote, rest = root.partition("://")\nself.root = root if remote else ...',
        ),
        (
            "Storage.write",
            "with _temporary(target, data, durable) as temporary:\n    os.replace(temporary, target)",
            "with _temporary(target, data, durable) as temporary:\n    open(target, 'wb').write(data)",
        ),
        (
            "Storage.list",
            'return sorted(n for n in names if n.endswith(suffix) and not n.rsplit("/", 1)[-1].startswith(_TEMPORARY))',
            "return sorted(n for n in names if n.endswith(suffix))",
        ),
        ("_temporary", "if os.path.exists(temporary):\n    os.unlink(temporary)", "pass"),
        (
            "Storage.write",
            'why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or reason(error, self.root)',
            "raise",
        ),
        (
            "Storage.create",
            "try: ...\nexcept FileExistsError:\n    return False\nexcept OSError as error: ...",
            "try: ...\nexcept FileExistsError:\n    return True\nexcept OSError as error: ...",
        ),
        (
            "Storage.filesystem",
            "fsspec.core.url_to_fs(self.root, use_listings_cache=False)",
            "fsspec.core.url_to_fs(self.root)",
        ),
        ("Storage.write", "self._check()\nfs, _ = self.filesystem", "fs, _ = self.filesystem"),
        ("Storage.read_range", "found.max >= low", "found.max > low"),
        ("Storage.read_range", "pc.less(values, ...)", "pc.less_equal(values, ...)"),
        ("Storage.arrays", "if filled + len(values[0]) > rows:\n    break", "pass"),
        ("Storage._parquet", "(sealed.Broken, pa.ArrowException)", "sealed.Broken"),
        ("Storage._parquet", "if type(error) is not OSError or error.errno is not None:\n    raise", "pass"),
        (
            "_temporary",
            "stream.flush()\nos.fsync(stream.fileno())",
            "stream.flush()",
            "only a machine that loses its power could tell",
        ),
    )
    + of(
        f"{JOBS}/runs/sealed.py",
        ("opened", "pq.ParquetFile(stream, **..., page_checksum_verification=True)", "pq.ParquetFile(stream, **...)"),
        (
            "parquet",
            "pq.write_table(table, sink, **..., write_page_checksum=True)",
            "pq.write_table(table, sink, **..., write_page_checksum=False)",
        ),
        ("opened", "seal[len(_MARK) :] != _digest(footer)", "False"),
        ("loads", "value.pop(_KEY) != _checksum(value)", "value.pop(_KEY) is None"),
        ("loads", "len(last) == len(_KEY) and sum(map(operator.ne, last, _KEY)) == 1 and ...", "False and ..."),
        ("opened", '... or tail[-4:] != b"PAR1" or ...', "... or ...", "Arrow refuses such a file too, in other words"),
    ),
)

MENDING = Subject(
    "what is made again",
    (
        "tests/jobs/runs/test_inventory.py",
        "tests/jobs/runs/test_mending.py",
        "tests/jobs/runs/test_finished_runs.py",
    ),
    of(
        f"{JOBS}/runs/mending.py",
        ("mend", 'name.split("/")[0] not in folder.names_of(command)', "name == error.path"),
        ("_remove", "top in _BELOW", "False"),
        ("_read_again", "for file in [SHARDED] if ... else ...: ...", "for file in [] if ... else ...: ..."),
        (
            "_read_again",
            "for file in ...:\n    if file not in (PLANNED, SIZES):\n        storage.remove(file)",
            "for file in ...:\n    if file not in (PLANNED, SIZES):\n        pass",
        ),
        ("_remove", "_remove_one_with(storage, name, model)", "pass"),
        ("_remove", 'storage.remove("/".join([*name.split("/")[:4], "result.json"]))', "pass"),
        ("reopen", "storage.exists(PRUNED)", "False"),
        ("reopen", "not name.startswith(_REWRITTEN) and name != DONE", "False"),
        ("reopen", '"source_state" in record.get(section, {})', "False"),
    )
    + of(
        f"{JOBS}/runs/inventory.py",
        ("damaged", "{... for name, now in ... if now == files[name][1]}", "{... for name, now in ...}"),
        (
            "damaged",
            "sizes.get(name) == size and digest is not None",
            "digest is not None and name in sizes",
            "a file of another size has another digest; to compare sizes first only saves the time to read it",
        ),
        ("record", 'found.get("run") == run', "True"),
        ("damaged", "return found if _is_whole(storage, record) else [*found, DONE]", "return found"),
        ("damaged", "write(storage, record)\nreturn []", "return []"),
        (
            "damaged",
            "{name: own for name, own in ... if not (pruned and name.startswith(pruned))}",
            "{name: own for name, own in ...}",
        ),
    )
    + of(
        f"{JOBS}/lifecycle.py",
        ("mended", "if not error.mended:\n    raise", "pass"),
        ("mended", "error.path in mended", "False"),
        ("Lifecycle.record", "self.is_mended and self.finished is not None", "False"),
        ("Lifecycle.finish", "inventory.write(self.run.storage, self._record)", "pass"),
        ("Lifecycle.note_restored", "inventory.note(storage, names)", "pass"),
    )
    + of(
        f"{JOBS}/audit/run.py",
        ("_finished", "check_unchanged(config, finished)", "pass"),
        ("_end_night", "gate_changed or life.is_mended", "gate_changed"),
    ),
)

DAMAGED_NIGHTS = Subject(
    "damaged nights",
    ("tests/jobs/nights/test_record.py",),
    of(
        f"{JOBS}/nights/record.py",
        ("_part", "(RunError, OSError)", "OSError"),
        ("_part", "return _typed(found) if _ALWAYS_THERE.issubset(found.columns) else None", "return _typed(found)"),
        ("read", "if frame is None:\n    damaged.append(name)\nelse: ...", "if frame is None:\n    pass\nelse: ..."),
        ("of_run", "try: ...\nexcept Damaged as error: ...", "try: ...\nexcept OSError as error: ..."),
    )
    + of(
        f"{JOBS}/nights/night.py",
        ("_others", "[name for name in damaged if name != history.part(rows_of_night)]", "[name for name in damaged]"),
        ("count_changed_texts", "any(name > str(history.part([last])) for name in known.damaged)", "known.damaged"),
        (
            "count_changed_texts",
            "if any(name > str(history.part([last])) for name in known.damaged):\n    return dict(_UNKNOWN)",
            "if False:\n    return dict(_UNKNOWN)",
        ),
        ("prune_record", "try: ...\nexcept RunError:\n    continue", "try: ...\nexcept KeyError:\n    continue"),
    ),
)

REREAD = Subject(
    "what is read again of a source",
    ("tests/jobs/corpus/test_stream.py",),
    of(
        f"{JOBS}/corpus/stream.py",
        ("SourceReader._read_units", "reading.unit_name(unit.number) in existing", "False"),
        ("SourceReader._sampled", "reading.chosen_of(number) not in existing", "True"),
    ),
)

RESUMED = Subject(
    "what a resumed run does again",
    (
        "tests/jobs/runs/test_finished_pieces.py",
        "tests/jobs/steps/test_cut_texts.py",
        "tests/jobs/runs/test_resuming.py",
        "tests/jobs/steps/test_cache.py",
        "tests/jobs/evaluate/test_large_corpora.py",
    ),
    of(
        f"{JOBS}/runs/folder.py",
        ("begin", 'if done:\n    storage.remove("shards")', 'if True:\n    storage.remove("shards")'),
        (
            "is_whole",
            'all(map(storage.exists, storage.read_json(ended).get("files", ())))',
            'any(map(storage.exists, storage.read_json(ended).get("files", ())))',
        ),
        (
            "is_whole",
            'all(map(storage.exists, storage.read_json(ended).get("files", ())))',
            'not all(map(storage.exists, storage.read_json(ended).get("files", ())))',
        ),
    )
    + of(
        f"{JOBS}/steps/blocks.py",
        ("kept_panel_size", "not storage.exists(name)", "True"),
        ("kept_panel_size", "of_gpus if on_gpus else of_cpus", "of_cpus"),
    )
    + of(
        f"{JOBS}/corpus/index.py",
        ("SourceIndex.earlier", "not storage.exists(SHARDED)", "True"),
        (
            "SourceIndex.earlier",
            '() if storage.exists(PLANNED) else (folder, "shards", "rejected")',
            '(folder, "shards", "rejected")',
        ),
    )
    + of(
        f"{JOBS}/workers/dispatch.py",
        ("missing", "not there.issuperset(piece.files)", "True"),
        ("missing", "not there.issuperset(piece.files)", "there.isdisjoint(piece.files)"),
        ("missing", "not there.issuperset(piece.files)", "False"),
    )
    + of(
        f"{JOBS}/steps/lookup.py",
        ("look_up", "run.storage.exists(name)", "False"),
        ("sort_group", "how.storage.exists(sorted_name(first))", "False"),
    )
    + of(
        f"{JOBS}/steps/cache.py",
        ("add_texts", "run.storage.exists(done)", "False"),
    )
    + of(
        f"{JOBS}/steps/embed.py",
        ("embed_shards", "left = missing(run.storage, every)", "left = every"),
    )
    + of(
        f"{JOBS}/steps/cut_texts.py",
        ("_cut", "left = missing(run.storage, every)", "left = every"),
        ("_cut", "run.storage.exists(SHARDED)", "False"),
        ("_cut_shard", "text.cut and k == len(cut) - 1", "text.cut"),
        ("_cut_shard", "text.document is None", "True"),
        ("owner", "chunk_id.rpartition(...)[0]", "chunk_id.partition('#')[0]"),
    )
    + of(
        f"{JOBS}/steps/factors.py",
        (
            "collect",
            "missing(run.storage, pieces.of_sample(run, scope.model, sample, size, [kind]))",
            "pieces.of_sample(run, scope.model, sample, size, [kind])",
        ),
    )
    + of(
        f"{JOBS}/steps/probe.py",
        (
            "_write",
            "missing(scope.run.storage, pieces.of_sample(scope.run, scope.model, sample, CHUNK, [PREFIXES]))",
            "pieces.of_sample(scope.run, scope.model, sample, CHUNK, [PREFIXES])",
        ),
    )
    + of(
        f"{JOBS}/steps/groups.py",
        ("_write", "left = missing(run.storage, every)", "left = every"),
        ("_tabulate", 'is_whole(storage, f"{place}/done.json")', "False"),
    )
    + of(
        f"{JOBS}/steps/largest.py",
        ("rank", "not run.storage.exists(name)", "True"),
    )
    + of(
        f"{JOBS}/steps/socm.py",
        ("socm", 'is_whole(run.storage, f"{place}/done.json")', "False"),
        ("all_pairs", "left = missing(run.storage, every)", "left = every"),
    )
    + of(
        f"{JOBS}/steps/cosine.py",
        ("_compute", 'is_closed = is_whole(run.storage, f"{grid.place}/closed.json")', "is_closed = False"),
        ("gather", "left = missing(grid.storage, every)", "left = every"),
        ("compare_grid", "left = missing(grid.storage, every)", "left = every"),
        ("_compute", "if is_closed:\n    ...\n    return", "if False:\n    ...\n    return"),
    )
    + of(
        f"{JOBS}/steps/exposure.py",
        ("expose", "is_done(scope.run, scope.model, temperature)", "False"),
    )
    + of(
        f"{JOBS}/steps/source_order.py",
        ("look", "... or run.storage.exists(result_name(model))", "..."),
    )
    + of(
        f"{JOBS}/steps/worst.py",
        ("seeds_of", "[t for t in run.temperatures if not is_done(run, model, t)]", "[t for t in run.temperatures]"),
        ("left_by_bounds", "missing(run.storage, every)", "every"),
    )
    + of(
        f"{JOBS}/audit/run.py",
        ("needed_of_tiles", "near = analysis.compares and not exposure.is_done(run, model, temperature)", "near = False"),
        (
            "needed_of_tiles",
            'search = analysis.socm_top_over == "corpus" and not worst.is_done(run, model, temperature)',
            "search = False",
        ),
    )
    + of(
        f"{JOBS}/workers/dispatch.py",
        ("Crew.finish", "left = missing(self._run.storage, every)", "left = every"),
    )
    + of(
        f"{JOBS}/diagnose/looks.py",
        ("look", "left = missing(read.run.storage, every)", "left = every"),
    )
    + of(
        f"{JOBS}/diagnose/two_texts.py",
        ("look", "not all(map(run.storage.exists, parts))", "True"),
    )
    + of(
        f"{JOBS}/diagnose/repeated.py",
        ("embed_repeated", "missing(run.storage, every)", "every"),
    )
    + of(
        f"{JOBS}/evaluate/cells.py",
        ("done", "run.storage.exists(name)", "False"),
    )
    + of(
        f"{JOBS}/evaluate/documents.py",
        ("write_piece", "worker.storage.exists(at)", "False"),
    )
    + of(
        f"{JOBS}/correct/run.py",
        (
            "_correct",
            "{unit.number: unit for unit in planned if task.done(unit.number) not in there}",
            "{unit.number: unit for unit in planned}",
            "a task does no unit that is done, whoever begins it; only tasks without work would begin",
        ),
    )
    + of(
        f"{JOBS}/tune/layers.py",
        ("search", "not run.storage.exists(FOUND)", "True"),
    ),
)

EXCHANGE = Subject(
    "ids that appear twice, samples, and sources that change",
    (
        "tests/jobs/corpus/test_distinct.py",
        "tests/jobs/corpus/test_shards.py",
        "tests/jobs/corpus/test_changing.py",
        "tests/jobs/corpus/test_stream.py",
    ),
    of(
        f"{JOBS}/corpus/distinct.py",
        ("_equal", "same[1:] = (head[1:] == head[:-1]) & (tail[1:] == tail[:-1])", "same[1:] = head[1:] == head[:-1]"),
        ("_equal", "order = np.lexsort((row, unit, tail, head))", "order = np.lexsort((row, -unit, tail, head))"),
        ("_range", "(k << 64) // count", "(k << 64) // count - (k << 58)"),
        ("sampled", 'own.filter(pa.array(~np.isin(own.column("row").to_numpy(), repeated_rows.get(unit, nothing))))', "own"),
        ("sampled", 'both = both.sort_by([("key", "ascending"), *_BY_PLACE])', ""),
    )
    + of(
        f"{JOBS}/corpus/rows.py",
        ("usable", "not new and row.id is not None", "False"),
        (
            "SeenIds._grow",
            "digest != _NO_DIGEST",
            "True",
            "the free places of a table hash to one place, where the first stays; it only costs time",
        ),
        ("SeenIds._slot", "own != digest", "own[:8] != digest[:8]"),
        ("usable", "counts.read >= limit", "counts.read > limit"),
    )
    + of(
        f"{JOBS}/corpus/sources.py",
        ("check_state", "if changed:\n    ...\n    raise Changed(...)", "if False:\n    ...\n    raise Changed(...)"),
        ("_opened", "fs.invalidate_cache()", ""),
    ),
)

REJECTED = Subject(
    "rejected rows, the width of vectors, and what a source and a row of it are known by",
    (
        "tests/jobs/corpus/test_states.py",
        "tests/jobs/corpus/test_rejected.py",
        "tests/jobs/corpus/test_samples.py",
    ),
    of(
        f"{JOBS}/corpus/states.py",
        ("of_local", 'f"{facts.st_ino}:{facts.st_ctime_ns}"', '""'),
        ("of_local", 'f"{facts.st_ino}:{facts.st_ctime_ns}"', 'f"{facts.st_ino}"'),
        ("of_local", "facts = os.stat(file)", "facts = os.lstat(file)"),
        ("of_remote", '[..., str(when), " ".join(tags)]', '[..., str(when), ""]'),
        ("is_same", "before[:2] != now[:2]", "False"),
        ("is_same", "len(before) < _KNOWN or before[2] == now[2]", "before[2:] and before[2] == now[2]"),
        ("is_same", "len(before) < _KNOWN or before[2] == now[2]", "len(before) < _KNOWN"),
        (
            "is_same",
            "return len(before) > _KNOWN and bool(before[-1] == digest(file, before[-2], *now))",
            "return len(before) > _KNOWN",
        ),
        ("is_same", "return len(before) > _KNOWN and bool(before[-1] == digest(file, before[-2], *now))", "return False"),
        ("digest", "found.update(stream.read(_END_BYTES))", ""),
        ("digest", "stream.seek(start)", ""),
        ("content", "[facts[0], *facts[_KNOWN:]]", "facts"),
    )
    + of(
        f"{JOBS}/corpus/sources.py",
        ("identity", "not hub.is_dataset(given.source) and not is_local(given)", "False"),
        ("check_unchanged", "changes(given, before, out)", "False"),
    )
    + of(
        f"{JOBS}/corpus/rows.py",
        ("check_rejected", "count > given.max_rejected * every", "count >= given.max_rejected * every"),
        ("check_rejected", "count > given.max_rejected * every", "False"),
        ("most_frequent", "lambda item: (-item[1], item[0])", "lambda item: (item[1], item[0])"),
        ("mention_rejected", "share <= _UNMENTIONED_SHARE", "share < _UNMENTIONED_SHARE"),
        (
            "sample_key",
            'if not is_of_content(digest):\n    return text_id\nreturn f"{digest.hex()} {copies}"',
            "if not is_of_content(digest):\n    return text_id\nreturn text_id",
        ),
        ("sample_key", 'return f"{digest.hex()} {copies}"', "return digest.hex()"),
        (
            "usable",
            'digest = digest_of_content(value) if row.id is None else digest_of_id(text_id or "")',
            'digest = digest_of_id(text_id or "")',
        ),
        ("usable", "not new and row.id is not None", "not new"),
        ("_keyed", "copies.update([text.digest] if text.copy else [])", ""),
    )
    + of(
        f"{JOBS}/corpus/distinct.py",
        ("repeated", "pa.array((every.before > 0) & ~every.of_content)", "pa.array(every.before > 0)"),
        ("copies", "np.flatnonzero((every.before > 0) & every.of_content)", "np.flatnonzero(every.before < 0)"),
        ("_equal", "before = place - np.maximum.accumulate(np.where(same, 0, place))", "before = same.astype(int)"),
        ("sampled", "both.filter(pa.array(_first_of_equal(both))).slice(0, size)", "both.slice(0, size)"),
    )
    + of(
        f"{JOBS}/corpus/stream.py",
        (
            "SourceReader._check_rejected",
            "check_rejected(self._section, (counts.rejected, counts.read), ...)",
            "check_rejected(self._section, (0, counts.read), ...)",
        ),
        (
            "SourceReader.__init__",
            "rejected = self._index_read.rejected, self._index_read.read",
            "rejected = 0, self._index_read.read",
        ),
        ("SourceReader.__init__", "not contents.agrees(found.widths)", "False"),
    )
    + of(
        f"{JOBS}/corpus/vectors.py",
        ("Vectors.agrees", "most = max(counts, key=counts.__getitem__)", "most = next(iter(counts))"),
        (
            "Vectors.agrees",
            "most = max(counts, key=counts.__getitem__)",
            "most = max(reversed([*counts]), key=counts.__getitem__)",
        ),
    )
    + of(
        f"{JOBS}/pairs/chunks.py",
        ("pairs_of_rows", "counts.lost -= len(first) * len(second)", "counts.lost -= 1"),
        ("_pairs_named", "max(1, math.prod(...))", "max(0, math.prod(...))"),
        ("chunk", "(counts.lost, counts.pairs + counts.lost)", "(0, 1)"),
    )
    + of(
        f"{JOBS}/audit/summary.py",
        ("rejected_share", "share = 1 - usable * (1 - lost)", "share = 1 - usable"),
        ("rejected_share", "usable * np.sqrt(...)", "np.sqrt(...)"),
    )
    + of(
        f"{JOBS}/audit/words.py",
        ("left_out", "mention_rejected(..., max(shares), ...)", "mention_rejected(..., shares[0], ...)"),
    )
    + of(
        f"{JOBS}/config/command.py",
        ("Command.identity", 'section.pop("max_rejected", None)', "pass"),
    ),
)

ESCAPES = Subject(
    "escapes and secrets",
    (
        "tests/jobs/report/test_escapes.py",
        "tests/jobs/config/test_config.py",
        "tests/jobs/runs/test_folder.py",
        "tests/jobs/corpus/test_sources.py",
        "tests/jobs/report/test_steering.py",
        "tests/jobs/audit/test_report.py",
        "tests/jobs/test_urls.py",
    ),
    of(
        f"{JOBS}/errors.py",
        ("", r'"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"', r'"[\x00-\x1f\u2028\u2029\ud800-\udfff]"'),
        ("", r'"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"', r'"[\x00-\x1f\x7f-\x9f\u2028\u2029]"'),
        ("RunError.__init__", "shortened(visible(hidden(message)))", "shortened(hidden(message))"),
        ("RunError.__init__", "shortened(visible(hidden(message)))", "shortened(visible(message))"),
        ("RunError.__init__", "shortened(visible(hidden(message)))", "visible(hidden(message))"),
    )
    + of(
        f"{JOBS}/report/screen.py",
        ("Screen.print", r'(visible(hidden(one), "\n\t") if isinstance(one, str) else one for one in objects)', "objects"),
        ("print_table", "visible(hidden(cell))", "hidden(cell)"),
        ("print_table", "Text(visible(hidden(cell)))", "visible(hidden(cell))"),
    )
    + of(
        f"{JOBS}/report/page.py",
        ("page", "jinja2.Environment(**..., autoescape=True, **...)", "jinja2.Environment(**..., autoescape=False, **...)"),
        ("page", "jinja2.Environment(**..., finalize=_shown)", "jinja2.Environment(**...)"),
        ("safe_json", r'text.replace("<", "\\u003c")', "text"),
        ("page", "shown_in(chart.to_dict(validate=False))", "chart.to_dict(validate=False)"),
    )
    + of(
        f"{JOBS}/urls.py",
        ("_Scan._query", "pattern = _WEB_QUERY if web else _QUERY", "pattern = _QUERY"),
        ("_Scan.shown", "user_end > start", "False"),
        ("_Scan._user_end", "region.last_at > start", "False"),
        (
            "_Scan._password_end",
            'self._text.rfind("@", start, len(self._text) if ... else ...)',
            'self._text.rfind("@", start, start if ... else ...)',
        ),
        ("reason", "_known_hidden(lines, sources).splitlines()", "lines.splitlines()"),
        ("reason", "hidden(line)", "line"),
    )
    + of(
        f"{JOBS}/runs/folder.py",
        ("begin", 'identity["config"] = without_secrets(identity["config"])', 'identity["config"] = identity["config"]'),
        ("described", "described: dict[str, Any] = without_secrets(data)", "described: dict[str, Any] = data"),
    )
    + of(
        f"{JOBS}/runs/sealed.py",
        ("", r'"[\x7f-\x9f\u2028\u2029]"', r'"[\x7f-\x9e\u2028\u2029]"'),
    ),
)

BELOW = Subject(
    "what is read and removed is below its folder",
    (
        "tests/jobs/runs/test_places.py",
        "tests/jobs/nights/test_record.py",
        "tests/jobs/corpus/test_lakes.py",
        "tests/jobs/corpus/test_hub.py",
        "tests/jobs/corpus/test_folders.py",
    ),
    of(
        f"{JOBS}/corpus/hub.py",
        ("_stream", "_check_card(name, card)", "pass"),
        ("_cards_of_folder", 'not one.startswith(".") or one in _CARDS', "False"),
        ("_check_files", "form not in _FORMATS", "False"),
        ("_stream", "stream.decode(False)", "stream"),
    )
    + of(
        f"{JOBS}/corpus/folders.py",
        ("roots", '[real, *(cache / "blobs" for cache in caches)]', "[real]"),
        ("is_below", "real.is_relative_to(os.path.realpath(folder))", "True"),
    )
    + of(
        f"{JOBS}/corpus/lakes.py",
        ("_check_below", "below and local", "False"),
        ("_check_below", 'os.path.isabs(file) or "://" in file or ".." in file.split("/")', "False"),
    )
    + of(
        f"{JOBS}/runs/places.py",
        ("check_name", '"::" in name', "False"),
        ("check_name", "remote and scheme.lower() in _UNWRITABLE", "False"),
        ("_check_apart", 'if f"{read}/".startswith(f"{written}/"): ...', "if False: ..."),
        ("_check_apart", 'is_dataset and f"{written}/".startswith(f"{read}/")', "False"),
    )
    + of(
        f"{JOBS}/nights/night.py",
        (
            "prune_record",
            '... or row["folder"] == spared or not _is_below(record, row["folder"])',
            '... or row["folder"] == spared',
        ),
        ("prune_record", 'not _is_below(record, row["folder"])', 'not _is_next_to(row["folder"])'),
    ),
)

LOADED = Subject(
    "the model that was loaded",
    (
        "tests/jobs/workers/test_loaded.py",
        "tests/tempscale/model/test_checkpoint.py",
    ),
    of(
        f"{JOBS}/workers/loaded.py",
        ("Loaded.prove", "if before != self._state:\n    raise _other(f'{self.folder}', self._model.label)", ""),
        ("Loaded.prove", "if on_this_machine(self._state) != self._model.seen:\n    self._compare()", ""),
        ("Loaded._compare", "checkpoint.fingerprint(self.folder) != self._model.fingerprint", "False"),
        ("Loaded.check", "checkpoint.state(self.folder)", "self._state"),
        ("check_tokens", "digest and checkpoint.settings_digest(checkpoint.resolve(folder)) != digest", "False"),
    ),
)

ENDS = Subject(
    "exit codes",
    (
        "tests/jobs/cli/test_ends.py",
        "tests/jobs/cli/test_cli.py",
    ),
    of(
        f"{JOBS}/errors.py",
        ("UsageError", "exit_code = 2", "exit_code = 1"),
        ("IncompleteRun", "exit_code = 3", "exit_code = 2"),
    )
    + of(
        f"{JOBS}/cli/app.py",
        ("_end", "code = code or (0 if start.completed else 3)", "code = code or 3"),
        ("_end", "code = code or (0 if start.completed else 3)", "pass"),
        ("main", "_end(3)", "_end(130)"),
        ("main", "3 if end.code == _INTERRUPTED else end.code or 0", "3 if end.code == _INTERRUPTED else 0"),
        ("main", "3 if end.code == _INTERRUPTED else end.code or 0", "end.code or 0"),
    )
    + of(
        f"{JOBS}/outlets.py",
        ("Outlet.problem", "self.failure.errno == errno.EPIPE", "True"),
        ("Outlet.problem", "self.failure is None or self.failure.errno == errno.EPIPE", "self.failure is None"),
        ("Outlet._close", "os.dup2(nowhere, self._stream.fileno())", ""),
    ),
)

BOMBS = Subject(
    "rows without an end",
    ("tests/jobs/corpus/test_bombs.py",),
    of(
        f"{JOBS}/corpus/readers.py",
        ("bounded", "size <= LONGEST_VALUE", "True"),
        ("bounded", "passed + len(rest) + len(last) > LONGEST_VALUE", "False"),
        ("bounded", "yield (None if passed else rest), passed + len(rest)", "yield rest, passed + len(rest)"),
    ),
)

DEVICES = Subject(
    "what a device computes",
    (
        "tests/tempscale/collapse/test_cosine.py",
        "tests/tempscale/model/test_padded.py",
        "tests/tempscale/second_order/test_polar.py",
        "tests/jobs/workers/test_marks.py",
    ),
    of(
        f"{SCIENCE}/collapse/gpu.py",
        ("_counted", "most >= EXACT", "False"),
        ("_counted", "found[0] += missing - above", ""),
        ("_counted", "found[-1] += above", ""),
        ("_TileResults.result", "for side in self._sides.values():\n    side.merge()", ""),
        ("_TileResults._look", "own.merge()", ""),
        (
            "_TileResults._floors",
            "some.topk(self._neighbours, dim=1).values[:, -1]",
            "some.topk(self._neighbours, dim=1).values[:, 0]",
        ),
        ("_TileResults._reach", "reach &= cosines > -torch.inf", ""),
        ("_TileResults._floors", "some.shape[1] >= self._neighbours > 0", "self._neighbours > 0"),
        ("_TileResults.add", "cosines.masked_fill(_below(cosines, below), -torch.inf)", "cosines"),
        ("_TileResults._found", "twins = value >= self._duplicate", "twins = value > self._duplicate"),
    )
    + of(
        f"{SCIENCE}/collapse/cosine.py",
        ("truncation_error", 'return 0.0 if precision == "float32" else dim / 4 * 2.0**-23', "return 0.0"),
        ("truncation_error", "dim / 4 * 2.0**-23", "dim / 40 * 2.0**-23"),
    )
    + of(
        f"{SCIENCE}/model/padded.py",
        ("downloaded", '(...).to("cpu", non_blocking=not wait)', '(...).to("cpu", non_blocking=True)'),
        (
            "padded",
            "torch.arange(width, device=device) < together[-rows:, None]",
            "torch.arange(width, device=device) <= together[-rows:, None]",
        ),
    )
    + of(
        f"{SCIENCE}/model/encoder.py",
        ("Encoder.encode_tokens", "waits = before is not None", "waits = False"),
        ("Encoder.encode_tokens", "finished(device)", ""),
    )
    + of(
        f"{SCIENCE}/second_order/polar.py",
        (
            "Stacked.padded",
            "torch.where(inside < ranks, starts + inside, len(self.rows) - 1)",
            "starts + inside.clamp_max(int(self.ranks.min()))",
        ),
        ("Stacked.of", "np.cumsum(ranks) - ranks", "np.cumsum(ranks)"),
    )
    + of(
        f"{JOBS}/steps/embed.py",
        ("embed_shard", "before = marks.before if marks.fine else None", "before = None"),
    )
    + of(
        f"{JOBS}/workers/marks.py",
        ("Marks.begin", "self.fine = found", "self.fine = False"),
    ),
)

TOGETHER = Subject(
    "what runs at once",
    (
        "tests/tempscale/model/test_encoder.py",
        "tests/tempscale/model/test_packed.py",
        "tests/tempscale/choosing/test_by_layer.py",
        "tests/jobs/corpus/test_shards.py",
        "tests/jobs/steps/test_tile_tasks.py",
    ),
    of(
        f"{SCIENCE}/model/batches.py",
        ("micro_batches", "not packed and enough and ...", "enough and ..."),
        ("micro_batches", "padded <= token_budget", "padded < token_budget"),
        ("micro_batches", "1 + _PADDING", "2 + _PADDING"),
    )
    + of(
        f"{SCIENCE}/model/budgets.py",
        ("usual_budget", 'device == "cpu"', "False"),
        ("usual_budget", "GPU_NUMBERS // width", "GPU_NUMBERS"),
    )
    + of(
        f"{SCIENCE}/model/encoder.py",
        ("Encoder.batches", "micro_batches(..., self.token_budget, self.packed)", "micro_batches(..., self.token_budget)"),
    )
    + of(
        f"{SCIENCE}/choosing/by_layer.py",
        ("_gradient", "budget = min(encoder.token_budget, GRAPH_BUDGET)", "budget = encoder.token_budget"),
    )
    + of(
        f"{JOBS}/corpus/shards.py",
        ("enough", "before // _GROWTH_FRACTION", "0"),
        ("TextShards.grouped", "(enough(largest, before) if begins else largest)", "largest"),
        ("most_texts", "max(1, -(-wanted // _SHORTEST_SHARD_SHARE))", "wanted"),
    )
    + of(
        f"{JOBS}/steps/blocks.py",
        ("compare_panels", "with _computing: ...", "if True: ..."),
    ),
)

ACTORS = Subject(
    "what an actor is for",
    (
        "tests/jobs/steps/test_embedding_runs.py",
        "tests/jobs/workers/test_placement.py",
    ),
    of(
        f"{JOBS}/workers/actor.py",
        ("budget_kept", "(None, device)", "(None, device, 'cuda')"),
        ("ModelActor.note_budget", "self.storage.write_json", "lambda *_: None"),
        ("ModelActor.unload", "del self.encoder", ""),
    )
    + of(
        f"{JOBS}/workers/dispatch.py",
        ("Crew.start", "self._model != GIVEN and not self._unloaded", "self._model != GIVEN"),
        ("Crew.tiles", '{"device": "cuda"}', "{}"),
    ),
)

MODELS = Subject(
    "a model's settings and files",
    (
        "tests/tempscale/model/test_checkpoint.py",
        "tests/tempscale/model/test_unusable_models.py",
        "tests/tempscale/model/test_known_settings.py",
    ),
    of(
        f"{SCIENCE}/model/checkpoint.py",
        ("_files", "folders = {path, *_folders(path)}", "folders = {path}"),
        ("_files", "files.update(index.parent / name for name in _of_index(index))", "pass"),
        ("_check_index", "not _is_inside(name)", "False"),
        ("_check_header", "length > _LARGEST_HEADER_BYTES", "False"),
    )
    + of(
        f"{SCIENCE}/model/known_settings.py",
        ("check", "if setting is None:\n    raise unknown(str(key), value, place)", "if setting is None:\n    continue"),
        ("refuse", 'setting.treatment == "refused" and not empty', "False"),
    )
    + of(
        f"{SCIENCE}/model/pooling.py",
        ("Head.finish", "self.stages(pooled)[:, : self.truncate_dim]", "self.stages(pooled)"),
        ("_kind", "not name.startswith(_LIBRARY) or kind not in STAGES", "kind not in STAGES"),
        ("_of_plain", 'return "lasttoken" if writes and config.get("is_causal", True) else "mean"', 'return "mean"'),
    )
    + of(
        f"{SCIENCE}/model/tokens.py",
        ("Tokenizer._check", "largest >= config.vocab_size", "False"),
        ("Tokenizer.__init__", "_lower_case(self._tokenizer)", "pass"),
        ("_lower_case", "[normalizers.Lowercase(), *...]", "[*...]"),
    )
    + of(
        f"{SCIENCE}/model/loading.py",
        ("_check_size", "layers > _MOST_LAYERS", "False"),
    ),
)

FINDINGS = Subject(
    "what is said of a figure",
    (
        "tests/jobs/audit/test_findings.py",
        "tests/jobs/audit/test_sentences.py",
        "tests/jobs/audit/test_first_screen.py",
        "tests/jobs/nights/test_night_findings.py",
        "tests/jobs/tune/test_tune_findings.py",
        "tests/jobs/evaluate/test_evaluate_words.py",
        "tests/jobs/diagnose/test_diagnose_findings.py",
        "tests/jobs/diagnose/test_diagnose_edges.py",
        "tests/jobs/diagnose/test_diagnose_documents.py",
    ),
    of(
        f"{JOBS}/report/findings.py",
        ("state", "abs(value - expected) <= z * error", "abs(value) <= z * error"),
        ("state", "abs(value - expected) <= z * error", "abs(value - expected) <= error"),
        ("state", 'return "up" if value > expected else "down"', 'return "up" if value > 0 else "down"'),
        ("state", 'return "absent" if value is None else "unknown"', 'return "absent"'),
        ("measured", 'return "absent" if value is None else "measured"', 'return "measured"'),
        ("finding", 'found if state == "absent" else found._replace(**grounds)', "found._replace(**grounds)"),
        ("together", "1 - 0.025 / max(1, tests)", "1 - 0.025"),
    )
    + of(
        f"{JOBS}/audit/findings.py",
        ("_exposures", 'r["exposure_se_superpopulation"] if r in tested else None', 'r["exposure_se_superpopulation"]'),
        ("_exposures", 'state(r["exposure"], error, 1.0, z)', 'state(r["exposure"], error, 0.0, z)'),
        ("most_neighbours", 'pl.col("k") == pl.col("k").max()', 'pl.col("k") == pl.col("k").min()'),
        ("exposures", "most_neighbours(...).filter(asked_by=asked_by)", 'most_neighbours(of_row(tables["exposure"], row))'),
        ("_of_row", 'effect["figure"] in CHANGES', "True"),
    )
    + of(
        f"{JOBS}/audit/advice.py",
        ("_more_texts", 'state not in ("absent", "unknown")', 'state != "absent"'),
        ("_truncated", 'row["truncated_share"] < _CUT', "False"),
        ("_some_win", 'found.at(exposed(...), row).state == "up"', "True"),
        ("_collapse", 'found.at(name, row).state == "up"', "found.at(name, row).is_beyond_noise"),
        ("advice", "lines[:_MOST] or ...", "lines or ..."),
    )
    + of(
        f"{JOBS}/audit/verdict.py",
        ("_lowered", 'gap.state != "up"', "False"),
        ("_caveat", "apart and not together", "apart"),
        ("_caveat", "apart and not together", "not together"),
        ("_lowered", '[change for change in changes if change.state == "down"]', "changes"),
    )
    + of(
        f"{JOBS}/nights/findings.py",
        ("_change", "value is not None and abs(value) <= SAME", "False"),
        ("_is_comparable", "all(row[end] == before[end] for end in ENDS.get(figure, ()))", "True"),
    )
    + of(
        f"{JOBS}/tune/findings.py",
        ("_by_resampling", 'row["held_low"] > 0', 'row["held_high"] > 0'),
        ("_change", 'figure == "held_score"', "False"),
    )
    + of(
        f"{JOBS}/evaluate/findings.py",
        ("_by_length", 'row["change_se"] if row["items"] >= TEXTS_FOR_AN_INTERVAL else None', 'row["change_se"]'),
        ("_of_end", 'row["change_se"] or None', 'row["change_se"]'),
        ("decide", 'row["temperature"] != first', "True"),
    )
    + of(
        f"{JOBS}/diagnose/findings.py",
        ("_state", "n < VALUES_FOR_A_SENTENCE", "False"),
        ("_state", "float(stdtrit(freedom, 0.975))", "1.96"),
        ("_length", "error = finite(documents_error(...))", "pass"),
        ("_length", 'pl.col("len") >= VALUES_FOR_A_SENTENCE', 'pl.col("len") >= 0'),
    ),
)

ADVICE = Subject(
    "what is advised",
    (
        "tests/jobs/audit/test_findings.py",
        "tests/jobs/audit/test_sentences.py",
        "tests/jobs/diagnose/test_diagnose_findings.py",
        "tests/jobs/evaluate/test_evaluate_words.py",
        "tests/jobs/tune/test_tune_findings.py",
        "tests/jobs/nights/test_notify.py",
    ),
    of(
        f"{JOBS}/audit/findings.py",
        ("by_correction", "max(noise[1], _OVERSHOT * abs(here))", "noise[1]"),
        ("by_correction", "max(noise[1], _OVERSHOT * abs(here))", "_OVERSHOT * abs(here)"),
        ("by_correction", "abs(gain) <= math.hypot(*noise)", "False"),
        ("by_correction", "None in errors", "False"),
    )
    + of(
        f"{JOBS}/diagnose/words.py",
        ("to_do", 'change.state != "down"', 'change.state == "up"'),
        ("to_do", 'row["finding"] == "temperature" and found.state == "up"', 'row["finding"] == "temperature"'),
    )
    + of(
        f"{JOBS}/evaluate/words.py",
        ("to_do", 'change.state == "up"', "change.value > 0"),
        ("to_do", "max(raised, key=lambda change: change.value or 0.0)", "raised[0]"),
        ("_harmed", 'found.at(...).state == "down"', 'row["change"] < 0'),
    )
    + of(
        f"{JOBS}/tune/findings.py",
        ("passes_fair", "(0.0, error)", "(0.0, 0.0)"),
    )
    + of(
        f"{JOBS}/nights/notify.py",
        ("post_verdict", "before and _HIDDEN not in before + tonight", "before"),
    )
    + of(
        f"{JOBS}/report/text.py",
        ("interval_name", "edges.window >= edge", "True"),
    ),
)

VERIFY = Subject(
    "verified vectors",
    ("tests/jobs/verify/test_rules.py", "tests/jobs/verify/test_joined.py", "tests/jobs/runs/test_mending.py"),
    of(
        f"{JOBS}/verify/compare.py",
        ("judge", "is_unit = counts[...] > max(...)", "is_unit = False"),
        ("judge", "wrong = ~(usable & in_direction & has_norm)", "wrong = ~(usable & in_direction)"),
        ("judge", "wrong = ~(usable & in_direction & has_norm)", "wrong = ~(in_direction & has_norm)"),
        ("judge", "wrong = ~(usable & in_direction & has_norm)", "wrong = ~(usable & has_norm)"),
        ("Rules.explains", "is_nearer and self.allows(...)", "is_nearer"),
        ("Rules.explains", "is_nearer and self.allows(...)", "self.allows(stored, made, _LOOSER * self.tolerance.error)"),
    )
    + of(
        f"{JOBS}/verify/sample.py",
        ("chosen", "rows[(start + k * len(rows) // count) % len(rows)]", "rows[(start + k) % len(rows)]"),
        ("chosen", "rows.sort()", "pass"),
    )
    + of(
        f"{JOBS}/verify/joined.py",
        ("_rows", "keyed_hash(text_id, seed) <= reach", "True"),
        ("_split", "rows >= AT_ONCE or shard == index.shards[-1]", "rows >= AT_ONCE"),
    )
    + of(
        f"{JOBS}/verify/summary.py",
        ("tables_of", "judged.of_all", "False"),
        ("_by_neighbours", "cosines[among == own] = -np.inf", "pass"),
        ("_edited", "2 * len(right & texts.edited) < len(right)", "True"),
        ("_edited", "cause_of.get(text_id) == PROBABLY_EDITED and is_of_these", "False"),
        ("_edited", "cause_of.get(text_id) != OF_ANOTHER and then is not None", "then is not None"),
        ("_edited", "judged.rules.allows(...)", "True"),
    )
    + of(
        f"{JOBS}/verify/earlier.py",
        ("read", "_identity(facts) == model.identity()", "True"),
        ("read", "digests[text_id] != digest", "True"),
    )
    + of(
        f"{JOBS}/verify/findings.py",
        ("_all", 'row["low"] > max_wrong', 'row["share"] > 0'),
    )
    + of(
        f"{JOBS}/nights/gate.py",
        ("of_vectors", 'verified["low"] <= verified["max_wrong"]', 'verified["low"] < verified["max_wrong"]'),
        ("of_vectors", 'verified["low"] <= verified["max_wrong"]', "True"),
    )
    + of(
        f"{JOBS}/runs/mending.py",
        (
            "_remove_one_with",
            '("texts", "partials/pairs", "partials/lengths", "partials/layers", "partials/compared")',
            '("texts", "partials/pairs", "partials/lengths", "partials/layers")',
        ),
    ),
)

BY_GROUP = Subject(
    "groups of texts by a column",
    (
        "tests/tempscale/collapse/test_groups.py",
        "tests/jobs/steps/test_grouping.py",
        "tests/jobs/audit/test_words_of_groups.py",
    ),
    of(
        f"{SCIENCE}/collapse/groups.py",
        ("stays_counted", "apart = one != other", "apart = one == one"),
        ("staying", "nodes - dyads if nodes > dyads else dyads", "nodes"),
        ("GroupSums.means", "np.diag(self.squares / PARTS)", "0"),
        ("GroupSums.text_means", "parts[-1][itself] -= (rows * rows).sum(1)", "pass"),
    )
    + of(
        f"{JOBS}/steps/grouping.py",
        ("Grouping.of", "texts[order] >= TEXTS_FOR_AN_INTERVAL", "texts[order] > TEXTS_FOR_AN_INTERVAL"),
        ("Grouping.of_queries", "code[digests == _NO_DIGEST] = NOWHERE", "pass"),
    )
    + of(
        f"{JOBS}/audit/findings.py",
        ("_groups", 'r["stays_expected"] or 0.0', "0.0"),
        ("_groups", 'r["exposure_se_superpopulation"] if r in tested else None', 'r["exposure_se_superpopulation"]'),
    )
    + of(
        f"{JOBS}/audit/by_group.py",
        ("_joined", 'known is None or not known["joined"]', "known is None"),
    ),
)

SOURCES = Subject(
    "where vectors of your own come from",
    tuple(f"tests/jobs/corpus/test_{name}.py" for name in ("stores", "postgres", "qdrant", "iceberg")),
    of(
        f"{JOBS}/corpus/address.py",
        ("address", "name not in known", "False"),
        ("address", "not value or name in settings", "name in settings"),
    )
    + of(
        f"{JOBS}/corpus/arrays.py",
        ("parts", "len(set(rows.values())) != 1", "False"),
        ("check_rows_beside", "count != rows", "False"),
        ("check_beside", '"://" in file', "False"),
        ("_member", "info.compress_type != zipfile.ZIP_STORED", "False"),
        ("_member", '"F" if is_fortran else "C"', '"C"'),
    )
    + of(
        f"{JOBS}/corpus/faiss_files.py",
        ("parts", "settings and not np.array_equal(ids, np.arange(len(ids)))", "False"),
        ("_vectors", "ids if names is None else names[ids]", "ids"),
        ("_vectors", 'np.argsort(ids, kind="stable")', "np.arange(len(ids))"),
    )
    + of(
        f"{JOBS}/corpus/postgres.py",
        ("_where", 'at and ":" in user', "False"),
        ("_opened", "keys != count", "False"),
        ("_key", "wanted not in unique", "False"),
        (
            "_reading",
            "isinstance(error, OperationalError) or error.sqlstate in _GONE",
            "isinstance(error, OperationalError)",
        ),
        ("_table", "row[1] not in _TABLES", "False"),
        ("parts", 'column.type == "bit" and column.size % 8', "False"),
    )
    + of(
        f"{JOBS}/corpus/qdrant.py",
        ("_where", '"://" not in place and settings.get(_TRUST) != "trusted"', "False"),
        ("batches", "passed >= first", "True"),
        ("_client", 'not os.path.isfile(os.path.join(place, "meta.json"))', "False"),
    )
    + of(
        f"{JOBS}/corpus/iceberg.py",
        ("_check_below", "not below", "False"),
        ("parts", "task.delete_files", "False"),
    ),
)

SERVED = Subject(
    "served results",
    ("tests/jobs/steps/test_served.py",),
    of(
        f"{JOBS}/steps/served.py",
        ("returned", "(exact <= exact[:, -1:] + rounding) & ~is_served", "exact <= exact[:, -1:] + rounding"),
        ("returned", "np.minimum(others, places) / np.maximum(places, 1)", "others / np.maximum(places, 1)"),
        ("_Served.of", "(exact.key[place] == rows.query) & (rank < k)", "rank < k"),
        ("_Comparison.never_served", "self.has_results[:, None] & (part < 1)", "part < 1"),
        ("_Comparison.never_served", "self.served.text[self.served.rank < k]", "self.served.text"),
        ("_Comparison._recall", "_linear(values, whole) - _linear(*every)", "_linear(values, whole)"),
        ("_Comparison._recall", "error is None or among.all()", "error is None"),
        ("_error", "documents is not None", "False"),
        ("_Comparison._groups", "own.code[nearest]", "own.code[self.served.first[:, :k]]"),
    )
    + of(
        f"{JOBS}/corpus/results.py",
        ("_check_distinct", "np.diff(column[order]) == 0", "np.diff(column[order]) == 1"),
        ("_rows", "rank is None or not 0 <= rank < _LARGEST_RANK", "rank is None"),
    ),
)

AGAIN = Subject(
    "texts embedded again for a variant, in windows and by other models",
    ("tests/jobs/steps/test_late.py", "tests/jobs/steps/test_other_models.py"),
    of(
        f"{JOBS}/steps/late.py",
        ("_together", "room < 0", "room <= 0"),
        ("_together", "room = limit - length", "room = limit"),
        ("windows", "begin - chunks[first][0]", "begin"),
    )
    + of(
        "tempscale/model/tokens.py",
        (
            "Tokenizer.parts",
            "np.array([end for _, end in encoding.offsets]) - len(self.prompt) - 1",
            "np.array([end for _, end in encoding.offsets]) - 1",
        ),
        ("Tokenizer.parts", "np.maximum(last, 0)", "last"),
    )
    + of(
        "tempscale/model/gathering.py",
        (
            "Troubles.by_text",
            "{text: reason for i, reason in self.failed.items() for text in tokens.texts_of(i)}",
            "{i: reason for i, reason in self.failed.items()}",
        ),
    )
    + of(
        f"{JOBS}/steps/cut_texts.py",
        ("embed_chunks", "chunks.late", "False"),
    )
    + of(
        f"{JOBS}/steps/what_if.py",
        ("_by_model", "4.0 * width", "fact.vector_bytes"),
        ("_in_whole_texts", "near.label[present]", "near.label.ravel()"),
        ("_same_askers", "ours.layout.ids[ours.places]", "theirs.layout.ids[theirs.places]"),
    )
    + of(
        f"{JOBS}/steps/other_models.py",
        ("run_of", "run.temperatures[:1]", "run.temperatures"),
        ("forget", "(run, run.below('queries'))", "(run,)"),
    )
    + of(
        f"{JOBS}/audit/what_if.py",
        ("sentence", "model_of(row['what']) is not None", "False"),
    ),
)

NAMED = Subject(
    "the texts that are found most, and what is found without them",
    (
        "tests/tempscale/collapse/test_hubs.py",
        "tests/jobs/steps/test_exposure_counts.py",
        "tests/jobs/steps/test_named.py",
        "tests/jobs/audit/test_named.py",
    ),
    of(
        f"{SCIENCE}/collapse/hubs.py",
        ("_least", "bdtrc(least - 1, slots, 1 / texts) > chance", "False"),
        ("_least", "max(1, math.ceil(TIMES * slots / max(1, texts)))", "1"),
        ("hub_counts", "n >= TEXTS_FOR_AN_INTERVAL", "True"),
        ("reciprocity", "int(counts.pairs.sum()) - relations", "int(counts.pairs.sum()) - int(counts.texts.sum())"),
        ("reciprocity", "max(1, relations)", "relations"),
    )
    + of(
        f"{JOBS}/steps/slots.py",
        ("exposure_rows", "graph.every and graph.from_corpus", "graph.every"),
        ("exposure_rows", "graph.every and graph.from_corpus", "graph.from_corpus"),
    )
    + of(
        f"{JOBS}/steps/named.py",
        ("_Named.with_those_that_go", "any((place, other) in alike for other in first)", "False"),
        ("_count_alike", "alike & (these.labels[:, None] != block.labels)", "alike"),
        ("_search_panel", "grid.neighbours + len(gone) + 1", "grid.neighbours + 1"),
        (
            "_Parting.staying",
            "self.counting(asker) & ~(np.isin(asker, self.gone) & self.from_corpus)",
            "self.counting(asker)",
        ),
        ("_Parting.renumbered", "numbers - np.searchsorted(self.gone, numbers)", "numbers"),
        ("_search", "missing(grid.storage, every)", "every"),
    )
    + of(
        f"{JOBS}/audit/advice.py",
        ("_hubs", "not found", "True"),
    ),
)
SWAP = Subject(
    "a swap of the model and its threshold",
    ("tests/jobs/nights/test_swap.py",),
    (
        *of(
            f"{JOBS}/steps/carried.py",
            ("carried", "smaller = math.sqrt(min(1.0, pairs.texts / histograms.texts))", "smaller = 1.0"),
            ("carried", "pairs.error(by_text[0] - by_text[1])", "pairs.error(by_text[0])"),
            ("carried", "(both - stay * by_text[0])", "both"),
            ("carried", "math.exp(sign * Z_95 * relative)", "math.exp(sign * relative)"),
        ),
        *of(
            f"{JOBS}/nights/swap.py",
            ("_of_all_pairs", "texts.are_all and (interval is None or texts.have_one_length)", "texts.are_all"),
            ("_asked", "min(len(row['neighbours']), len(row['neighbours_b']))", "len(row['neighbours'])"),
            ("_examples", "len(tables) == 2", "tables"),
            ("_Texts.__init__", "a.run.has_texts and b.run.has_texts", "False"),
        ),
    ),
)

CENTRE_BY = Subject(
    "documents less the mean of their group",
    (
        "tests/tempscale/correction/test_centre_by.py",
        "tests/jobs/correct/test_correct_by_group.py",
        "tests/jobs/steps/test_what_if_by_group.py",
        "tests/jobs/tune/test_tune_by_column.py",
    ),
    of(
        f"{SCIENCE}/correction/fit.py",
        ("_centre_by", "texts >= TEXTS_FOR_AN_INTERVAL", "texts > TEXTS_FOR_AN_INTERVAL"),
        ("_centre_by", "np.bincount(of_text) >= TEXTS_FOR_AN_INTERVAL", "np.bincount(of_text) > 0"),
        ("_centre_by", "np.where(large, np.cumsum(large) - 1, large.sum())", "np.cumsum(large) - 1"),
        ("_centre_by", "rows.mean(0)", "rows[of_text == 0].mean(0)"),
    )
    + of(
        f"{SCIENCE}/correction/values.py",
        ("CentreBy._documents", "self.mean_of.get(group, of_all)", "self.mean_of.get(group, 0)"),
        ("CentreBy._queries", "embeddings - self.of_queries", "embeddings - self.of_documents"),
        ("CentreBy._of", "used != list(range(len(used)))", "False"),
        ("CentreBy._of", "type(mean) is int", "isinstance(mean, int)"),
        ("checked_groups", "len(groups) != texts", "False"),
    )
    + of(
        f"{SCIENCE}/correction/recipes.py",
        ("Parameter.read", "_COLUMN.fullmatch(text)", "text"),
    )
    + of(
        f"{JOBS}/correct/units.py",
        ("moved_rows", "[groups[k] for k in usable.tolist()]", "groups[: len(usable)]"),
        ("_groups", "column is None or not task.of_documents", "column is None"),
    )
    + of(
        f"{JOBS}/evaluate/tasks.py",
        ("check", "columns and own.corpus is not None and sources.is_read_twice(own.corpus)", "False"),
    )
    + of(
        f"{JOBS}/config/audit.py",
        ("AuditConfig._variants_can_be_made", "column not in self.by", "False"),
    )
    + of(
        f"{JOBS}/steps/what_if.py",
        ("_search_panel", "_named(panel.groups, texts)", "_named(panel.groups, slice(len(block)))"),
    ),
)

SUBJECTS = (
    SWAP, VERIFY, BY_GROUP, SOURCES, SERVED, GATE, NUMBERS, BOUNDS, ERRORS, GROUPS, CACHE, LOCKS, STORAGE, MENDING, DAMAGED_NIGHTS, REREAD, RESUMED, EXCHANGE, REJECTED, ESCAPES, BELOW, LOADED, ENDS,
    BOMBS, DEVICES, TOGETHER, ACTORS, MODELS, FINDINGS, ADVICE, NAMED, CENTRE_BY, AGAIN,
)  # fmt: skip
