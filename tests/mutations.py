"""Mistakes in the code that decides: each is one replacement that some test must notice. `mutants.py` makes them."""

from __future__ import annotations

from typing import NamedTuple

JOBS, SCIENCE = "jobs/tempscale_jobs", "tempscale"


class Mutation(NamedTuple):
    """A mistake: a text that occurs once in a file, and what it is replaced by."""

    file: str
    old: str
    new: str
    reason: str = ""
    """Why no test can notice it; empty where one must."""


class Subject(NamedTuple):
    """Mistakes that the same tests must notice, the fastest tests first."""

    name: str
    tests: tuple[str, ...]
    mutations: tuple[Mutation, ...]


def of(file: str, *pairs: tuple[str, ...]) -> tuple[Mutation, ...]:
    """Mutations of one file from (old, new) or (old, new, reason)."""
    return tuple(Mutation(file, *pair) for pair in pairs)


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
        ("check.excess > max(check.size, noise or 0.0)", "check.excess > min(check.size, noise or 0.0)"),
        ("check.excess > max(check.size, noise or 0.0)", "check.excess >= max(check.size, noise or 0.0)"),
        ("if check.error is None and check.excess > check.size:", "if False:"),
        ("if check.error is None and check.excess > check.size:", "if check.error is None:"),
        ('verdict = "failed" if unknown == "fail" else "unknown noise"', 'verdict = "unknown noise"'),
        ('verdict = "failed" if unknown == "fail" else "unknown noise"', 'verdict = "failed"'),
        ("if error and freedom < _LEAST_FREEDOM:", "if False:"),
        ("if error and freedom < _LEAST_FREEDOM:", "if freedom < _LEAST_FREEDOM:"),
        ('self.first or (self.other and gate.on_other_model == "new-series")', "self.first or self.other"),
        ('self.first or (self.other and gate.on_other_model == "new-series")', "self.first"),
        ("checks += _series(gate, row, baseline)", "pass"),
        ("    elif baseline.other:", "    elif False:"),
        ('tail = alpha if check.kind == "threshold" else alpha / 2', "tail = alpha"),
        ("gate.false_alarms / max(1, noisy)", "gate.false_alarms"),
        ("check.decided is None and check.excess is not None and bool(check.error)", "check.decided is None"),
        ("_LEAST_FREEDOM = 2", "_LEAST_FREEDOM = 200"),
        ("max(threshold.excess(value), math.ulp(0.0))", "threshold.excess(value)"),
        (
            "error = standard_error(row, threshold.figure, of_this_corpus=True)",
            "error = standard_error(row, threshold.figure)",
        ),
        (
            "None if None in errors else math.hypot(*(e for e in errors if e is not None))",
            "None if errors == (None, None) else math.hypot(*(e for e in errors if e is not None))",
        ),
        ("freedom = min(_freedom(other, figure), _freedom(row, figure))", "freedom = _freedom(row, figure)"),
        ("math.hypot(*(e for e in errors if e is not None))", "max(e for e in errors if e is not None)"),
        ('_FAILED = ("failed", "not measured")', '_FAILED = ("failed",)'),
        (
            'return ("failed" if failed else "passed") if rows else "none", failed',
            'return "failed" if failed else "passed", failed',
        ),
        ("if other[name] != row[name]]", "if False]"),
        ('if gate.holds_for(row["temperature"]):', "if True:"),
        ("return max(pooled[0], own[0]), max(pooled[1], own[1])", "return pooled[0], pooled[1]"),
        ("if figure in SHARES and None not in errors:", "if False:"),
        ('errors = (errors[1], errors[1]) if other.get("documents") is None else (errors[0], errors[0])', "pass"),
        ("return None if value is None else finite(value)", "return value"),
        (
            "return None if found is None or not math.isfinite(found) else float(found)",
            "return 0.0 if found is None else float(found)",
        ),
    )
    + of(
        f"{JOBS}/config/nights.py",
        ('(excess == 0 and self.relation in ("<=", ">="))', "excess == 0"),
        ('if self.relation in ("<=", "<") else self.limit - value', 'if self.relation == "<=" else self.limit - value'),
    )
    + of(
        f"{JOBS}/nights/record.py",
        ('night["gate"] == "passed" and night["compared"] is not False', 'night["gate"] == "passed"'),
        ('night["gate"] == "passed" and night["compared"] is not False', 'night["gate"] == "passed" and night["compared"]'),
        ('night["accepted"] or (', "("),
        ('same = ("temperature", "model_fingerprint")', 'same = ("temperature",)'),
        ("for key in same) and comparable(before, row) for row", "for key in same) for row"),
        ("if not _continued(then, tonight)]", "if not _continued(then, [row])]"),
        ("if not _continued(then, tonight)]", "if False]"),
        ('if then["run"] == good[-1]["run"]] or earlier', "if False] or earlier"),
        ('if then["run"] == good[-1]["run"]] or earlier', 'if then["run"] == good[-1]["run"]]'),
        ("if any(map(_has_width, earlier)):", "if False:"),
        ('_UNKNOWN_BEFORE = ("dimensions",)', "_UNKNOWN_BEFORE = ()"),
        ("any(not _continued(other, tonight) for other in same)", "False"),
        ('keep="last", maintain_order=True)', 'keep="first", maintain_order=True)'),
        ("return Baseline(fit[-1], ", "return Baseline(fit[0], "),
    )
    + of(
        f"{JOBS}/nights/night.py",
        ("if not baseline.begins(config)]", "if not baseline.first]"),
        ("if not baseline.begins(config)]", "]"),
    ),
)

