"""Every setting of a model's files that can change a vector: obeyed, refused by name, or harmless.

The keys are those that sentence-transformers 5 and 6 read, and those that transformers treats in another way than they do. A
key that is not listed is refused, because its effect is unknown. `docs/vectors.md` shows the list, and a test compares it
with the installed sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tempscale.model.checkpoint import ModelError

Treatment = Literal["obeyed", "refused", "harmless"]


@dataclass(frozen=True)
class Setting:
    """How one key is treated."""

    treatment: Treatment
    """Obeyed as sentence-transformers does; refused where it is set; or harmless, because it changes no vector."""
    reason: str = ""
    """Its effect, as a clause after «which»; for a refusal also what to do."""
    only: tuple[Any, ...] = ()
    """The only values that are obeyed; () for all."""
    families: frozenset[str] = frozenset()
    """The families that read it; empty for all."""


def _obeyed(reason: str = "", *only: Any) -> Setting:
    return Setting("obeyed", reason, only)


def _refused(reason: str) -> Setting:
    return Setting("refused", reason)


def _harmless(reason: str) -> Setting:
    return Setting("harmless", reason)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OTHER_FEATURE = "makes or reads another feature than the embedding of a text; only sentence_embedding is supported"
_INTO_CONFIG = "changes the model's configuration while it is loaded; write it into config.json instead"
_MULTI_VECTOR = "is for queries or documents alone; remove it, or use the model where it is read"
_OTHER_INPUTS = dict.fromkeys(("audio", "image", "video"), _harmless("is for other kinds of input"))

CONFIG_NAMES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The file of the transformer's stage: the first of these that exists and is not empty."""

MODULES = "modules.json"
WHOLE = "config_sentence_transformers.json"
STAGE = CONFIG_NAMES[0]
PROCESSOR, PROCESSING, TEXT = f"{STAGE}: processor_kwargs", f"{STAGE}: processing_kwargs", f"{STAGE}: processing_kwargs.text"
MODEL, MODALITIES = f"{STAGE}: model_kwargs", f"{STAGE}: modality_config"
CONFIG = "config.json"

