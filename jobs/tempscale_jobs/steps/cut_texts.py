"""Texts cut into chunks and embedded as texts of their own: for each `chunk:N` of --what-if, a corpus in partials/chunks/.

A chunk has the id of its text, «#» and its number. Its document is that of its text, or else the text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from tempscale.correction.variant_names import Chunks, chunks_of
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.corpus.shards import Text, TextShards
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import BEGUN, SHARDED, Run, numbered_in
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import embed, late
from tempscale_jobs.steps.layout import Order, layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import BESIDE_ACTORS, Piece, advance_by_finished, missing, results, run_tasks

if TYPE_CHECKING:
    from semantic_text_splitter import TextSplitter

PLACE = "partials/chunks"
"""The folder of the chunks of all variants."""


def embed_chunks(scope: Embedded) -> None:
    """Cut and embed the texts for every variant that asks for chunks, under the first temperature."""
    for what in scope.analysis.what_if:
        if (chunks := chunks_of(what)) is not None:
            run = _run_of(scope, what)
            index = _cut(scope, run, what, chunks)
            of_chunks = replace(scope, run=run, index=index)
            if chunks.late:  # A cache knows texts by their content alone.
                execution = scope.config.execution.model_copy(update={"cache": None})
                of_chunks = replace(of_chunks, config=scope.config.model_copy(update={"execution": execution}))
            embed.embed(of_chunks, scope.named(f"embed {what}"))


def embedded(scope: Embedded, what: str) -> Embedded:
    """The chunks of one variant, once they are embedded."""
    run = _run_of(scope, what)
    index = Index.read_from(run.storage)
    order = Order(scope.texts.edges, scope.texts.seed, index.usable, tuple(scope.config.by))
    return replace(scope, run=run, index=index, texts=layout(run, scope.cluster, scope.model, order))


def owner(chunk_id: str) -> str:
    """The id of the text that a chunk is from."""
    return chunk_id.rpartition("#")[0]


def forget(scope: Embedded, what: str) -> None:
    """Remove the chunks and their embeddings; rejected ones stay recorded."""
    for name in ("texts", "shards", "partials", BEGUN):
        _run_of(scope, what).storage.remove(name)


def _run_of(scope: Embedded, what: str) -> Run:
    below = scope.run.below(scope.run.place(f"{PLACE}/{what.replace(':', '-')}", scope.model))
    return replace(below, temperatures=scope.run.temperatures[:1])


class _Cutting(NamedTuple):
    """How the shards of a corpus are cut."""

    source: Storage
    target: Storage
    contents: TextShards
    tokenising: actor.Tokenising
    chunks: Chunks


def _cut(scope: Embedded, run: Run, what: str, chunks: Chunks) -> Index:
    """Write the chunks of every shard as a shard, and an index of them; finished shards are not cut again."""
    if run.storage.exists(SHARDED):
        return Index.read_from(run.storage)
    model, shards = scope.model, scope.index.shards
    with scope.journal.stage(scope.named(f"cut into {what}"), scope.index.analysed, "texts") as stage:
        run.storage.write_json(BEGUN, scope.run.storage.read_object(BEGUN))  # As every folder with tiles has it.
        tokenising = actor.Tokenising(
            model.name, model.max_length, scope.encoding.long, model.document_prompt, model.settings
        )
        contents = TextShards(scope.source, scope.encoding, scope.config.out, scope.config.by)
        how = _Cutting(scope.run.storage, run.storage, contents, tokenising, chunks)
        every = [
            Piece(number, (how, shard.name, name), f"shard {number}", (name,), shard.texts)
            for number, shard in enumerate(shards)
            for name in [numbered_in("shards", number, 0)]
        ]
        left = missing(run.storage, every)
        advance_by_finished(stage, every, left)
        for piece, _ in run_tasks(scope.cluster, _cut_shard, iter(left), how=BESIDE_ACTORS):
            stage.advance(piece.size)
        written = results(scope.cluster, _counted, [(run.storage, piece.files[0]) for piece in every], "chunks")
        texts = sum(shard.texts for shard in written)
        stage.note = f"{count(texts, 'chunk')} of {count(scope.index.analysed, 'text')}"
    usable = round(texts * scope.index.usable / scope.index.analysed)
    index = replace(
        scope.index, shards=tuple(written), read=texts, usable=usable, analysed=texts, rejected=0, rejected_reasons={}
    )  # fmt: skip
    return index.kept(run.storage)


def _cut_shard(how: _Cutting, name: str, target: str) -> None:
    """Write the chunks of one shard's texts."""
    tokenizer, chunks, windows = actor.tokenizer(how.tokenising), list[Text](), list[tuple[str | None, int]]()
    splitter = tokenizer.splitter(how.chunks.tokens, how.chunks.overlap)
    for text in how.contents.items_of(how.source.read_table(name)):
        document = own_document(text.text_id) if text.document is None else text.document
        cut = _chunks(splitter, text.text)
        chunks += [
            Text(f"{text.text_id}#{k}", chunk, text.cut and k == len(cut) - 1, document, text.groups)
            for k, (_, chunk) in enumerate(cut)
        ]
        windows += late.windows(tokenizer, text.text, cut) if how.chunks.late else []
    shard = how.contents.table(chunks)
    how.target.write_table(target, late.with_windows(shard, windows) if how.chunks.late else shard)


def _chunks(splitter: TextSplitter, text: str) -> list[tuple[int, str]]:
    """The chunks of a text, each with its first character.

    It is the text itself where the tokenizer fails on it, so that the model rejects it with a reason.
    """
    try:
        return splitter.chunk_indices(text) or [(0, text)]
    except BaseException as error:  # A panic in the library's compiled code is not an Exception.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return [(0, text)]


def _counted(storage: Storage, name: str) -> Shard:
    """A shard with its texts and characters."""
    text = storage.read_table(name, ["text"]).column("text")
    return Shard(name, len(text), pc.sum(pc.utf8_length(text)).as_py())