NUMBERS = Subject(
    "numbers that users give, and means of rounding errors",
    (
        "tests/jobs/config/test_numbers.py",
        "tests/jobs/nights/test_gate.py",
        "tests/jobs/corpus/test_magnitudes.py",
        "tests/jobs/embedding/test_cancelling.py",
        "tests/tempscale/second_order/test_moments.py",
    ),
    of(
        f"{JOBS}/config/nights.py",
        ("if math.isinf(float(limit)):", "if False:"),
    )
    + of(
        f"{JOBS}/config/strict.py",
        ("frozen=True, allow_inf_nan=False)", "frozen=True)"),
        ("value.bit_length() > _BITS", "value.bit_length() > 64"),
        ("elif isinstance(value, list):", "elif False:"),
    )
    + of(
        f"{JOBS}/config/given.py",
        ("    except ValueError:  # Python reads no whole number of more digits.", "    except KeyError:"),
    )
    + of(
        f"{JOBS}/corpus/vectors.py",
        ("scaled = np.ldexp(rows, -exponent[:, None])", "scaled = rows"),
        ("row = np.asarray(value, dtype=np.float64)", "row = np.asarray(value, dtype=np.float32)"),
        ("np.asarray(settings.scale, dtype=np.float64)", "np.asarray(settings.scale, dtype=np.float32)"),
        ("np.flatnonzero(~finite).tolist()", "[]"),
        ("np.flatnonzero(largest == 0).tolist()", "[]"),
    )
    + of(
        f"{JOBS}/embedding/embed.py",
        (
            "np.isnan(out.moments.spread.numpy()) & np.isfinite(out.moments.mean_norm.numpy())",
            "np.isnan(out.moments.spread.numpy())",
        ),
    )
    + of(
        f"{SCIENCE}/second_order/moments.py",
        ("_ROUNDING = 4.0", "_ROUNDING = 2.0"),
        ("_ROUNDING = 4.0", "_ROUNDING = 8.0"),
        ("_MARGIN = 2.0", "_MARGIN = 1.0"),
        ("torch.where(spread < most, spread, torch.nan)", "spread"),
        ("1 / (_ROUNDING**2 * tokens * epsilon**2)", "1 / (_ROUNDING**2 * epsilon**2)"),
        ("return min(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)", "return torch.finfo(torch.float32).eps"),
        (
            "_with_direction(self.mean / norm, rows, self.tokens, _epsilon(torch.float32)).float()",
            "(self.mean / norm).float()",
        ),
    ),
)

