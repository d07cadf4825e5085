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
        (
            "            except Exception:  # Every storage has its own.\n                ignored",
            "            except OSError:\n                ignored",
        ),
        ("            if not table.schema.equals(schema):\n", "            if False:\n"),
        ("        good &= ~table.column(name).is_null().to_numpy()\n", "        pass\n"),
        ('        good &= np.isfinite(table.column(name).fill_null(float("nan")).to_numpy())\n', "        pass\n"),
        ("good & (np.abs(norms - 1) <= _TOLERANCE)", "good"),
        ("            tables.append(table.filter(pa.array(good)))", "            tables.append(table)"),
        ("at = first.setdefault(sha, row)", "at = first[sha] = row"),
        ("            conflicts.add(sha)\n", "            pass\n"),
        ("not isinstance(written, dict) or {key: written.get(key) for key in values} != values", "False"),
        ("            if is_foreign(store, values):\n", "            if False:\n"),
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
            "    for temperature in run.temperatures:  # Parts of an unfinished look-up,",
            "    for temperature in ():  # Parts of an unfinished look-up,",
        ),
    )
    + of(
        f"{JOBS}/embedding/prune.py",
        ("if unused_days is not None and age >= unused_days:", "if unused_days is not None and age > 0:"),
        ("        if name != kept:\n", "        if True:\n"),
        ("if wanted is None or sha in wanted}", "if True}"),
        ("if _OURS.fullmatch(", "if bool("),
        ("            store.remove(name)\n        except (OSError", "            pass\n        except (OSError"),
        (" if table.schema.equals(next(iter(tables.values())).schema)}", "}"),
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
        ("        if self.is_local or not has_magic(path):", "        if True:"),
        ("f\"{scheme}://{rest.rstrip('/')}\" if remote", "root if remote"),
        ("                os.replace(temporary, target)", "                open(target, 'wb').write(data)"),
        (
            '        return sorted(n for n in names if n.endswith(suffix) and not n.rsplit("/", 1)[-1].startswith(_TEMPORARY))',
            "        return sorted(n for n in names if n.endswith(suffix))",
        ),
        ("        if os.path.exists(temporary):\n            os.unlink(temporary)", "        pass"),
        (
            '            why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or reason(error, self.root)',
            "            raise",
        ),
        (
            "                except FileExistsError:\n                    return False\n                except OSError",
            "                except FileExistsError:\n                    return True\n                except OSError",
        ),
        ("url_to_fs(self.root, use_listings_cache=False)", "url_to_fs(self.root)"),
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
    ("tests/jobs/runs/test_mending.py", "tests/jobs/runs/test_finished_runs.py"),
    of(
        f"{JOBS}/runs/mending.py",
        ("name == error.path or ", ""),
        (' or name.split("/")[0] not in folder.names_of(command)', ""),
        ("    if top in _BELOW:\n", "    if False:\n"),
        ("    for file in [SHARDED] if name.endswith", "    for file in [] if name.endswith"),
        ("            storage.remove(file)\n    return", "            pass\n    return"),
        ("        _remove_one_with(storage, name, model)\n", "        pass\n"),
        ('        storage.remove("/".join([*name.split("/")[:4], "result.json"]))\n', "        pass\n"),
        ("    if storage.exists(PRUNED):\n", "    if False:\n"),
        ("        if not name.startswith(_REWRITTEN) and name != DONE:\n", "        if False:\n"),
        ("        if section in record:\n", "        if False:\n"),
    )
    + of(
        f"{JOBS}/runs/inventory.py",
        ("if now == files[name][1]}", "}"),
        ("if sizes.get(name) == size and digest is not None]", "if digest is not None and name in sizes]"),
        ('            if found.get("run") == run:\n', "            if True:\n"),
        ("return found if _is_whole(storage, record) else [*found, DONE]", "return found"),
        ("        write(storage, record)\n        return []", "        return []"),
        ("if not (pruned and name.startswith(pruned))", ""),
    )
    + of(
        f"{JOBS}/lifecycle.py",
        ("                if not error.mended:\n                    raise", "                pass"),
        ("                if error.path in mended:\n", "                if False:\n"),
        ("            check_unchanged(self._earlier)\n", "            pass\n"),
        ("        if self.is_mended and self._earlier is not None:\n", "        if False:\n"),
        ("            inventory.write(self.run.storage, self._record)\n", "            pass\n"),
        ("                inventory.note(storage, drawn)\n", "                pass\n"),
    )
    + of(
        f"{JOBS}/nights/night.py",
        ("if is_new or night.redraws:", "if is_new:"),
    ),
)

