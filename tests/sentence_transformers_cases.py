"""Model folders whose settings sentence-transformers obeys, as it or its older versions leave them on a disk.

Each case edits the folder of one small model. `tests/tempscale/model/test_known_settings.py` compares our vectors with those
of the installed library, and this file, run as a program, with those of another version, which it installs for itself:

    python tests/sentence_transformers_cases.py 5.6.1
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Final sigma, dotted I, sharp s and a special token in capitals tell a normaliser from str.lower.
TEXTS = [
    "a", "The quick BROWN fox", "0 1 2 3 4 5 6 7 8 9", "mean pooling hides what differs", "a b c d e f g h i j k l m n o p",
    "ΟΔΟΣ and İstanbul, STRASSE straße", "a [SEP] in the middle", "x" * 50, "a b " * 28, "two  spaces\tand a tab",
]  # fmt: skip


def change(folder: Path, name: str, **values: object) -> None:
    """Set keys of a JSON file of a folder; a key whose value is `...` is removed."""
    file = folder / name
    found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    found |= values
    file.write_text(json.dumps({key: value for key, value in found.items() if value is not ...}), "utf-8")


def stage(**values: object):
    """An edit of sentence_bert_config.json."""
    return lambda folder: change(folder, "sentence_bert_config.json", **values)


def whole(**values: object):
    """An edit of config_sentence_transformers.json."""
    return lambda folder: change(folder, "config_sentence_transformers.json", **values)


def tokenizer(**values: object):
    """An edit of tokenizer_config.json."""
    return lambda folder: change(folder, "tokenizer_config.json", **values)


def pooling(**values: object):
    """A new config.json of the pooling stage."""

    def edit(folder: Path) -> None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32} | values), "utf-8")

    return edit


def legacy(name: str, **values: object):
    """The settings of the transformer's stage in the file that an older version wrote."""

    def edit(folder: Path) -> None:
        (folder / "sentence_bert_config.json").unlink()
        change(folder, f"sentence_{name}_config.json", **values)

    return edit


def nested(folder: Path) -> None:
    """The layout of versions before 2, with the transformer in its own folder."""
    (folder / "0_Transformer").mkdir()
    for file in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")


def further(folder: Path, kind: str, place: int) -> None:
    """A stage of a kind in a folder of its own, at a place among the stages."""
    (folder / f"2_{kind}").mkdir()
    stages = json.loads((folder / "modules.json").read_text("utf-8"))
    stages.insert(place, {"idx": 2, "name": "further", "path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"})
    (folder / "modules.json").write_text(json.dumps(stages), "utf-8")


def dropout(folder: Path) -> None:
    """A stage that does nothing after training, between pooling and the next one."""
    further(folder, "Dropout", 2)
    change(folder / "2_Dropout", "config.json", dropout=0.5)


def normalize(folder: Path) -> None:
    """A last stage that scales to unit length, then a narrower embedding."""
    further(folder, "Normalize", 10)
    change(folder, "config_sentence_transformers.json", truncate_dim=10)


CASES = {
    "the same": lambda folder: None,
    "truncate_dim": whole(truncate_dim=10),
    "truncate_dim after Normalize": normalize,
    "truncate_dim beyond the width": whole(truncate_dim=500),
    "max_seq_length": stage(max_seq_length=12),
    "do_lower_case": stage(do_lower_case=True),
    "both in sentence_roberta_config": legacy("roberta", max_seq_length=12, do_lower_case=True),
    "sentence_distilbert_config": legacy("distilbert", max_seq_length=12),
    "sentence_camembert_config": legacy("camembert", max_seq_length=12),
    "sentence_albert_config": legacy("albert", max_seq_length=12),
    "sentence_xlm-roberta_config": legacy("xlm-roberta", max_seq_length=12),
    "sentence_xlnet_config": legacy("xlnet", max_seq_length=12),
    "the window of the tokenizer": lambda folder: (
        stage(max_seq_length=...)(folder), tokenizer(model_max_length=12)(folder)
    ),
    "tokenizer_args": stage(max_seq_length=..., tokenizer_args={"model_max_length": 12}),
    "tokenizer_args before max_seq_length": stage(max_seq_length=30, tokenizer_args={"model_max_length": 12}),
    "null in tokenizer_args before max_seq_length": stage(max_seq_length=12, tokenizer_args={"model_max_length": None}),
    "cut on the left": lambda folder: (stage(max_seq_length=12)(folder), tokenizer(truncation_side="left")(folder)),
    "a prompt": whole(prompts={"query": "find: ", "topic": "what is "}, default_prompt_name="topic"),
    "a dot product": whole(similarity_fn_name="dot"),
    "a transformer in its folder": nested,
    "Dropout": dropout,
    "cls": pooling(pooling_mode_cls_token=True, pooling_mode_mean_tokens=False),
    "lasttoken": pooling(pooling_mode_lasttoken=True, pooling_mode_mean_tokens=False),
    "weightedmean": pooling(pooling_mode_weightedmean_tokens=True, pooling_mode_mean_tokens=False),
    "a pooling without a prompt": pooling(include_prompt=False, pooling_mode_mean_tokens=True),
    "tuples": lambda folder: change(folder, "config.json", return_dict=False),
    "kernels": stage(model_args={"attn_implementation": "eager"}),
}  # fmt: skip
"""Edits that versions 5 and 6 obey."""

