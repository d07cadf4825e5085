"""A small report of every command, from tables by hand, and a report as lines of text."""

import polars as pl
import pyarrow as pa
from pages import EDGES, RUN, nights, tables_of

from tempscale_jobs.audit import report as audit
from tempscale_jobs.diagnose import report as diagnose
from tempscale_jobs.evaluate import report as evaluate
from tempscale_jobs.nights import page as history
from tempscale_jobs.pairs import report as pairs
from tempscale_jobs.tables import audit as audited
from tempscale_jobs.tables import diagnose as diagnosed
from tempscale_jobs.tables import evaluate as evaluated
from tempscale_jobs.tables import pairs as measured
from tempscale_jobs.tables import tune as tuned
from tempscale_jobs.tables import verify as verified
from tempscale_jobs.tables.nights import GATE, HISTORY
from tempscale_jobs.tune import report as tune
from tempscale_jobs.verify import report as verify

TAUS = ("1.0", "0.8")
MADE = {
    "finished": "2026-01-02T03:04:05+00:00", "models": {"MiniLM": {"fingerprint": "f1", "max_length": 256}},
    "corpus": {"source": "texts.jsonl", "read": 90, "rejected": 2, "analysed": 88, "fingerprint": "c1"},
}  # fmt: skip


def filled(table, *rows):
    """Rows of a table: what they do not give is a plain value, another in each row and column."""

    def plain(column, row, place):
        if pa.types.is_floating(column.type):
            return 0.1 + 0.01 * (7 * row + place)
        return 40 + row if pa.types.is_integer(column.type) else False if pa.types.is_boolean(column.type) else column.name

    made = []
    for row, known in enumerate(rows):
        known = {"model": "MiniLM", "temperature": "1.0", "schema_version": 1} | known
        known |= {"tau": float(known["temperature"])}
        made.append({c.name: known.get(c.name, plain(c, row, place)) for place, c in enumerate(table.columns)})
    return {table.name: pl.DataFrame(pl.from_arrow(table.build_rows(made)))}


def each(*rows):
    """The rows under each temperature."""
    return [row | {"temperature": tau} for tau in TAUS for row in rows]


def audit_report():
    """Of a night that failed, with queries."""
    tables = tables_of(exposed=(0.62, 1.05, 1.33), asked_by=("corpus", "queries"), queries=1409)
    gate = {"verdict": "failed", "failed": ["cosine_mean rose", "so did that"], "not_compared": [], "checks": 2}
    counts = {"asked_by": "queries", "k": 10, "askers": 1409}
    named = [
        counts | {"rank": 1, "text_id": "header", "kinds": "hub, tiny", "times": 700, "tokens": 5, "near_duplicates": 0}
        | {"goes": True, "excerpt": "All rights reserved"},
        counts | {"rank": 2, "text_id": "again", "kinds": "copy", "times": 55, "tokens": 120, "near_duplicates": 3}
        | {"goes": False, "excerpt": None},
    ]  # fmt: skip
    removal = [
        counts | {"interval": edge, "texts": 40 if edge is not None else 120, "never": 12, "never_share": 0.1}
        | {"removed": int(edge in (None, 0)), "askers_changed": 700 if edge is None else None}
        | {"times_before": 115.0, "times_after": 118.0 + (edge or 0) / 100}
        for edge in (None, *EDGES)
    ]  # fmt: skip
    tables |= filled(audited.NAMED_TEXTS, *named) | filled(audited.REMOVAL, *removal)
    run = RUN | {"gate": gate, "trend": nights(3), "queries": {"read": 1409, "rejected": 0}, "models": MADE["models"]}
    run["config"] = RUN["config"] | {"gate": {"false_alarms": 0.01}}
    return audit.report_of(tables | filled(GATE, {"figure": "cosine_mean", "verdict": "failed"}), run)


def diagnose_report():
    inside = [{"interval": edge, "texts": 40} for edge in EDGES[:2]]
    layers = [{"layer": layer, "interval": None, "texts": 40} for layer in (-1, 0, 1)]
    findings = each(
        {"finding": "length", "layers": "last", "texts": 40}, {"finding": "length", "layers": "all", "texts": 40}
    )
    findings.append({"temperature": "0.8", "finding": "temperature", "layers": "last", "texts": 40, "change_se": 0.01})
    pair = [{"side": side, "text_id": side, "token": token} for side in "ab" for token in ("word", None)]
    tables = (
        filled(diagnosed.HEADS, *each({"thm2_ratio": 1.5}, {"thm2_ratio": 0.5}))
        | filled(diagnosed.SPECTRUM, *each(*inside))
        | filled(diagnosed.LAYER_SUMMARY, *each(*layers))
        | filled(diagnosed.FINDINGS, *findings)
        | filled(diagnosed.EQUAL_NORMS, *each({}))
        | filled(diagnosed.REPEATED, *each({"tokens": 8}, {"tokens": 16}))
        | filled(diagnosed.MAP, *each({"text_id": "one", "interval": 0}, {"text_id": "two", "interval": 100}))
        | filled(diagnosed.TWO_TEXTS, *each(*pair))
    )
    return diagnose.report_of(tables, MADE | {"config": {"out": "runs/diagnose", "diagnosis": {"intervals": list(EDGES)}}})