ERRORS = Subject(
    "standard errors",
    (
        "tests/tempscale/stats/test_errors_by_hand.py", "tests/tempscale/stats/test_documents.py",
        "tests/tempscale/collapse/test_aggregates.py", "tests/tempscale/stats/test_paired.py",
        "tests/jobs/collapse/test_cosine_stage.py",
    ),
    of(
        f"{SCIENCE}/stats/errors.py",
        ("return float(2.0 * np.sqrt(variance / texts))", "return float(np.sqrt(variance / texts))"),
        ("np.sqrt(row_variance / rows + column_variance / columns)", "np.sqrt(row_variance / rows)"),
        ("np.sqrt(max(0.0, 1.0 - texts / population))", "np.sqrt(max(0.0, texts / population))"),
        ("if population > 0 else 0.0", "if population > 0 else 1.0"),
        ("texts.sum() ** 2 / np.square(texts).sum()", "texts.sum() / texts.max()"),
        ("return len(texts) >= GROUPS_FOR_AN_ERROR and _equal(texts)", "return _equal(texts)"),
        ("_equal(texts) >= EQUAL_DOCUMENTS_FOR_AN_ERROR", "True"),
        ("weight * np.sqrt(count / (count - 1)) * centred / texts", "weight * centred / texts"),
        ("centred = sums - own.texts * (sums.sum() / texts)", "centred = sums - sums.mean()"),
        ("        texts[here] += own.texts\n", "        texts[here] = own.texts\n"),
        ("np.square(np.bincount(place, np.concatenate(shares))).sum()", "np.square(np.concatenate(shares)).sum()"),
    ),
)  # fmt: skip

GROUPS = Subject(
    "SOCM of groups",
    (
        "tests/tempscale/stats/test_groups.py",
        "tests/jobs/collapse/test_group_tables.py",
        "tests/tempscale/stats/test_documents.py",
        "tests/jobs/audit/test_groups.py",
    ),
    of(
        f"{SCIENCE}/stats/groups.py",
        ("np.sqrt((groups - 1) / groups * np.square", "np.sqrt(1 / groups * np.square"),
        ("    if groups < GROUPS_FOR_AN_ERROR:", "    if groups < 2:"),
        ("np.fill_diagonal(pairs, texts * (texts - 1) / 2)", "np.fill_diagonal(pairs, texts * texts / 2)"),
        ("np.concatenate([every - same, same], axis=1)", "np.concatenate([every, same], axis=1)"),
        ("known = np.where(counts > 0, weights, 0.0)", "known = weights * np.ones(counts.shape)"),
        ("left.sums[has], left.counts[has]", "left.sums, left.counts"),
        ("float(high - low) / (2 * Z_95)", "float(high - low) / Z_95"),
        ("ends[0] <= 0 or ends[1] >= 1", "ends[0] <= 0"),
        ("4 / texts * (np.diag(p) - np.outer(p, p))", "4 / texts * np.diag(p)"),
        ("4 * len(names) / (len(names) - 1) * moved.T", "4 * moved.T"),
        ("(found + 1) * groups <= texts", "found * groups <= texts"),
    )
    + of(
        f"{JOBS}/collapse/dealing.py",
        ("set_of[order] = np.arange(len(names)) % count", "set_of[order] = np.arange(len(names)) * count // len(names)"),
        ("chosen[turn * size : (turn + 1) * size]", "chosen[:size]"),
        ("here if set_of is None else here[set_of[here] == number]", "here"),
        ("return found if tell_an_error(found) else None", "return found"),
    )
    + of(
        f"{JOBS}/collapse/group_tables.py",
        ("place[np.minimum(one, other), np.maximum(one, other)]", "place[one, other]"),
        ("(document[found.first] == document[found.second])", "(document[found.first] != document[found.second])"),
    ),
)

CACHE = Subject(
    "the cache",
    ("tests/jobs/embedding/test_key.py", "tests/jobs/embedding/test_cache.py"),
    of(
        f"{JOBS}/embedding/cache.py",
        ('"model": model.fingerprint, ', ""),
        ('"temperature": temperature.canonical,', '"temperature": "",'),
        ('"role": cache.role if temperature.roles else None, ', ""),
        ('"max_length": model.max_length, ', ""),
        ('"long": cache.encoding.long,', ""),
        ('"precision": _computed_in(cache.encoding.precision, bool(cluster.gpus)), ', ""),
        ('"max_characters": cache.max_characters,', ""),
        ('"device": "gpu" if cluster.gpus else "cpu",', ""),
        ('for name in ("torch", "transformers")', 'for name in ("torch",)'),
        ('".".join(metadata.version(name).split(".")[:2])', '""'),
        ('        values["prompt"] = prompt\n', "        pass\n"),
        ('for name in ("compiled", "packed") if getattr', 'for name in ("compiled",) if getattr'),
        ("            except (OSError, Damaged):\n", "            except OSError:\n"),
        ("if sha in wanted and sha not in seen", "if sha in wanted"),
    )
    + of(
        f"{JOBS}/embedding/lookup.py",
        ("        everywhere &= set(tables[-1]", "        everywhere |= set(tables[-1]"),
        ('columns |= {"truncated": pc.or_(rows.column("truncated"), hits.column("cut"))}', ""),
        (
            "columns |= {column: hits.column(column) for column in",
            "columns |= {column: rows.column(column) for column in ()} | {column: hits.column(column).take(pa.array(range(hits.num_rows))[::-1]) for column in",
        ),
        (
            "    for temperature in run.temperatures:  # Parts of an unfinished look-up.",
            "    for temperature in ():  # Parts of an unfinished look-up.",
        ),
    )
    + of(
        f"{JOBS}/embedding/prune.py",
        ("if unused_days is not None and age >= unused_days:", "if unused_days is not None and age > 0:"),
        ("        if name != kept:\n", "        if True:\n"),
        ("if wanted is None or sha in wanted}", "if True}"),
    ),
)