OLDER_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""The older keys of a pooling, and their poolings."""

SETTINGS: dict[str, dict[str, Setting]] = {
    MODULES: {
        "type": _obeyed("is the class of a stage, by its full name"),
        "path": _obeyed("is the folder of a stage"),
        "name": _obeyed("names a stage; a name that comes twice is refused"),
        "idx": _harmless("is not read: stages run in the order of the list"),
        "kwargs": _harmless("names arguments of encode, which has none here"),
    },
    WHOLE: {
        "prompts": _obeyed("are texts that are put before the inputs"),
        "default_prompt_name": _obeyed("is the prompt of encode"),
        "similarity_fn_name": _obeyed("is how embeddings are compared"),
        "truncate_dim": _obeyed("keeps the first dimensions of an embedding, after all stages and without scaling"),
        "model_type": _obeyed("is the class that loads the model", "SentenceTransformer", None),
        "__version__": _harmless("is what the model was saved with"),
        "requirements": _harmless("may forbid loading, and changes no vector"),
    },
    STAGE: {
        "max_seq_length": _obeyed("is the window, unless processor_kwargs has one"),
        "do_lower_case": _obeyed("puts a lower-casing normaliser before the tokenizer's own"),
        "transformer_task": _obeyed("is the class that loads the weights", "feature-extraction", None),
        "module_output_name": _obeyed("is the feature that the transformer makes", "token_embeddings", None),
        "modality_config": _obeyed("is how each kind of input runs; see below"),
        "processing_kwargs": _obeyed("are arguments of the tokenizer's call; see below"),
        "processor_kwargs": _obeyed("are arguments for loading the tokenizer; see below"),
        "tokenizer_args": _obeyed("is the older name of processor_kwargs"),
        "model_kwargs": _obeyed("are arguments for loading the weights; see below"),
        "model_args": _obeyed("is the older name of model_kwargs"),
        "config_kwargs": _refused(_INTO_CONFIG),
        "config_args": _refused(_INTO_CONFIG),
        "unpad_inputs": _harmless("runs the same texts without padding"),
        "query_length": _refused(_MULTI_VECTOR),
        "document_length": _refused(_MULTI_VECTOR),
        "query_expansion": _refused(_MULTI_VECTOR),
        "tokenizer_name_or_path": _refused("names another tokenizer; put its files next to config.json and remove the key"),
    },
    PROCESSOR: {
        "model_max_length": _obeyed("is the window"),
        "truncation_side": _obeyed("is the end at which texts are cut", "right", "left"),
        "do_lower_case": _obeyed("lower-cases texts"),
        "strip_accents": _obeyed("removes accents"),
        "tokenize_chinese_chars": _obeyed("splits between Chinese characters"),
        "add_prefix_space": _obeyed("puts a space before a text"),
        "add_bos_token": _obeyed("puts a token before each text"),
        "add_eos_token": _obeyed("puts a token after each text"),
        "padding_side": _obeyed(
            "is the side of padding; left is refused in families whose positions count the padding", "right", "left", None
        ),
        "use_fast": _harmless("has no effect: tokenizers are fast"),
        "clean_up_tokenization_spaces": _harmless("matters only for decoding"),
        "trust_remote_code": _harmless("is ignored in files: no code of a model runs"),
    },
    MODEL: {
        "dtype": _harmless("is the precision of storage; the --precision of the run decides how the model computes"),
        "torch_dtype": _harmless("is the older name of dtype"),
        "attn_implementation": _harmless("is another kernel of the same attention"),
        "add_pooling_layer": _harmless("is a layer whose output is not used"),
        "device_map": _harmless("is where the weights are"),
        "low_cpu_mem_usage": _harmless("changes only the use of memory"),
        "use_safetensors": _harmless("is always on"),
        "trust_remote_code": _harmless("is ignored in files: no code of a model runs"),
    },
    PROCESSING: {
        "text": _obeyed("are arguments of the tokenizer's call; see below"),
        "common": _obeyed("are the same, and come before those of text"),
        **_OTHER_INPUTS,
        "chat_template": _harmless("is for chat templates, which are refused"),
    },
    TEXT: {
        "max_length": _obeyed("is the window, before every other"),
        "truncation": _obeyed("is whether texts are cut", True, "longest_first", "only_first", False, "do_not_truncate"),
        "padding": _harmless("changes nothing where padding is masked"),
        "pad_to_multiple_of": _harmless("changes nothing where padding is masked"),
        "return_tensors": _harmless("is the kind of the result"),
        "logits_to_keep": _harmless("is for generative models"),
    },
    MODALITIES: {
        "text": _obeyed("is how texts run", {"method": "forward", "method_output_name": "last_hidden_state"}),
        "message": _refused(
            "lets texts go through the model's chat template, which is not supported; remove it from modality_config if the "
            "model was trained on plain texts"
        ),
        **_OTHER_INPUTS,
    },
    "Pooling": {
        "pooling_mode": _obeyed("is how tokens become one vector; by default the mean"),
        **dict.fromkeys(OLDER_POOLINGS, _obeyed("is the older form of pooling_mode")),
        "include_prompt": _obeyed("is whether a prompt is pooled; if not, prompts are refused", True, False),
        "embedding_dimension": _harmless("is the width of a token, which the weights give"),
        "word_embedding_dimension": _harmless("is the older name of embedding_dimension"),
    },
    "Dense": {
        "in_features": _obeyed("is the width before"),
        "out_features": _obeyed("is the width after"),
        "bias": _obeyed("is whether a constant is added", True, False),
        "activation_function": _obeyed("is the function after the product, of torch"),
        "use_residual": _obeyed("is whether the input is added", True, False),
        "module_input_name": _obeyed(_OTHER_FEATURE, "sentence_embedding"),
        "module_output_name": _obeyed(_OTHER_FEATURE, "sentence_embedding", None),
    },
    "LayerNorm": {"dimension": _obeyed("is the width")},
    "Normalize": {
        "module_input_name": _obeyed(_OTHER_FEATURE, "sentence_embedding"),
        "module_output_name": _obeyed(_OTHER_FEATURE, "sentence_embedding", None),
    },
    "Dropout": {"dropout": _harmless("matters only in training")},
    CONFIG: {
        "quantization_config": _refused(
            "says that the weights are quantised, which is not supported; give the model as it was before, in float32 or "
            "bfloat16"
        ),
        "compression_config": _refused("says that the weights are compressed, which is not supported; give the whole model"),
        "quantization": _refused("says that the weights are quantised, which is not supported; give those before"),
        # Others compute positions in one way, whatever the key says.
        "position_embedding_type": Setting(
            "obeyed",
            "is a kind of positions that transformers no longer computes",
            ("absolute", None),
            _words("bert roberta xlm-roberta camembert electra albert"),
        ),
        "transformers_weights": _refused("names another file of weights; give the file its usual name and remove the key"),
        "fusion_config": _refused("lets other modules compute what the layers do; remove it"),
        **dict.fromkeys(
            ("logn_attention_scale", "use_logn_attn", "attn_temperature_tuning", "llama_4_scaling_beta"),
            _refused("scales the attention logits by the length of a text, which transformers does not do for this family"),
        ),
        "pruned_heads": _refused(
            "removes heads, which transformers no longer does; save the model again after model.prune_heads(…)"
        ),
    },
}  # fmt: skip
"""Keys by their file or part of a file; those of a stage's config.json by the class of the stage."""

