"""Audits that the tests of run folders share: finished ones, and such that were stopped before their last step."""

import json

import pytest
from left_behind import Interrupt
from whole_run import as_lines, audited, documented

WAYS = {
    "groups": {
        "corpus": {"unit_rows": 40, "unit_bytes": 20_000}, "analysis": {"socm_groups": 12}, "embedding": {"shard_texts": 30}
    },
    "sample": {
        "analysis": {"socm_sample": 24, "socm_top_over": "corpus", "worst_pairs": 5}, "embedding": {"shard_texts": 20}
    },
}  # fmt: skip
"""Groups of texts, read in units; and all pairs of a sample, with the worst pairs of the corpus, read at once."""
STOPS = {"groups": Interrupt("worst pairs, τ 0.8"), "sample": Interrupt("most collapsed pairs", after=4)}


@pytest.fixture(scope="session")
def settings_of(once, small_model):
    """A function of a folder and of one of these ways."""

    def write(folder):
        texts = [text | {"kind": "ab"[k % 2]} for k, text in enumerate(documented("pyarrow"))]
        (folder / "texts.jsonl").write_text(as_lines(texts[:90]))
        (folder / "asked.jsonl").write_text(as_lines(texts[90:120]))

    sources = once("audited-corpus", write)

    def settings_of(out, way, **execution):
        data = {
            "out": str(out), "corpus": {"source": str(sources / "texts.jsonl")}, "execution": {"workers": 1} | execution,
            "queries": {"source": str(sources / "asked.jsonl")}, "by": ["kind"], "embedding": {"models": [small_model]},
            "analysis": {"probe_sample": 20, "intervals": [0, 32, 64], "what_if": ["int8", "chunk:32"]},
            "gate": {"thresholds": ["cosine_mean <= 1"]},
        }  # fmt: skip
        return data | {name: data[name] | more for name, more in WAYS[way].items()}

    return settings_of


@pytest.fixture(scope="session")
def finished_audit(once, settings_of):
    """A function of a way: the folder of a finished audit."""

    def of(way):
        def make(folder):
            audited(settings_of(folder / "run", way))

        return once(f"audit-{way}", make, ray=True) / "run"

    return of


@pytest.fixture(scope="session")
def stopped_audit(once, settings_of):
    """A function of a way: the folder of the same audit, which Ctrl-C stopped in one of its last steps."""

    def of(way):
        def make(folder):
            with pytest.raises(KeyboardInterrupt):
                audited(settings_of(folder / "run", way), observers=[STOPS[way]])
            assert json.loads((folder / "run" / "begun.json").read_text())

        return once(f"stopped-audit-{way}", make, ray=True) / "run"

    return of


@pytest.fixture(scope="module")
def bucket():
    """The URL of a bucket that this process and its children reach."""
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)  # The servers of a process have the same buckets.
        yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