LOCKS = Subject(
    "locks",
    ("tests/jobs/runs/test_lock.py",),
    of(
        f"{JOBS}/runs/lock.py",
        ("if self.lost.is_set() or not _tried(lambda: _holds(self._storage, own)):", "if self.lost.is_set():"),
        ("if self.lost.is_set() or not", "if not"),
        ("            if _tried(lambda: _holds(storage, own)):\n                return True", "            return True"),
        ("            if not _dead(other, waiting, storage):", "            if False:"),
        ("            if _tried(lambda: _read(storage)) == other:\n", "            if True:\n"),
        ("storage.create(NAME, _written(own)) or _holds(storage, own)", "storage.create(NAME, _written(own))"),
        (
            "        except OSError as error:\n            if wait is None or error.errno in _LASTING:",
            "        except OSError as error:\n            if True:",
        ),
        ("if process.status() == psutil.STATUS_ZOMBIE:", "if False:"),
        ('return bool(other["ticks"] != _ticks(other["pid"]))', "return False"),
        ('            if other.get("ticks") is not None:', "            if False:"),
        ('if time.time() - other["renewed"] > _FORGOTTEN_SECONDS:', "if False:"),
        ("                if now != other:\n", "                if False:\n"),
        ("            if _holds(storage, own):\n                storage.remove(NAME)", "            storage.remove(NAME)"),
        ("                lost.set()\n                return", "                pass"),
    )
    + of(
        f"{JOBS}/lifecycle.py",
        ("        if self._record is not None:\n            self.lock.check()", "        if self._record is not None:"),
    )
    + of(
        f"{JOBS}/runs/storage.py",
        ("                    if error.errno not in _NO_LINKS:\n                        raise", "                    pass"),
        ("os.O_CREAT | os.O_EXCL | os.O_WRONLY", "os.O_CREAT | os.O_WRONLY"),
        ("        if not _CREATES.intersection(", "        if False and not _CREATES.intersection("),
    ),
)

STORAGE = Subject(
    "storage, and what notices damage",
    ("tests/jobs/runs/test_storage.py", "tests/jobs/runs/test_object_storage.py", "tests/jobs/runs/test_sealed.py"),
    of(
        f"{JOBS}/runs/storage.py",
        ('                if fs.info(target)["size"] != len(data):', "                if False:"),
        ("                os.replace(temporary, target)", "                open(target, 'wb').write(data)"),
        (
            '        return sorted(n for n in names if n.endswith(suffix) and not n.rsplit("/", 1)[-1].startswith(_TEMPORARY))',
            "        return sorted(n for n in names if n.endswith(suffix))",
        ),
        ("        if os.path.exists(temporary):\n            os.unlink(temporary)", "        pass"),
        (
            '            reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)',
            "            raise",
        ),
        (
            "                except FileExistsError:\n                    return False\n                except OSError",
            "                except FileExistsError:\n                    return True\n                except OSError",
        ),
        ('{"use_listings_cache": False}', "{}"),
        ("        self._check()\n        fs, _ = self._fs", "        fs, _ = self._fs"),
        ("found.max >= low and", "found.max > low and"),
        ("kept = pc.and_(kept, pc.less(values,", "kept = pc.and_(kept, pc.less_equal(values,"),
        ("            if filled + len(values[0]) > rows:\n                break", "            pass"),
        ("            except (sealed.Broken, pa.ArrowException) as error:", "            except sealed.Broken as error:"),
        (
            "                if type(error) is not OSError or error.errno is not None:\n                    raise",
            "                pass",
        ),
        (
            "                stream.flush()\n                os.fsync(stream.fileno())",
            "                stream.flush()",
            "only a machine that loses its power could tell",
        ),
    )
    + of(
        f"{JOBS}/runs/sealed.py",
        ("pre_buffer=pre_buffer, page_checksum_verification=True", "pre_buffer=pre_buffer"),
        ("write_page_checksum=True", "write_page_checksum=False"),
        ("and seal[len(_MARK) :] != _digest(footer)", "and False"),
        ("value.pop(_KEY) != _checksum(value)", "value.pop(_KEY) is None"),
        ("        if len(last) == len(_KEY) and sum(map(operator.ne, last, _KEY)) == 1", "        if False"),
        ('or tail[-4:] != b"PAR1"', "", "Arrow refuses such a file too, in other words"),
    ),
)