STAGES: dict[str, Setting] = {
    "Transformer": _obeyed("is the transformer; the first stage"),
    "Pooling": _obeyed("makes one vector of a text's tokens; the second stage"),
    "Dense": _obeyed("is a linear layer"),
    "LayerNorm": _obeyed("is a norm"),
    "Normalize": _obeyed("scales to unit length"),
    "Dropout": _obeyed("does nothing after training"),
    **{
        name: _refused(reason)
        for names, reason in {
            "WeightedLayerPooling": "takes the mean of several layers",
            "LSTM": "runs a recurrent network over the tokens",
            "CNN": "runs a convolution over the tokens",
            "BoW": "counts words and has no attention",
            "WordEmbeddings StaticEmbedding": "looks up vectors and has no attention",
            "WordWeights": "weights the tokens",
            "Router Asym": "has several models, for queries and documents",
            "CLIPModel": "embeds images",
            "MLMTransformer SpladePooling SparseAutoEncoder SparseStaticEmbedding": "makes sparse vectors",
            "LogitScore": "scores pairs of texts",
            "MultiVectorMask TokenPooling BaseTokenPooling": "makes several vectors of a text",
            "LambdaTokenPooling HierarchicalTokenPooling": "makes several vectors of a text",
        }.items()
        for name in names.split()
    },
}
"""Classes of stages in modules.json."""

FILES: dict[str, Setting] = {
    "adapter_config.json": _refused(
        "says that an adapter changes the weights; merge it into them first, with model.merge_and_unload()"
    ),
    "processor_config.json": _refused("names a processor of several kinds of input; only tokenizers are supported"),
}
"""Further files in the transformer's folder."""

