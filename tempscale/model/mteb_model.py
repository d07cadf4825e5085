"""The encoder in MTEB's protocol, with a temperature. Needs the extra `evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tempscale.optional import needs

try:
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.types import PromptType
except ImportError as error:
    raise ImportError(needs("ts.MtebModel", "mteb")) from error

from tempscale.model.checkpoint import default_model, fingerprint, label, resolve
from tempscale.model.encoder import Encoder
from tempscale.model.settings import Prompts, Settings
from tempscale.temperature.schedule import Temperature


class MtebModel(AbsEncoder):  # type: ignore[misc]  # mteb's classes are not typed here
    """A model under an attention temperature, for `mteb.evaluate`.

        A = softmax(QKᵀ / (τ√d))                                             S1 eq. 6

    Its embeddings at τ = 1 are those of `SentenceTransformer.encode`, and are compared as the checkpoint says:

        mteb.evaluate(ts.MtebModel("path", temperature=0.8), mteb.get_tasks(["SciFact"]))

    Args:
        name: a folder or hub name, NAME or NAME@REVISION; the demo MiniLM by default.
        temperature: τ in (0, 2], a schedule, or any value that `Temperature.of` reads. In a schedule by role, queries get
            the temperature of «query» and all other texts that of «document».
        prompts: the prompts before texts: `default`, the one that `SentenceTransformer.encode` adds; `model`, the
            checkpoint's prompts for queries, documents and tasks, as in mteb's wrapper; or `none`.
        options: further arguments of `Encoder.load`, such as `max_length`, `device` and `precision`.

    Raises:
        ModelError: there is no safetensors model, or an option does not fit it.
        TemperatureError: τ cannot be used.
        UnsupportedArchitecture: the model's family is not supported.
    """

    def __init__(
        self,
        name: str | Path | None = None,
        temperature: Temperature | float | str | Mapping[str, Any] = 1.0,
        *,
        prompts: Prompts = "default",
        **options: Any,
    ) -> None:
        folder = resolve(str(name) if name is not None else default_model())
        settings = Settings.of(folder)
        encoder = Encoder.load(folder, temperature, prompt=settings.prompt(prompts, ""), **options)
        title = label(str(name) if name is not None else default_model())
        self._describe(encoder, title, fingerprint(folder), settings.similarity, settings if prompts == "model" else None)

    def _describe(
        self, encoder: Encoder, name: str, revision: str, similarity: str, settings: Settings | None
    ) -> None:  # fmt: skip
        """Store a loaded model and its metadata for mteb; `settings` is None where their prompts are not used."""
        self.model = encoder
        self.model_prompts = None if settings is None else dict(settings.prompts)
        self._settings = settings
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": f"tempscale/{name}", "revision": revision, "similarity_fn_name": ScoringFunction(similarity),
                "framework": ["PyTorch"],
            }
        )  # fmt: skip

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Embed the texts of a task; the signature is mteb's.

        Args:
            inputs: batches with their texts under `text`.
            task_metadata: of the task; it selects one of the checkpoint's prompts.
            hf_split: not used.
            hf_subset: not used.
            prompt_type: whether the texts are queries or documents, if the task distinguishes them.
            _: further arguments of mteb, not used.

        Returns:
            Embeddings (texts, d), with the norms that the checkpoint's own stages give them.
        """
        prompt = self._prompt(task_metadata, prompt_type)
        texts = [text for batch in inputs for text in batch["text"]]
        role = "query" if prompt_type == PromptType.query else "document"
        tokens = self.model.tokenizer([prompt + text for text in texts], prompt="")
        out = self.model.encode_tokens(tokens, moments=False, role=role)
        return np.asarray((out.norms[:, None] * out.embeddings).numpy())

    def _prompt(self, task_metadata: Any, prompt_type: PromptType | None) -> str:
        """The prompt that mteb's wrapper of sentence-transformers would add, or that of the encoder."""
        if self._settings is None:
            return self.model.tokenizer.prompt
        name = self.get_prompt_name(task_metadata, prompt_type)
        if name in self._settings.prompts:
            return self._settings.prompts[name]
        return self._settings.default_prompt if prompt_type is None else self._settings.prompt("model", prompt_type.value)