MENDING = Subject(
    "what is made again",
    ("tests/jobs/runs/test_mending.py",),
    of(
        f"{JOBS}/runs/mending.py",
        ('    if not error.path.startswith(f"{storage.root}/"):\n        raise error', ""),
        ("            own.remove(numbered(parts, part))", "            pass"),
        (
            "        folder.remove_results(storage, command)\n        return _ALL\n    if name.startswith",
            "        return _ALL\n    if name.startswith",
        ),
    )
    + of(
        f"{JOBS}/lifecycle.py",
        ("                if not error.mended:\n                    raise", "                pass"),
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
        (
            "same[1:] = (head[order][1:] == head[order][:-1]) & (tail[order][1:] == tail[order][:-1])",
            "same[1:] = head[order][1:] == head[order][:-1]",
        ),
        ("order = np.lexsort((place, tail, head))", "order = np.lexsort((-place, tail, head))"),
        ("gone = gone[place[gone] >= first]", "gone = gone"),
        (
            "return (number << 64) // count, (number + 1 << 64) // count",
            "return (number << 64) // count, max(0, (number + 1 << 64) // count - (1 << 60))",
        ),
        (
            "low * self.files >> 64 : ((high - 1) * self.files >> 64) + 1",
            "low * self.files >> 64 : (high - 1) * self.files >> 64",
        ),
        ('own.filter(pa.array(~np.isin(own.column("row").to_numpy(), repeated_rows.get(unit, nothing))))', "own"),
        ('both.sort_by([("key", "ascending"), ("digest", "ascending")]).slice(0, size)', "both.slice(0, size)"),
    )
    + of(
        f"{JOBS}/corpus/rows.py",
        ('if reason is None and not seen.add(digest_of_id(text_id or "")):', "if False:"),
        (
            "            if digest != _NO_DIGEST:\n",
            "            if True:\n",
            "the free places of a table hash to one place, where the first stays; it only costs time",
        ),
        (
            "while (own := table[number * ID_BYTES : (number + 1) * ID_BYTES]) != _NO_DIGEST and own != digest:",
            "while (own := table[number * ID_BYTES : (number + 1) * ID_BYTES]) != _NO_DIGEST and own[:8] != digest[:8]:",
        ),
        ("if limit is not None and counts.read >= limit:", "if limit is not None and counts.read > limit:"),
    )
    + of(
        f"{JOBS}/corpus/sources.py",
        ("    if now != own:\n", "    if False:\n"),
        ("    fs.invalidate_cache()\n", ""),
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
    ),
    of(
        f"{JOBS}/errors.py",
        (r'"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"', r'"[\x00-\x1f\u2028\u2029\ud800-\udfff]"'),
        (r'"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"', r'"[\x00-\x1f\x7f-\x9f\u2028\u2029]"'),
        ("super().__init__(visible(message))", "super().__init__(message)"),
    )
    + of(
        f"{JOBS}/report/screen.py",
        ('*(visible(one, "\\n\\t") if isinstance(one, str) else one for one in objects)', "*objects"),
        ("Text(visible(cell)) for cell in line", "Text(cell) for cell in line"),
        ("Text(visible(cell)) for cell in line", "visible(cell) for cell in line"),
    )
    + of(
        f"{JOBS}/report/page.py",
        ("        autoescape=True,\n", "        autoescape=False,\n"),
        ("        finalize=_shown,\n", ""),
        ('text.replace("<", "\\\\u003c")', "text"),
        ("specs = {key: _shown_in(chart.to_dict(validate=False))", "specs = {key: chart.to_dict(validate=False)"),
    )
    + of(
        f"{JOBS}/urls.py",
        ('_QUERY.sub(r"\\1***", _WEB_QUERY.sub(r"\\1***", without_user))', '_WEB_QUERY.sub(r"\\1***", without_user)'),
        ('_QUERY.sub(r"\\1***", _WEB_QUERY.sub(r"\\1***", without_user))', '_QUERY.sub(r"\\1***", without_user)'),
        ('without_user = _USER.sub(r"\\1***@", source)', "without_user = source"),
        ("first_line(error).replace(source, masked(source))", "first_line(error)"),
        ("lambda url: masked(url[0])", "lambda url: url[0]"),
    )
    + of(
        f"{JOBS}/runs/provenance.py",
        ('for name in ("source", "corpus", "queries", "qrels"):', 'for name in ("source", "corpus", "queries"):'),
        ('        config["audits"] = [masked(folder) for folder in config["audits"]]', "        pass"),
        (
            'for section, name in (("gate", "baseline"), ("record", "history")):',
            'for section, name in (("gate", "baseline"),):',
        ),
    )
    + of(f"{JOBS}/runs/sealed.py", ('"[\\x7f-\\x9f\\u2028\\u2029]"', '"[\\x7f-\\x9e\\u2028\\u2029]"')),
)

