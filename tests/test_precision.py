"""How far bfloat16 moves embeddings: what was measured is measured once."""

from jobs import precision
from jobs.runs import Model, RunOf
from jobs.storage import Storage


def test_what_was_measured_is_not_measured_again(tmp_path):
    run, model = RunOf(None, Storage(str(tmp_path)), [], [], False), Model("tiny", "tiny", "", 64)
    told = {"precision": "bfloat16", "texts": 3, "cosine_least": 0.9991, "cosine_mean": 0.9996}
    run.storage.write_json("partials/precision/model=tiny.json", told)
    assert precision.measure(run, None, model, None, {}, None) == told  # No worker is asked.
