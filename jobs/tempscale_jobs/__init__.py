"""What runs on Ray. A folder is a subject, and each imports only from the folders below it in this list.

    cli/          the command line. app, runs (commands that run), records (commands over finished runs), options, submit
    submit/       a command as a Ray job: command (what is sent), packing (which files), watch, head
    tune/         `tempscale tune`: by scores, by collapse, corrections, layers (by gradient); export (checkpoints)
    audit/        `tempscale audit`. model: one model, a stage a step; words: sentences; verdict: the answer; plan: --plan;
                  traffic: what its steps read and write
    correct/      `tempscale correct`, a fitted correction for a table of embeddings: units (what one task reads and writes)
    pairs/        `tempscale pairs`, SOCM of explicit pairs of texts: chunks, socm
    diagnose/     `tempscale diagnose`, why embeddings collapse: looks, two_texts, repeated, versions, findings
    evaluate/     `tempscale evaluate`, its scores: tasks, own_tasks, windows, documents, cells, scored, analyses, audits
    nights/       nightly audits. night (the end of one), gate (thresholds and drift), record, compare, notify
    collapse/     the O(n²) steps: blocks, cosine, calibration, neighbours, exposure, by_length, sample (of SOCM),
                  socm, worst (pairs of the corpus)
    embedding/    the O(n) steps: embed, lookup (in the cache), cache, budget, precision, factors (covariance), probe
                  (prefixes), layout (texts in canonical order)
    corpus/       sources (kinds), folders (which files), states (of files), readers (file formats), lakes (tables), hub (its
                  data sets), units (of a source), rows (usable ones), reading (of one unit), distinct (repeated ids,
                  samples), stream, shards (texts), vectors (embeddings), preview, peek (the first rows, before Ray starts)
    lifecycle.py  a run from its lock to run.json, for all six commands
    report/       what all reports share: text (figures in words), charts (colours, lines), page and its templates, screen,
                  shell (commands to copy)
    workers/      Ray: engine (the session), actor, crew, marks (deadly texts), nodes, raylet, slow
    runs/         the run folder: folder, places (where it may be), storage, lock, journal (progress), observing (status),
                  memory, provenance
    config/       each setting with its option and help: sections (shared by commands), and a file a command
    tables/       the Arrow schema of every table, a file a command
    errors, outlets, urls  errors that a user reads; standard output and error; addresses without their secrets

In the folder of a command the same names mean the same thing: run (the command, top to bottom), its steps, summary (parts to
tables), charts, words (tables to sentences), report (the page). Steps hand on durable parts, not objects in memory:
corpus -> shards/ -> texts/ -> factors/ -> partials/ -> tables/ -> report.html.

The steps compute with `tempscale/`, the science, which knows no Ray and no tables: temperature/ (schedule, families of
models, attach, fold, verify), model/ (from a checkpoint to embeddings), collapse/ (cosine: a tile; aggregates: its histogram
and sums; neighbours, exposure, length), second_order/ (moments, socm), layers/, choosing/, stats/ (errors, samples, enough);
optional (libraries that may be missing).
"""