DAMAGED_NIGHTS = Subject(
    "damaged nights",
    ("tests/jobs/nights/test_record.py",),
    of(
        f"{JOBS}/nights/record.py",
        ("    except (RunError, OSError):\n        return None", "    except OSError:\n        return None"),
        ("return _typed(found) if _ALWAYS_THERE.issubset(found.columns) else None", "return _typed(found)"),
        ("                damaged.append(name)\n", "                pass\n"),
        ("    except Damaged as error:\n        return [Baseline", "    except OSError as error:\n        return [Baseline"),
    )
    + of(
        f"{JOBS}/nights/night.py",
        ("if name != history.part(rows_of_night)]", "]"),
        ("    if any(name > str(history.part([last])) for name in known.damaged):\n", "    if known.damaged:\n"),
        (
            "    if any(name > str(history.part([last])) for name in known.damaged):\n        return dict(_UNKNOWN)",
            "    if False:\n        return dict(_UNKNOWN)",
        ),
        ("            except RunError:\n                continue", "            except KeyError:\n                continue"),
    ),
)

RESUMED = Subject(
    "what a resumed run does again",
    (
        "tests/jobs/runs/test_resuming.py",
        "tests/jobs/embedding/test_cache.py",
        "tests/jobs/evaluate/test_large_corpora.py",
    ),
    of(
        f"{JOBS}/runs/folder.py",
        ('    if done:\n        storage.remove("shards")', '    if True:\n        storage.remove("shards")'),
        ("return storage.exists(ended) and all(", "return storage.exists(ended) and any("),
        ("return storage.exists(ended) and all(", "return storage.exists(ended) and not all("),
    )
    + of(
        f"{JOBS}/corpus/index.py",
        ("        if not storage.exists(SHARDED):\n", "        if True:\n"),
        ("for left in () if storage.exists(PLANNED) else (", "for left in ("),
    )
    + of(f"{JOBS}/corpus/stream.py", ("if reading.unit_name(unit.number) in there:", "if False:"))
    + of(
        f"{JOBS}/embedding/embed.py",
        ('if all(run.part("texts", model, t, number) in written for t in run.temperatures):', "if False:"),
        (
            'if all(run.part("texts", model, t, number) in written for t',
            'if any(run.part("texts", model, t, number) in written for t',
        ),
    )
    + of(
        f"{JOBS}/embedding/pieces.py",
        ("if not all(run.part(kind, model, t, number) in there for kind, t in every)", "if True"),
    )
    + of(
        f"{JOBS}/embedding/lookup.py",
        ("    if run.storage.exists(name):\n        data", "    if False:\n        data"),
        ("    if how.storage.exists(_sorted(first)):\n", "    if False:\n"),
    )
    + of(f"{JOBS}/embedding/cache.py", ("    if run.storage.exists(done):\n", "    if False:\n"))
    + of(
        f"{JOBS}/collapse/groups.py",
        ("if not all(run.part(GROUPS, model, t, k) in written for t in run.temperatures)", "if True"),
        ('    if is_whole(storage, f"{place}/done.json"):\n', "    if False:\n"),
    )
    + of(f"{JOBS}/collapse/largest.py", ("    if not run.storage.exists(name):\n", "    if True:\n"))
    + of(
        f"{JOBS}/collapse/socm.py",
        ('    if is_whole(run.storage, f"{place}/done.json"):\n', "    if False:\n"),
        ("if tiling.tile(*t) not in written]", "]"),
    )
    + of(
        f"{JOBS}/collapse/cosine.py",
        ('is_closed = is_whole(run.storage, f"{grid.place}/closed.json")', "is_closed = False"),
        ("if not all(grid.block(k) in there for k in g)]", "]"),
        ("if not there.issuperset(grid.written(i, j, near))]", "]"),
        ("    if is_closed:\n", "    if False:\n"),
    )
    + of(f"{JOBS}/collapse/exposure.py", ("    if is_done(run, model, temperature):\n", "    if False:\n"))
    + of(f"{JOBS}/collapse/source_order.py", (" or run.storage.exists(result_name(model))", ""))
    + of(
        f"{JOBS}/collapse/worst.py",
        ("if not is_done(run, model, t)]", "]"),
        ("if tile(search.place, *t) not in there]", "]"),
    )
    + of(
        f"{JOBS}/audit/model.py",
        ("near = analysis.compares and not exposure.is_done(run, model, temperature)", "near = False"),
        ('search = analysis.socm_top_over == "corpus" and not worst.is_done(run, model, temperature)', "search = False"),
    )
    + of(
        f"{JOBS}/pairs/socm.py",
        ("if all(run.storage.exists(run.part(PARTIALS, model, t, number)) for t in run.temperatures):", "if False:"),
    )
    + of(
        f"{JOBS}/diagnose/looks.py",
        ("missing = [k for k, name in enumerate(names) if not run.storage.exists(name)]", "missing = [*range(len(names))]"),
    )
    + of(f"{JOBS}/diagnose/two_texts.py", ("    if not all(map(run.storage.exists, parts)):\n", "    if True:\n"))
    + of(
        f"{JOBS}/diagnose/repeated.py",
        ("if not all(run.storage.exists(run.part(REPEATED_PARTS, model, t, k)) for t in run.temperatures)", "if True"),
    )
    + of(f"{JOBS}/evaluate/cells.py", ("return run.storage.exists(name) and", "return False and"))
    + of(f"{JOBS}/evaluate/documents.py", ("        if worker.storage.exists(at):\n", "        if False:\n"))
    + of(f"{JOBS}/correct/run.py", ("if task.done(unit.number) not in there}", "}"))
    + of(f"{JOBS}/tune/layers.py", ("    if not run.storage.exists(FOUND) or", "    if True or")),
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
            "same[1:] = (head[1:] == head[:-1]) & (tail[1:] == tail[:-1])",
            "same[1:] = head[1:] == head[:-1]",
        ),
        ("order = np.lexsort((row, unit, tail, head))", "order = np.lexsort((row, -unit, tail, head))"),
        ('gone = gone.filter(pa.array(gone.column("unit").to_numpy() >= first))', "pass"),
        (
            "return (number << 64) // count, (number + 1 << 64) // count",
            "return (number << 64) // count, max(0, (number + 1 << 64) // count - (1 << 60))",
        ),
        (
            "low * self.files >> 64 : ((high - 1) * self.files >> 64) + 1",
            "low * self.files >> 64 : (high - 1) * self.files >> 64",
        ),
        ('own.filter(pa.array(~np.isin(own.column("row").to_numpy(), repeated_rows.get(unit, nothing))))', "own"),
        ('        both = both.sort_by([("key", "ascending"), *_BY_PLACE])\n', ""),
    )
    + of(
        f"{JOBS}/corpus/rows.py",
        ("if not new and row.id is not None:", "if False:"),
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
        ("    if changed:\n        more", "    if False:\n        more"),
        ("    fs.invalidate_cache()\n", ""),
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
        ('f"{facts.st_ino}:{facts.st_ctime_ns}"]', '""]'),
        ('f"{facts.st_ino}:{facts.st_ctime_ns}"]', 'f"{facts.st_ino}"]'),
        ("facts = os.stat(file)", "facts = os.lstat(file)"),
        ('str(when), " ".join(tags)]', 'str(when), ""]'),
        ("    if before[:2] != now[:2]:\n", "    if False:\n"),
        ("if len(before) < _KNOWN or before[2] == now[2]:", "if before[2:] and before[2] == now[2]:"),
        ("if len(before) < _KNOWN or before[2] == now[2]:", "if len(before) < _KNOWN:"),
        (
            "return len(before) > _KNOWN and bool(before[-1] == digest(file, before[-2], *now))",
            "return len(before) > _KNOWN",
        ),
        (
            "return len(before) > _KNOWN and bool(before[-1] == digest(file, before[-2], *now))",
            "return False",
        ),
        ("        found.update(stream.read(_END_BYTES))\n", ""),
        ("            stream.seek(start)\n", ""),
        ("return [facts[0], *facts[_KNOWN:]] if", "return facts if"),
    )
    + of(
        f"{JOBS}/corpus/sources.py",
        ("    if not hub.is_dataset(given.source) and not is_local(given):\n", "    if False:\n"),
        ("    if changes(given, before, out):\n", "    if False:\n"),
    )
    + of(
        f"{JOBS}/corpus/rows.py",
        ("    if count > given.max_rejected * every:\n", "    if count >= given.max_rejected * every:\n"),
        ("    if count > given.max_rejected * every:\n", "    if False:\n"),
        ("key=lambda item: (-item[1], item[0]))", "key=lambda item: (item[1], item[0]))"),
        ("    if share <= _UNMENTIONED_SHARE:\n", "    if share < _UNMENTIONED_SHARE:\n"),
        ('    return f"{digest.hex()} {copies}"\n', "    return text_id\n"),
        ('    return f"{digest.hex()} {copies}"\n', "    return digest.hex()\n"),
        (
            'digest = digest_of_content(value) if row.id is None else digest_of_id(text_id or "")',
            'digest = digest_of_id(text_id or "")',
        ),
        ("        if not new and row.id is not None:\n", "        if not new:\n"),
        ("        copies.update([text.digest] if text.copy else [])\n", ""),
    )
    + of(
        f"{JOBS}/corpus/distinct.py",
        ("pa.array((every.before > 0) & ~every.of_content)", "pa.array(every.before > 0)"),
        ("np.flatnonzero((every.before > 0) & every.of_content)", "np.flatnonzero(every.before < 0)"),
        ("before = place - np.maximum.accumulate(np.where(same, 0, place))", "before = same.astype(int)"),
        ("both.filter(pa.array(_first_of_equal(both))).slice(0, size)", "both.slice(0, size)"),
    )
    + of(
        f"{JOBS}/corpus/stream.py",
        ("check_rejected(self._given, (counts.rejected, counts.read)", "check_rejected(self._given, (0, counts.read)"),
        ("            rejected = self._found.rejected, self._found.read\n", "            rejected = 0, self._found.read\n"),
        ("            if not contents.agrees(found.widths):\n", "            if False:\n"),
    )
    + of(
        f"{JOBS}/corpus/vectors.py",
        ("most = max(counts, key=counts.__getitem__)", "most = next(iter(counts))"),
        ("most = max(counts, key=counts.__getitem__)", "most = max(reversed([*counts]), key=counts.__getitem__)"),
    )
    + of(
        f"{JOBS}/pairs/chunks.py",
        ("counts.lost -= len(first) * len(second)", "counts.lost -= 1"),
        ("return max(1, math.prod(", "return max(0, math.prod("),
        ("    check_rejected(settings, (counts.lost, counts.pairs + counts.lost)", "    check_rejected(settings, (0, 1)"),
    )
    + of(
        f"{JOBS}/audit/summary.py",
        ("share = 1 - usable * (1 - lost)", "share = 1 - usable"),
        ("here = usable * np.sqrt(", "here = np.sqrt("),
    )
    + of(f"{JOBS}/audit/words.py", ("max(shares), facts", "shares[0], facts"))
    + of(f"{JOBS}/config/command.py", ('                section.pop("max_rejected", None)\n', "                pass\n")),
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
        (r'"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"', r'"[\x00-\x1f\u2028\u2029\ud800-\udfff]"'),
        (r'"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"', r'"[\x00-\x1f\x7f-\x9f\u2028\u2029]"'),
        ("shortened(visible(hidden(message)))", "shortened(hidden(message))"),
        ("shortened(visible(hidden(message)))", "shortened(visible(message))"),
        ("shortened(visible(hidden(message)))", "visible(hidden(message))"),
    )
    + of(
        f"{JOBS}/report/screen.py",
        ('*(visible(hidden(one), "\\n\\t") if isinstance(one, str) else one for one in objects)', "*objects"),
        ("Text(visible(hidden(cell))) for cell in line", "Text(hidden(cell)) for cell in line"),
        ("Text(visible(hidden(cell))) for cell in line", "visible(hidden(cell)) for cell in line"),
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
        ("pattern = _WEB_QUERY if web else _QUERY", "pattern = _QUERY"),
        ("            if user_end > start:\n", "            if False:\n"),
        ("        if region.last_at > start:", "        if False:"),
        ('        last = self._text.rfind("@", start, len(self._text)', '        last = self._text.rfind("@", start, start'),
        ("_known_hidden(lines, sources).splitlines()", "lines.splitlines()"),
        ("return shortened(hidden(line))", "return shortened(line)"),
    )
    + of(
        f"{JOBS}/runs/folder.py",
        ('    identity["config"] = without_secrets(identity["config"])', '    identity["config"] = identity["config"]'),
        ("described: dict[str, Any] = without_secrets(data)", "described: dict[str, Any] = data"),
    )
    + of(f"{JOBS}/runs/sealed.py", ('"[\\x7f-\\x9f\\u2028\\u2029]"', '"[\\x7f-\\x9e\\u2028\\u2029]"')),
)