CASES_OF_6 = {
    "processor_kwargs": stage(max_seq_length=..., processor_kwargs={"model_max_length": 12}),
    "a side of processor_kwargs": stage(max_seq_length=12, processor_kwargs={"truncation_side": "left"}),
    "processing_kwargs": stage(processing_kwargs={"text": {"max_length": 12}}),
    "common processing_kwargs": stage(processing_kwargs={"text": {"max_length": 9}, "common": {"max_length": 12}}),
    "not cut": stage(max_seq_length=12, processing_kwargs={"text": {"truncation": False}}),
    "padded to the window": stage(processing_kwargs={"text": {"padding": "max_length"}}),
    "the query prompt that every model has": whole(default_prompt_name="query"),
    "no pooling mode": pooling(),
    "every pooling mode false": pooling(pooling_mode_mean_tokens=False, pooling_mode_cls_token=False),
    "unpadded": stage(unpad_inputs=False),
    "a transformer in its folder beside a configuration of the whole": lambda folder: (
        nested(folder), (folder / "config.json").write_text(json.dumps({"__version__": "0.4.1"}))
    ),
    "texts alone": stage(
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        module_output_name="token_embeddings",
    ),
}  # fmt: skip
"""Edits that only version 6 obeys."""
SAME = {
    "the same", "truncate_dim beyond the width", "a dot product", "a transformer in its folder", "Dropout", "tuples",
    "kernels", "a pooling without a prompt", "padded to the window", "the query prompt that every model has",
    "no pooling mode", "every pooling mode false", "unpadded", "texts alone", "not cut",
    "null in tokenizer_args before max_seq_length", "a transformer in its folder beside a configuration of the whole",
}  # fmt: skip
"""Cases whose vectors are those of the model without the edit."""


def copies(folder: Path, into: Path, cases: dict) -> dict[str, Path]:
    """A copy of a model's folder for each case, edited."""
    found = {}
    for number, (name, edit) in enumerate(cases.items()):
        found[name] = into / str(number)
        shutil.copytree(folder, found[name])
        edit(found[name])
    return found


def as_users_have_it(encoder: Any, texts: list[str]) -> Any:
    """Our vectors, of the length that sentence-transformers gives them."""
    out = encoder.encode(texts)
    return (out.norms[:, None] * out.embeddings).numpy()


def apart(found: Any, expected: Any) -> float:
    """The largest ‖a − b‖/‖b‖ over texts."""
    import numpy as np

    assert found.shape == expected.shape
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


def theirs(folders: dict[str, Path]) -> dict:
    """The vectors of sentence-transformers for each case."""
    from sentence_transformers import SentenceTransformer

    return {name: SentenceTransformer(str(folder), device="cpu").encode(TEXTS) for name, folder in folders.items()}


def write(place: Path) -> None:
    """Write the vectors of this environment's sentence-transformers for the folders that a file names."""
    import numpy as np

    folders = json.loads((place / "folders.json").read_text("utf-8"))
    np.savez(place / "vectors.npz", **theirs({name: Path(folder) for name, folder in folders.items()}))


def compare(version: str) -> int:
    """Compare our vectors with those of a version of sentence-transformers; how many cases differ."""
    import numpy as np

    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    # Version 5 lower-cases with str.lower, and the model has a Normalize stage of its own.
    left_out = {"do_lower_case", "both in sentence_roberta_config", "truncate_dim after Normalize"}
    cases = {name: edit for name, edit in CASES.items() if name not in left_out}
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        options = ["--quiet", "--no-deps", "--target", str(place / "library"), f"sentence-transformers=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)
        folders = copies(Path(default_model()), place, cases)
        (place / "folders.json").write_text(json.dumps({name: str(folder) for name, folder in folders.items()}), "utf-8")
        environment = os.environ | {"PYTHONPATH": str(place / "library")}
        subprocess.run([sys.executable, __file__, "--write", temporary], env=environment, check=True)
        with np.load(place / "vectors.npz") as vectors:
            for name, folder in folders.items():
                away = apart(as_users_have_it(Encoder.load(folder, device="cpu"), TEXTS), vectors[name])
                wrong += not away < 1e-5
                print(f"{version}  {name:40} {away:.1e}", flush=True)
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]))
    else:
        sys.exit(compare(sys.argv[1]) > 0)
