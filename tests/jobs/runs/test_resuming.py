"""A resumed run does nothing twice: what each step left stays as it is, whatever is missing, and the bytes are the same."""

import json
import random
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from left_behind import WAYS, Interrupt, damage, files_of, halve, is_end, writes
from score_tasks import settings as scored
from whole_run import as_lines, audited, corrected, diagnosed, documented, evaluated, paired, tuned

from tempscale.correction.fit import fit

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]


def resumed(command, data, out, unfinished):
    """Go on with a run; the files that were there and were written again, but for those of steps that had not ended."""
    before = writes(out)
    command(data)
    after = writes(out)
    return sorted(
        name for name, when in before.items() if after.get(name, when) != when and not (at_the_end(name) or unfinished(name))
    )


def at_the_end(name):
    """Whether the last step of every call writes a file."""
    return name.startswith(
        ("report.html", "tables/", "partials/probe/", "mteb/", "measured/history/", "measured/tables/gate")
    )


_OF_THE_CALL = ("begun.json", "run.json", "report.html", "inventory.json", "result.json", "gate.parquet")
"""Files that tell the run and its time, or how long a task was scored."""
_BESIDE = re.compile(r"^mteb/|history/|partials/cache/")
"""Files whose names or contents tell the same, or in which session texts were embedded."""


def same(out, expected):
    """The names of the files that differ from those of a run that nobody stopped."""
    found, wanted = files_of(out), files_of(expected)
    names = {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}
    return sorted(name for name in names if not _BESIDE.search(name) and not name.endswith(_OF_THE_CALL))


@pytest.mark.parametrize("way", ["groups", pytest.param("sample", marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", [None, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_an_audit_goes_on_without_doing_a_piece_twice(finished_audit, stopped_audit, settings_of, tmp_path, way, seed):
    """As Ctrl-C left it, then also without the ends of all steps and half of their pieces, in another order."""
    out = tmp_path / "run"
    shutil.copytree(stopped_audit(way), out)
    if seed is not None:
        assert len(halve(out, seed)) > 20
    assert resumed(audited, settings_of(out, way, shuffle_seed=seed), out, is_end if seed else at_the_end) == []
    assert same(out, finished_audit(way)) == []


# --- the other commands -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, small_model):
    """The settings of each other command but its folder, and where Ctrl-C stops it."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = documented("pyarrow")
    (folder / "texts.jsonl").write_text(as_lines(texts[:90]))
    rows = [{"text_a": one["text"], "text_b": other["text"]} for one, other in zip(texts[:40], texts[40:80], strict=True)]
    (folder / "pairs.jsonl").write_text(as_lines(rows))
    scores = [{"sentence1": row["text_a"], "sentence2": row["text_b"], "score": k % 5} for k, row in enumerate(rows)]
    (folder / "sts.jsonl").write_text(as_lines(scores))
    vectors = np.random.default_rng(0).standard_normal((700, 12)).astype(np.float32)
    pq.write_table(pa.table({"id": range(700), "embedding": list(vectors)}), folder / "vectors.parquet", row_group_size=100)
    unit = torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    (folder / "centre.json").write_text(json.dumps(fit("centre", unit, None, unit, None).as_data()))
    own, corpus = {"embedding": {"models": [small_model], "max_length": 96}}, {"source": str(folder / "texts.jsonl")}
    embeddings = {"source": str(folder / "vectors.parquet"), "unit_rows": 100}
    task = {"name": "alike", "type": "sts", "source": str(folder / "sts.jsonl")}
    return {
        "pairs": (paired, Interrupt("tables"), own | {"pairs": {"source": str(folder / "pairs.jsonl"), "chunk_pairs": 5}}),
        "diagnose": (
            diagnosed, Interrupt("tables"),
            own | {"corpus": corpus, "diagnosis": {"texts": 12, "repeated_pairs": 4, "piece_texts": 3}},
        ),
        "evaluate": (evaluated, Interrupt("tables"), scored("", small_model, [task])),
        "tune": (
            tuned, Interrupt("choose"),
            own | {"corpus": corpus, "choosing": {"probe_sample": 30, "layer_texts": 8, "layer_steps": 1}},
        ),
        "correct": (
            corrected, Interrupt("centre", after=4), {"embeddings": embeddings, "correction": str(folder / "centre.json")}
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["correct", *(pytest.param(own, marks=pytest.mark.soak) for own in ("evaluate", "pairs", "diagnose", "tune"))]
)
def test_a_command_goes_on_without_doing_a_piece_twice(inputs, tmp_path, name):
    command, stop, data = inputs[name]
    data = data | {"execution": {"workers": 1}}
    command(data | {"out": str(tmp_path / "whole")})
    with pytest.raises(KeyboardInterrupt):
        command(data | {"out": str(tmp_path / "stopped")}, observers=[stop])
    shutil.copytree(tmp_path / "stopped", tmp_path / "halves")
    assert resumed(command, data | {"out": str(tmp_path / "stopped")}, tmp_path / "stopped", at_the_end) == []
    assert same(tmp_path / "stopped", tmp_path / "whole") == []
    halve(tmp_path / "halves", 0)
    assert resumed(command, data | {"out": str(tmp_path / "halves")}, tmp_path / "halves", is_end) == []
    assert same(tmp_path / "halves", tmp_path / "whole") == []
    # And the finished one, of which every fourth file is damaged.
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    names = sorted(file for file in files_of(tmp_path / "damaged") if not file.endswith(("begun.json", "inventory.json")))
    generator = random.Random(name)
    for file in names[::4]:
        damage(tmp_path / "damaged" / file, generator.choice(WAYS), b"another")
    command(data | {"out": str(tmp_path / "damaged")})
    assert same(tmp_path / "damaged", tmp_path / "whole") == []
    assert (tmp_path / "damaged" / "run.json").read_bytes() == (tmp_path / "whole" / "run.json").read_bytes()


@pytest.mark.parametrize(
    ("way", "seed"),
    [pytest.param(way, k, marks=pytest.mark.soak) for way in ("groups", "sample") for k in range(4)],
)
def test_an_unfinished_run_makes_again_what_it_misses_and_what_is_damaged(
    finished_audit, stopped_audit, settings_of, tmp_path, way, seed
):
    """Every fifth file is missing, and five others are damaged, each in a way drawn from all."""
    out, generator = tmp_path / "run", random.Random(seed)
    shutil.copytree(stopped_audit(way), out)
    # Which processor embedded a part that is there already, nobody knows once its note is gone.
    kept = ("begun.json", "inventory", "partials/processors/")
    names = sorted(name for name in files_of(out) if not any(own in name for own in kept))
    generator.shuffle(names)
    for name in names[::5]:
        (out / name).unlink()
    for name in [name for name in names if (out / name).exists()][:5]:
        damage(out / name, generator.choice(("empty", "cut", "flipped")))
    audited(settings_of(out, way))
    assert same(out, finished_audit(way)) == []