LOADED = Subject(
    "the model that was loaded",
    ("tests/jobs/workers/test_loaded.py", "tests/tempscale/model/test_checkpoint.py"),
    of(
        f"{JOBS}/workers/loaded.py",
        ("        if before != self._state:\n            raise other(self._model, self.folder)", ""),
        ("        if on_this_machine(self._state) != self._model.seen:\n            self._compare()", ""),
        ("if checkpoint.fingerprint(self.folder) != self._model.fingerprint:", "if False:"),
        ("(now := checkpoint.state(self.folder)) != self._state:", "(now := self._state) != self._state:"),
        ("if digest and checkpoint.settings_digest(checkpoint.resolve(folder)) != digest:", "if False:"),
    ),
)

ENDS = Subject(
    "exit codes",
    ("tests/jobs/cli/test_ends.py", "tests/jobs/cli/test_cli.py"),
    of(
        f"{JOBS}/errors.py",
        ("    exit_code = 2\n", "    exit_code = 1\n"),
        ("    exit_code = 3\n", "    exit_code = 2\n"),
    )
    + of(
        f"{JOBS}/cli/app.py",
        ("        code = code or (0 if start.completed else 3)\n", "        code = code or 3\n"),
        ("        code = code or (0 if start.completed else 3)\n", "        pass\n"),
        ("    except KeyboardInterrupt:\n        _end(3)", "    except KeyboardInterrupt:\n        _end(130)"),
        ("3 if end.code == _INTERRUPTED else end.code or 0", "3 if end.code == _INTERRUPTED else 0"),
        ("3 if end.code == _INTERRUPTED else end.code or 0", "end.code or 0"),
    )
    + of(
        f"{JOBS}/outlets.py",
        ("self.failure.errno == errno.EPIPE", "True"),
        ("        if self.failure is None or self.failure.errno == errno.EPIPE:", "        if self.failure is None:"),
        ("        os.dup2(nowhere, self._stream.fileno())\n", ""),
    ),
)