BELOW = Subject(
    "what is read and removed is below its folder",
    (
        "tests/jobs/runs/test_places.py", "tests/jobs/nights/test_record.py", "tests/jobs/corpus/test_lakes.py",
        "tests/jobs/corpus/test_hub.py", "tests/jobs/corpus/test_folders.py",
    ),
    of(
        f"{JOBS}/corpus/hub.py",
        ("        _check_card(name, card)", "        pass"),
        ("            if not one.startswith(\".\") or one in _CARDS:", "            if False:"),
        ("    if form not in _FORMATS:", "    if False:"),
        ("stream.decode(False) if stream.features", "stream if stream.features"),
    )
    + of(
        f"{JOBS}/corpus/folders.py",
        ('[real, *(cache / "blobs" for cache in caches)]', "[real]"),
        ("real.is_relative_to(os.path.realpath(folder))", "True"),
    )
    + of(
        f"{JOBS}/corpus/lakes.py",
        ("        if below and local:", "        if False:"),
        ('os.path.isabs(file) or "://" in file or ".." in file.split("/")', "False"),
    )
    + of(
        f"{JOBS}/runs/places.py",
        ('    elif "::" in name:', "    elif False:"),
        ("    elif remote and scheme.lower() in _UNWRITABLE:", "    elif False:"),
        ('    if f"{read}/".startswith(f"{written}/"):', "    if False:"),
        ('    if is_dataset and f"{written}/".startswith(f"{read}/"):', "    if False:"),
    )
    + of(
        f"{JOBS}/nights/night.py",
        ('row["folder"] == spared or not _is_below(record, row["folder"])', 'row["folder"] == spared'),
        ('not _is_below(record, row["folder"])', 'not _is_next_to(row["folder"])'),
    ),
)  # fmt: skip

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

