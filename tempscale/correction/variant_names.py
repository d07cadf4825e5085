"""The names of variants of vectors: steps joined by «+», such as «dims:256+int8»; one canonical text for one variant."""

from __future__ import annotations

import re
from typing import NamedTuple

from tempscale.correction.errors import CorrectionError
from tempscale.correction.recipes import Recipe, columns_of

EXAMPLES = "dims:256, int8, bits, centre+bits, remove_top(1), length, tau:0.8, chunk:256, model:NAME"
STORED = ("int8", "bits")
"""Steps that say how numbers are stored, and come last."""
_ALONE = {
    "length": "changes the similarity and", "csls": "changes the similarity and", "tau": "embeds the texts again and",
    "chunk": "embeds the texts again and", "model": "embeds the texts again and",
}  # fmt: skip
"""What stands for itself, and why: a similarity with a coordinate of its own, or vectors of their own."""
_TAU, _CHUNK, _MODEL, _LATE = "tau:", "chunk:", "model:", ":late"
LEAST_CHUNK = 16
"""The fewest tokens of a chunk."""


class Chunks(NamedTuple):
    """Chunks instead of whole texts."""

    tokens: int
    """The most tokens of a chunk, special tokens and prompt included."""
    overlap: int = 0
    """The most tokens that a chunk repeats of the one before."""
    late: bool = False
    """Whether the model reads as many of a text's chunks together as its window has room for, and pools each apart."""


def canonical(what: str) -> str:
    """A variant's one text: equal variants have equal texts.

    Raises:
        CorrectionError: it is no variant.
    """
    return "+".join(step_names(what))


def step_names(what: str) -> list[str]:
    """The canonical text of each step of a variant."""
    if (model := model_of(str(what).strip())) is not None:  # Its name may have any character.
        if not model:
            raise CorrectionError("model: needs the name of a model, as --model does")
        if any(part.strip().startswith((*STORED, "dims:", *_ALONE)) for part in model.split("+")[1:]):
            raise CorrectionError(f"{what!r}: model {_ALONE['model']} cannot be joined with other steps")
        return [f"{_MODEL}{model}"]
    names = [_name(part.strip(), what) for part in str(what).split("+")]
    kinds = [re.match(r"[a-z_0-9]+", name)[0] for name in names]  # type: ignore[index]
    if alone := [kind for kind in kinds if kind in _ALONE and len(kinds) > 1]:
        raise CorrectionError(f"{what!r}: {alone[0]} {_ALONE[alone[0]]} cannot be joined with other steps")
    if twice := [kind for k, kind in enumerate(kinds) if kind in kinds[:k]]:
        raise CorrectionError(f"{what!r} has {twice[0]} twice")
    if early := [kind for kind in kinds[:-1] if kind in STORED]:
        raise CorrectionError(f"{what!r}: {early[0]} is how numbers are stored and comes last")
    return names


def _name(part: str, what: str) -> str:
    if part in STORED or part.startswith(_MODEL):
        return part
    if (dims := re.fullmatch(r"dims:\s*(\d+)", part)) and int(dims[1]) > 0:
        return f"dims:{int(dims[1])}"
    if (tau := re.fullmatch(r"tau:\s*(\d*\.?\d+)", part)) and float(tau[1]) > 0:
        return f"{_TAU}{float(tau[1])}"
    if chunk := re.fullmatch(r"chunk:\s*(\d+)(?::(\d+))?(:late)?", part):
        return _chunk_name(Chunks(int(chunk[1]), int(chunk[2] or 0), bool(chunk[3])))
    try:
        return Recipe.of(part).canonical
    except CorrectionError as error:
        raise CorrectionError(f"there is no variant {what!r} ({error}); examples: {EXAMPLES}") from None


def _chunk_name(chunks: Chunks) -> str:
    if chunks.tokens < LEAST_CHUNK:
        raise CorrectionError(f"a chunk has at least {LEAST_CHUNK} tokens, not {chunks.tokens}")
    if 2 * chunks.overlap > chunks.tokens:
        raise CorrectionError(f"chunks of {chunks.tokens} tokens overlap by at most half, not by {chunks.overlap}")
    if chunks.late and chunks.overlap:
        raise CorrectionError("chunks that are pooled late are read together and have no overlap")
    return f"{_CHUNK}{chunks.tokens}" + (f":{chunks.overlap}" if chunks.overlap else "") + _LATE * chunks.late


def needs_queries(what: str) -> bool:
    """Whether a variant has a correction that is fitted to queries."""
    return any(Recipe.of(name).asks for name in step_names(what) if _is_recipe(name))


def group_columns(what: str) -> tuple[str, ...]:
    """The columns of groups that a variant's corrections depend on."""
    return columns_of(name for name in step_names(what) if _is_recipe(name))


def most_dims(what: str) -> int:
    """The most dimensions that a step of a variant keeps; 0 where none is cut."""
    return max((int(name.removeprefix("dims:")) for name in step_names(what) if name.startswith("dims:")), default=0)


def temperature_of(what: str) -> float | None:
    """The temperature of a variant that embeds the texts again; None of one that changes vectors."""
    return float(what.removeprefix(_TAU)) if what.startswith(_TAU) else None


def chunks_of(what: str) -> Chunks | None:
    """The chunks of a variant that cuts the texts; None of one that does not."""
    if not what.startswith(_CHUNK):
        return None
    tokens, _, overlap = what.removeprefix(_CHUNK).removesuffix(_LATE).partition(":")
    return Chunks(int(tokens), int(overlap or 0), what.endswith(_LATE))


def model_of(what: str) -> str | None:
    """The name of the other model of a variant; None of one of the same model."""
    return what.removeprefix(_MODEL).strip() if what.startswith(_MODEL) else None


def by_model(label: str) -> str:
    """The variant that is another model with this label."""
    return f"{_MODEL}{label}"


def embeds_again(what: str) -> bool:
    """Whether a variant needs the texts and a model."""
    return what.startswith((_TAU, _CHUNK, _MODEL))


def _is_recipe(name: str) -> bool:
    return name not in STORED and not name.startswith(("dims:", _TAU, _CHUNK, _MODEL))