UNDECLARED = _words(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path _num_labels
    _sliding_window_pattern adapters amp architectures attn_implementation auto_map bad_words_ids base_model
    base_model_prefix begin_suppress_tokens bos_token_id classifier_activation classifier_bias classifier_pooling
    cls_token_id cross_attention_hidden_size custom_pipelines decoder_start_token_id dense_act_fn
    deterministic_flash_attn directionality diversity_penalty do_lower_case do_sample down_scale_factor early_stopping
    emb_pooler encoder_no_repeat_ngram_size eos_token_id eos_token_ids exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id gap_size generator_hidden_size gradient_checkpointing
    id2label is_composition is_gated_act is_matryoshka keys_to_ignore_at_inference label2id language layer_norm_eps
    layers_to_keep length_penalty license mask_token_id matryoshka_dimensions matryoshka_dims max_length
    max_seq_length max_window_layers min_length model_max_length model_name n_positions name net_structure_type neuron
    no_repeat_ngram_size notes num_beam_groups num_beams num_labels num_memory_blocks num_return_sequences
    output_attentions output_hidden_states output_past output_scores pad_token pad_token_id parent_model
    pooler_fc_size pooler_hidden_act pooler_hidden_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type pooling prefix pretraining_tp problem_type prompt_names reference_compile
    remove_invalid_values repad_logits_with_grad repetition_penalty return_dict return_dict_in_generate
    sbert_ce_default_activation_function scalable_attention sentence_transformers sep_token_id sinusoidal_pos_embds
    sparse_pred_ignore_index sparse_prediction summary_activation summary_type summary_use_proj suppress_tokens
    task_names task_specific_params temperature tie_encoder_decoder tie_weights_ tie_word_embeddings tokenizer_class
    top_k top_p torch_dtype torchscript transformers.js_config transformers_version typical_p unk_token_id
    unpad_inputs unsloth_fixed unsloth_version use_bfloat16 use_cache use_flash_attn use_memory_efficient_attention
    use_return_dict vocab_file vocab_list xla_device
    """
)
"""Keys of config.json that no class declares and that change no vector: for training, generation and pipelines."""

READ_UNDECLARED = _words(
    """
    add_cross_attention attention_chunk_size feed_forward_proj global_attn_every_n_layers global_rope_theta
    head_dim is_causal is_decoder layer_types local_rope_theta partial_rotary_factor rope_local_base_freq
    rope_scaling rope_theta sliding_window sliding_window_pattern use_bidirectional_attention use_sliding_window
    """
)
"""Keys of config.json that transformers obeys although no class declares them."""


_OF_TRAINING_ALONE = ("dropout", "loss", "initializer")
"""Parts of the names of further such keys."""
_WIDTHS = ("embedding_size", "emb_size")
"""Keys that have no effect where they are equal to hidden_size."""


def is_known(key: str, raw: Mapping[str, Any]) -> bool:
    """Whether a key of config.json that no class declares is known: obeyed nevertheless, or without an effect."""
    listed = key in SETTINGS[CONFIG] or key in UNDECLARED or key in READ_UNDECLARED
    same_width = key in _WIDTHS and raw[key] == raw.get("hidden_size")
    return listed or same_width or any(part in key for part in _OF_TRAINING_ALONE)


def check(group: str, table: object, place: Path | str) -> None:
    """Raise for the first key of a table that `SETTINGS[group]` lacks or refuses, or whose value it refuses."""
    if not isinstance(table, Mapping):
        raise ModelError(f"{place} is not a table of settings but {_short(table)}; save the model again")
    for key, value in table.items():
        setting = SETTINGS[group].get(str(key))
        if setting is None:
            raise unknown(str(key), value, place)
        refuse(setting, key, value, place)


def unknown(key: str, value: object, place: Path | str) -> ModelError:
    """The error of a key that is in no list."""
    return ModelError(
        f"{place} has the unknown setting {key} = {_short(value)}, which may change vectors; remove it if it changes "
        "none, else the model is not supported"
    )


def refuse(setting: Setting, key: str, value: object, place: Path | str) -> None:
    """Raise if a setting has a refused value; an empty value means that it is not set."""
    empty = value is None or value is False or (isinstance(value, (str, list, dict)) and not value)
    if setting.treatment == "refused" and not empty:
        raise ModelError(f"{place} has {key} = {_short(value)}, which {setting.reason}")
    if setting.treatment == "obeyed" and setting.only and not any(_same(value, allowed) for allowed in setting.only):
        allowed = " or ".join(_short(option) for option in setting.only if option is not None)
        raise ModelError(f"{place} has {key} = {_short(value)}, which {setting.reason}; supported: {allowed}")


def _same(value: object, allowed: object) -> bool:
    return type(value) is type(allowed) and value == allowed


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