MODELS = Subject(
    "a model's settings and files",
    (
        "tests/tempscale/model/test_checkpoint.py",
        "tests/tempscale/model/test_unusable_models.py",
        "tests/tempscale/model/test_known_settings.py",
    ),
    of(
        f"{SCIENCE}/model/checkpoint.py",
        ("    folders = {path, *_folders(path)}\n", "    folders = {path}\n"),
        ("        files.update(index.parent / name for name in _of_index(index))\n", "        pass\n"),
        ("        if not _is_inside(name):\n", "        if False:\n"),
        ("    if length > _LARGEST_HEADER_BYTES:\n", "    if False:\n"),
    )
    + of(
        f"{SCIENCE}/model/known_settings.py",
        (
            "        if setting is None:\n            raise unknown(str(key), value, place)\n",
            "        if setting is None:\n            continue\n",
        ),
        ('    if setting.treatment == "refused" and not empty:\n', "    if False:\n"),
    )
    + of(
        f"{SCIENCE}/model/pooling.py",
        ("self.stages(pooled)[:, : self.truncate_dim]", "self.stages(pooled)"),
        ("if not name.startswith(_LIBRARY) or kind not in STAGES:", "if kind not in STAGES:"),
        ('return "lasttoken" if writes and config.get("is_causal", True) else "mean"', 'return "mean"'),
    )
    + of(
        f"{SCIENCE}/model/tokens.py",
        ("        if largest >= config.vocab_size:\n", "        if False:\n"),
        ("            _lower_case(self._tokenizer)\n", "            pass\n"),
        ("[normalizers.Lowercase(), *(each", "[*(each"),
    )
    + of(f"{SCIENCE}/model/loading.py", ("    if layers > _MOST_LAYERS:\n", "    if False:\n")),
)

SUBJECTS = (
    GATE, NUMBERS, ERRORS, GROUPS, CACHE, LOCKS, STORAGE, MENDING, DAMAGED_NIGHTS, RESUMED, EXCHANGE, REJECTED, ESCAPES, BELOW, LOADED, ENDS,
    BOMBS, DEVICES, TOGETHER, ACTORS, MODELS,
)  # fmt: skip