BOMBS = Subject(
    "rows without an end",
    ("tests/jobs/corpus/test_bombs.py",),
    of(
        f"{JOBS}/corpus/readers.py",
        ("if size <= LONGEST_VALUE else None), size", "if True else None), size"),
        ("        if passed + len(rest) + len(last) > LONGEST_VALUE:\n", "        if False:\n"),
        ("yield (None if passed else rest), passed + len(rest)", "yield rest, passed + len(rest)"),
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
        ("    if most >= _EXACT:\n", "    if False:\n"),
        ("        found[0] += missing - above\n", ""),
        ("        found[-1] += above\n", ""),
        ("        for side in self._sides.values():\n            side.merge()\n", ""),
        ("                    own.merge()\n", ""),
        ("some.topk(self._neighbours, dim=1).values[:, -1]", "some.topk(self._neighbours, dim=1).values[:, 0]"),
        ("            reach &= cosines > -torch.inf\n", ""),
        ("            if some.shape[1] >= self._neighbours > 0 and", "            if self._neighbours > 0 and"),
        ("cosines.masked_fill(_below(cosines, below), -torch.inf)", "cosines"),
        ("        twins = value >= self._duplicate\n", "        twins = value > self._duplicate\n"),
    )
    + of(
        f"{SCIENCE}/collapse/cosine.py",
        ('return 0.0 if precision == "float32" else dim / 4 * 2.0**-23', "return 0.0"),
        ("else dim / 4 * 2.0**-23", "else dim / 40 * 2.0**-23"),
    )
    + of(
        f"{SCIENCE}/model/padded.py",
        ("non_blocking=not wait", "non_blocking=True"),
        ("mask = torch.arange(width, device=device) < together", "mask = torch.arange(width, device=device) <= together"),
    )
    + of(
        f"{SCIENCE}/model/encoder.py",
        ("        waits = before is not None\n", "        waits = False\n"),
        ("                finished(device)\n", ""),
    )
    + of(
        f"{SCIENCE}/second_order/polar.py",
        (
            "torch.where(inside < ranks, starts + inside, len(self.rows) - 1)",
            "starts + inside.clamp_max(int(self.ranks.min()))",
        ),
        ("np.cumsum(ranks) - ranks", "np.cumsum(ranks)"),
    )
    + of(
        f"{JOBS}/embedding/embed.py",
        ("    before = marks.before if marks.fine else None\n", "    before = None\n"),
    )
    + of(
        f"{JOBS}/workers/marks.py",
        ("        self.fine = found\n", "        self.fine = False\n"),
    ),
)

TOGETHER = Subject(
    "what runs at once",
    (
        "tests/tempscale/model/test_encoder.py",
        "tests/tempscale/model/test_packed.py",
        "tests/tempscale/choosing/test_by_layer.py",
        "tests/jobs/corpus/test_shards.py",
        "tests/jobs/collapse/test_tile_tasks.py",
    ),
    of(
        f"{SCIENCE}/model/batches.py",
        ("wasteful = not packed and enough", "wasteful = enough"),
        ("if size and padded <= token_budget and", "if size and padded < token_budget and"),
        ("padded > (1 + _PADDING) *", "padded > (2 + _PADDING) *"),
    )
    + of(
        f"{SCIENCE}/model/encoder.py",
        ('TOKEN_BUDGET if device.type == "cpu" else', "TOKEN_BUDGET if False else"),
        ("_GPU_NUMBERS // width", "_GPU_NUMBERS"),
        ("self.token_budget, self.packed)", "self.token_budget)"),
    )
    + of(
        f"{SCIENCE}/choosing/by_layer.py",
        ("budget = min(encoder.token_budget, _GRAPH_BUDGET)", "budget = encoder.token_budget"),
    )
    + of(
        f"{JOBS}/corpus/shards.py",
        ("before // _OF_THOSE_BEFORE))", "0))"),
        ("(enough(largest, before) if begins else largest)", "largest"),
        ("max(1, -(-wanted // _SHORTEST_SHARD_SHARE)))", "wanted)"),
    )
    + of(
        f"{JOBS}/collapse/blocks.py",
        ("    with _computing:\n", "    if True:\n"),
    ),
)

ACTORS = Subject(
    "what an actor is for",
    (
        "tests/jobs/embedding/test_embedding_runs.py",
        "tests/jobs/workers/test_placement.py",
    ),
    of(
        f"{JOBS}/workers/actor.py",
        ("in (None, device) else None", "in (None, device, 'cuda') else None"),
        ("            self.storage.write_json(name, budget_to_keep(", "            (lambda *_: None)(name, budget_to_keep("),
        ("            del self.encoder\n", ""),
    )
    + of(
        f"{JOBS}/workers/crew.py",
        ("!= GIVEN and not self._unloaded:", "!= GIVEN:"),
        ('(*arguments, *item), kind, {"device": "cuda"})', "(*arguments, *item), kind, {})"),
    ),
)

SUBJECTS = (
    GATE, NUMBERS, ERRORS, GROUPS, CACHE, LOCKS, STORAGE, MENDING, EXCHANGE, ESCAPES, LOADED, ENDS, BOMBS, DEVICES, TOGETHER, ACTORS,
)  # fmt: skip
