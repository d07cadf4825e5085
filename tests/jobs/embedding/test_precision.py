"""How far bfloat16 moves embeddings: what was measured is measured once."""

from tempscale_jobs.embedding import precision
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage


def test_what_was_measured_is_not_measured_again(tmp_path):
    run, model = Run(Storage(str(tmp_path)), [], [], "2026-11-22"), Model("tiny", "tiny", "", 64)
    told = {"precision": "bfloat16", "texts": 3, "cosine_least": 0.9991, "cosine_mean": 0.9996}
    run.storage.write_json("partials/precision/model=tiny.json", told)
    assert precision.cosine_to_float32(run, None, model, "bfloat16", None, None, None) == told  # No worker is asked.