def evaluate_report():
    found = {"task": "found", "split": "test", "subset": "default"}
    lost = {"task": "lost", "temperature": "0.8", "score": None, "problem": "it was lost"}
    ends = [{"figure": figure, "end": end} for figure in ("ndcg_at_100", "rank") for end in ("shortest", "longest")]
    sides = [{"case": case, "query_tau": 0.8, "document_tau": 0.8} for case in ("neither", "both", "query only")]
    tables = (
        filled(evaluated.EVALUATION, *each(found | {"problem": None}), found | lost)
        | filled(evaluated.TYPES, *each({"over": "tasks", "type": None}, {"over": "type", "type": "STS"}))
        | filled(evaluated.LENGTHS, *each(*(found | {"interval": edge, "best": edge == 0} for edge in EDGES)))
        | filled(evaluated.ENDS, *each(*(found | end for end in ends)))
        | filled(evaluated.ROLES, *(found | side for side in sides))
        | filled(evaluated.MODELS, *each({}))
        | filled(evaluated.CORRELATIONS, {"measure": "socm_mean", "task": None})
    )
    run = MADE | {
        "tasks": ["found", "lost"],
        "missing": 1,
        "config": {"out": "runs/evaluate", "analysis": {"intervals": list(EDGES)}},
    }
    return evaluate.report_of(tables, run)


def pairs_report():
    summary = each({"reference": None})
    summary[1]["reference"] = "1.0"
    tables = filled(measured.PAIRS_SUMMARY, *summary) | filled(measured.PAIRS, *each({"pair": 0}, {"pair": 1}))
    return pairs.report_of(tables, {name: MADE[name] for name in ("finished", "models")})


def verify_report():
    """Two causes, all from one day."""
    summary = [
        {"by": by, "group": group, "cause": cause, "sampled": sampled, "wrong": wrong, "share": wrong / sampled}
        for by, group, sampled, causes in (
            (None, None, 40, {"any": 3, "embedded with the prompt 'query: '": 2, "not explained": 1}),
            ("day", "2026-11-23", 30, {"any": 0}), ("day", "2026-11-24", 10, {"any": 3}),
        )
        for cause, wrong in causes.items()
    ]  # fmt: skip
    rows = [
        {
            "text_id": f"d{k}",
            "tokens": 40,
            "cosine": 0.5,
            "wrong": k < 3,
            "cause": "embedded with the prompt 'query: '" if k < 2 else None,
        }
        for k in range(5)
    ]
    tables = filled(verified.VERIFY_SUMMARY, *summary) | filled(verified.VERIFIED, *rows)
    facts = {"format": "float32", "dimensions": 384, "norms": "unit", "computed": "float32", "relative_distance": 1e-6}
    embeddings = {"rejected": 1, "source": "index.parquet", "read": 41}
    return verify.report_of(tables, MADE | {"verified": facts | {"max_wrong": 0.0}, "embeddings": embeddings})


CHOSEN = {"chosen": "0.8", "changed": True, "reason": "it is best", "foldable": True, "candidates": 2, "correction": None}


def tune_report():
    """By collapse, with a candidate that is chosen."""
    candidates = [{"correction": None, "eligible": True, "chosen": tau == "0.8", "temperature": tau} for tau in TAUS]
    tables = filled(tuned.COLLAPSE, *(row | {"rise_interval": 100} for row in candidates))
    tables |= filled(tuned.INTERVALS, *each({"interval": 0}, {"interval": 100}))
    choosing = {"intervals": list(EDGES), "keep_neighbours": 0.8, "neighbours": 10}
    config = {"out": "runs/tune", "choosing": choosing, "embedding": {"models": ["m"]}}
    return tune.report_of(
        tables, MADE | {"choice": CHOSEN | {"by": "collapse", "texts": 88, "probed": 31}, "config": config}
    )


def tune_report_by_scores():
    candidates = [{"correction": None, "eligible": True, "chosen": tau == "0.8", "temperature": tau} for tau in TAUS]
    choice = CHOSEN | {"by": "scores", "tasks": ["found"], "left_out": [], "without_correction": {}}
    config = {"out": "runs/tune", "choosing": {"intervals": list(EDGES)}, "embedding": {"models": ["m"]}}
    return tune.report_of(filled(tuned.SCORES, *candidates), MADE | {"choice": choice, "config": config})


def history_report():
    """Three nights, of which the last failed on another model."""
    rows = [
        {"night": f"2026-11-0{day}", "run": f"r{day}", "name": "", "model_fingerprint": "ab"[day == 3]}
        | {"gate": "failed" if day == 3 else "passed", "gate_reason": "the cosine rose" * (day == 3), "gate_note": ""}
        | {"model": "MiniLM" if day < 3 else "other"}
        for day in (1, 2, 3)
    ]
    return history.report_of(filled(HISTORY, *rows)[HISTORY.name].with_columns(accepted=False))


REPORTS = {
    "audit": audit_report, "diagnose": diagnose_report, "evaluate": evaluate_report, "pairs": pairs_report,
    "tune": tune_report, "tune-scores": tune_report_by_scores, "history": history_report, "verify": verify_report,
}  # fmt: skip


def texts_of_section(section):
    """All texts of a section, in their order."""
    yield section.title
    yield from filter(None, [*section.sentences, section.note])
    for table in filter(None, [section.table, section.drawing and section.drawing.table]):
        for row in filter(any, [table.heads, *table.rows]):
            yield " | ".join(row)
    for part in section.parts:
        yield from texts_of_section(part)


def texts_of(report):
    """All texts of a report, in their order."""
    yield from (report.title, report.where, *report.terms, *report.alerts)
    for part in report.parts:
        yield from filter(None, (part.name, part.answer))
        for figure in part.figures:
            yield " | ".join(filter(None, (figure.name, figure.value, figure.error, figure.says, *figure.changes)))
        for step in part.to_do:
            yield from filter(None, step)
    yield from (*report.notes, *report.further_terms)
    sections = [*report.before, *(section for part in report.parts for section in part.sections), *report.after]
    for section in sections:
        yield from texts_of_section(section)


def section_of(report, title):
    """The section whose title begins so."""
    return next(section for section in report.walk() if section.title.startswith(title))
