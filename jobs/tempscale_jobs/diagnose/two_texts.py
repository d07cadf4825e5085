"""Two texts, token by token (S2 Fig 1, bottom): the user's pair, or the most collapsed of the most similar pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tempscale_jobs.corpus import shards
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.diagnose.looks import Read
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.tables.diagnose import KINDS, PAIR_PART, PAIR_PARTS
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece

CANDIDATES = 100
"""Pairs of highest cosine whose SOCM is computed to find the most collapsed one."""


def check_named(run: Run, pair: tuple[str, str] | None, index: Index) -> None:
    """Raise if a text of the user's pair is not among the texts that were read."""
    if pair is not None:
        present = {i for ids in shards.places_of(run.storage, index, set(pair)).values() for i in ids}
        absent = [i for i in pair if i not in present]
        if absent:
            raise UsageError(
                f"there is no text '{absent[0]}' among the {index.analysed:,} that were read; name two ids with --pair"
                + (", or read all texts with a larger --sample" if index.analysed < index.usable else "")
            )


def look(read: Read, crew: Crew, model: Model) -> tuple[str, str] | None:
    """Write the tokens of one pair in the plane, under every temperature; return the pair's ids, or None without a pair."""
    run, named = read.run, read.config.diagnosis.pair
    parts = [run.part(PAIR_PARTS, model, t, 0) for t in run.temperatures]
    if not all(map(run.storage.exists, parts)):
        pairs = _candidates(run, model) if named is None else [named]
        if not pairs:
            return None
        texts = shards.texts_of(run.storage, read.index, {i for pair in pairs for i in pair})
        rows = [{"a": a, "b": b, "text_a": texts[a], "text_b": texts[b]} for a, b in pairs]
        # Pairs of equal texts are used only if all pairs are equal.
        rows = [row for row in rows if row["text_a"] != row["text_b"]] or rows
        keep = pa.array([read.config.keep_text] * len(rows))
        for _ in crew.run(write_pair, [Piece(0, (0, pa.Table.from_pylist(rows).append_column("keep", keep)), "pair")]):
            pass
    token_rows = run.storage.read_table(parts[0], ["text_id", "side"]).to_pylist()
    return tuple(next(row["text_id"] for row in token_rows if row["side"] == side) for side in "ab")


def _candidates(run: Run, model: Model) -> list[tuple[str, str]]:
    """The pairs of highest cosine under the first temperature."""
    names = run.storage.list(run.place(KINDS[2], model, run.temperatures[0]))
    seen = pa.concat_tables([run.storage.read_table(name, ["text_id", "embedding"]) for name in names])
    if seen.num_rows < 2:
        return []
    ids, vectors = seen.column("text_id").to_pylist(), np.stack(seen.column("embedding").to_numpy()).astype(np.float64)
    cosine = vectors @ vectors.T
    rows, columns = np.triu_indices(len(ids), 1)
    best = np.lexsort((columns, rows, -cosine[rows, columns]))[:CANDIDATES]
    return [tuple(sorted((ids[rows[k]], ids[columns[k]]))) for k in best]


def write_pair(worker: actor.ModelActor, number: int, work: pa.Table) -> None:
    """Choose the pair of largest SOCM under the first temperature; write its tokens' coordinates, a part a temperature."""
    import torch

    from tempscale.second_order.socm import socm, socm_pairs

    texts = {row[side]: row[f"text_{side}"] for row in work.to_pylist() for side in "ab"}
    ids = list(texts)
    worker.note_processor()
    tokens = worker.encoder.tokenizer([texts[i] for i in ids], isolate=True)
    worker.encoder.set_temperature(worker.temperatures[0])
    out = worker.encode(tokens, moments=False, factors=True, role=actor.ROLE)
    assert out.factors is not None
    for k, reason in sorted(out.failed.items()):
        raise UsageError(f"model {worker.model.label} cannot embed text '{ids[k]}' ({reason}); name other texts with --pair")
    keep = work.column("keep")[0].as_py()
    place = {text_id: k for k, text_id in enumerate(ids)}
    first, second = ([place[i] for i in work.column(side).to_pylist()] for side in "ab")
    value = socm_pairs(torch.stack([mean for mean, _ in out.factors]), [f for _, f in out.factors], first, second).socm
    worst = int(value.nan_to_num(-1).argmax())
    pair = [first[worst], second[worst]]
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        clouds = []
        for k in pair:
            cloud = worker.encoder.token_embeddings(tokens.ids[k], role=actor.ROLE).double()
            clouds.append(cloud / cloud.mean(0).norm())
        figures = socm(clouds[0], clouds[1])
        rows = []
        for side, k, placed in zip("ab", pair, plane(*clouds), strict=True):
            words = worker.encoder.tokenizer.words(tokens.ids[k]) if keep else ["·"] * len(tokens.ids[k])
            named = [*zip(range(len(words)), words, strict=True), (None, None)]
            rows += [
                {"side": side, "text_id": ids[k], "place": at, "token": word, "x": float(x), "y": float(y)}
                for (at, word), (x, y) in zip(named, placed, strict=True)
            ]
        columns = {"d_mu": float(figures.d_mu), "d_sigma": float(figures.d_sigma), "socm": float(figures.socm)}
        name = worker.part(PAIR_PARTS, temperature, number)
        worker.storage.write_table(name, PAIR_PART.build_rows([row | columns for row in rows]))


def plane(first: Any, second: Any) -> list[np.ndarray]:
    """Coordinates (tokens + 1, 2) of both texts' tokens, each mean last, on two axes of a joint PCA that is not centred."""
    import torch

    together = torch.cat([first, second])
    axes = torch.linalg.svd(together, full_matrices=False).Vh[:2]
    coordinates = together @ axes.T
    largest = coordinates.abs().argmax(0)
    axes = axes * torch.sign(coordinates[largest, torch.arange(len(axes))])[:, None]
    return [(torch.cat([cloud, cloud.mean(0, keepdim=True)]) @ axes.T).numpy() for cloud in (first, second)]
