"""The settings of `tempscale audit`: those that decide the tables (`identity`), and how it runs (`Execution`, `out`)."""

from __future__ import annotations

import datetime
import shlex
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from tempscale.correction.variant_names import (
    by_model,
    canonical,
    embeds_again,
    group_columns,
    model_of,
    needs_queries,
    temperature_of,
)
from tempscale.model.checkpoint import label
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.nights import NIGHT, Gate, RecordOfNights, checked_night, filled, history_folder
from tempscale_jobs.config.option import Option
from tempscale_jobs.config.sections import (
    Alpha,
    Beta,
    By,
    CachedExecution,
    Corpus,
    Encoding,
    Intervals,
    Queries,
    Regularization,
    Results,
    Seed,
)
from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.verify import OfAudit, VerifyConfig

QUICK_START: dict[str, dict[str, int]] = {
    "corpus": {"sample": 300}, "analysis": {"socm_groups": 12, "socm_ranked": 32, "probe_sample": 48}
}  # fmt: skip
"""The sizes of the quick start: a minute on two cores, and small enough errors."""
SHARDS_OF_GPUS = {"shard_texts": 16_384, "shard_characters": 1 << 22}
"""Sizes of shards where workers hold GPUs: a million tokens, 16 micro-batches of the budget of a GPU."""
SOCM_GROUPS = 32
PUBLISHED_SAMPLE = 1000
_LEFT_OUT = {"socm_sample": 0, "probe_sample": 0, "socm_top_over": "sample"}
"""Of the analysis, what a quick audit does not measure."""
_ADDED = ("quick", "verify", "by", "results")
"""Settings that earlier versions did not have; without them a run has the same identity as before."""
_HOW_MANY = {"socm_sample", "socm_groups", "socm_se"}


class Embedding(Encoding):
    """The models, the temperatures, and the sizes of shards."""

    shard_texts: int = Field(
        512, ge=1, description="Most texts of one shard, the unit of work and of resuming; on workers with GPUs 16,384."
    )
    shard_characters: int = Field(
        131_072,
        ge=1,
        description="A shard ends at this many characters; on workers with GPUs 4,194,304. The first shards of a corpus are "
        "smaller.",
    )

    def of_gpus(self) -> dict[str, int]:
        """The sizes of shards that fill a GPU's micro-batches, or none where one of them was given."""
        return {} if self.model_fields_set & set(SHARDS_OF_GPUS) else SHARDS_OF_GPUS


class Analysis(Intervals):
    """The measurements on the embeddings."""

    socm_groups: Annotated[int, Option("--socm-groups", "What is measured", "N")] = Field(
        SOCM_GROUPS,
        ge=10,
        le=1024,
        description="Groups of 20 texts from all length intervals; SOCM is measured on the pairs of each group. ",
    )
    socm_se: Annotated[float | None, Option("--socm-se", "What is measured", "SE")] = Field(
        None,
        gt=0,
        description="Wanted standard error of the corpus's mean SOCM; it decides the number of groups, 1,024 at most.",
    )
    socm_sample: Annotated[int | None, Option("--socm-sample", "What is measured", "N")] = Field(
        None,
        ge=0,
        le=5000,
        description="Measure SOCM on all pairs of N random texts, as the paper does, instead of groups; 1,000 with --paper; "
        "0: no SOCM.",
    )
    socm_alpha: Alpha = 1.0
    socm_beta: Beta = 1.0
    socm_regularization: Regularization = 0.0
    probe: Annotated[Literal["position", "decomposition", "prefix"], Option("--probe", "What is measured")] = Field(
        "decomposition",
        description="The prefix gap and what it is made of; prefix: the gap alone; position: also which tenth of a text its "
        "vector follows.",
    )
    probe_se: float = Field(
        0.008, gt=0, description="Wanted standard error of the prefix gap; it decides the number of texts, 64 to 1,000."
    )
    probe_sample: int | None = Field(
        None, ge=0, description="Texts of the prefix probe, instead of the number that probe_se decides. 0 leaves it out."
    )
    socm_top_over: Annotated[Literal["sample", "corpus"], Option("--socm-top-over", "What is measured")] = Field(
        "sample",
        description="Where to find the most collapsed pairs. sample: among drawn texts (those of largest tr Σ in groups, "
        "or all of socm_sample); corpus: among all texts, by exact bounds.",
    )
    socm_ranked: int = Field(
        128, ge=2, le=1024, description="Rank all pairs of so many texts, those of largest tr Σ in the groups."
    )
    worst_pairs: int = Field(20, ge=1, le=1000, description="Pairs kept in each ranking of the most collapsed.")
    cosine: Annotated[Literal["full", "moments"], Option("--cosine", "What is measured")] = Field(
        "full",
        description="full: every pair, with percentiles, near-duplicates and neighbours. moments: mean and variance in "
        "closed form, within seconds, and exposure from a sample of texts (exposure_sample).",
    )
    cosine_precision: Annotated[
        Literal["float32", "tf32", "bfloat16"],
        Option("--cosine-precision", "What is measured"),
    ] = Field(
        "float32",
        description="Precision of the embeddings in the pairs' products. tf32 and bfloat16 are for GPUs, twice as fast on "
        "an H100: means stay exact; percentiles, near-duplicates and neighbours change by at most 0.001 or 0.008.",
    )
    neighbours: Annotated[int, Option("--neighbours", "What is measured", "K")] = Field(
        10, ge=0, le=1000, description="Nearest texts kept of each text, for exposure and hubness. 0 leaves them out."
    )
    exposure_sample: Annotated[int, Option("--exposure-sample", "What is measured", "N")] = Field(
        2000,
        ge=0,
        description="With --cosine moments: N random texts, and queries, are compared with the whole corpus, for exposure "
        "without bias and with its error. 0 leaves it out.",
    )
    length_correction: Annotated[bool, Option("--length-correction/--no-length-correction", "What is measured")] = Field(
        True, description="Measure how a correction by length would change exposure, at the first temperature."
    )
    what_if: Annotated[list[str], Option("--what-if", "What is measured", "WHAT")] = Field(
        [],
        description="What a change of the vectors would change in searches; can be repeated. dims:256, int8, bits, or a "
        "correction such as length or centre, joined with + as in centre+bits; tau:0.8 embeds the texts again, model:NAME "
        "with another model; chunk:256 cuts them into chunks first, chunk:256:32 with an overlap, and chunk:64:late lets "
        "the model read neighbouring chunks together.",
    )
    near_duplicate: float = Field(0.95, gt=-1, le=1, description="Cosine from which a pair is a near-duplicate.")
    worst_duplicates: int = Field(100, ge=0, le=100_000, description="Near-duplicates listed; all are counted.")

    @model_validator(mode="before")
    @classmethod
    def _no_tolerance(cls, data: Any) -> Any:
        if isinstance(data, dict) and "socm_tolerance" in data:
            raise ValueError("socm_tolerance is gone, since it saved no time, and every SOCM is exact; leave it out")
        if isinstance(data, dict) and "socm_cell_se" in data:
            raise ValueError(
                "socm_cell_se is gone: every length interval has texts in each group; socm_se is the mean's wanted error"
            )
        published = isinstance(data, dict) and data.get("socm_regularization") and not data.keys() & _HOW_MANY
        return data | {"socm_sample": PUBLISHED_SAMPLE} if published else data

    @field_validator("what_if")
    @classmethod
    def _variants(cls, asked: list[str]) -> list[str]:
        return list(dict.fromkeys(map(canonical, asked)))

    @property
    def compares(self) -> bool:
        """Whether pairs are computed: all of them, or those of a sample that asks for its nearest."""
        return self.cosine == "full" or (self.neighbours > 0 and self.exposure_sample > 0)

    @model_validator(mode="after")
    def _fitting(self) -> Analysis:
        if self.socm_top_over == "corpus" and self.cosine != "full":
            raise ValueError("socm_top_over = corpus needs every cosine; leave cosine at full")
        if self.what_if and not (self.neighbours and self.exposure_sample):
            raise ValueError("what_if compares nearest texts; set neighbours and exposure_sample above 0, or leave it out")
        if self.probe_sample and "probe_se" in self.model_fields_set:
            raise ValueError("probe_sample is a number of texts instead of a wanted error; leave out probe_se")
        if self.socm_sample and self.model_fields_set & {"socm_groups", "socm_se"}:
            raise ValueError(
                "socm_sample measures all pairs of a sample instead of groups; leave out socm_groups and socm_se"
            )
        return self


class AuditConfig(Command):
    """A whole audit."""

    command: ClassVar[str] = "audit"
    reads: ClassVar[str] = "corpus"
    outside_identity: ClassVar[frozenset[str]] = frozenset({"out", "execution", "night", "gate", "record"})
    files: ClassVar[tuple[str, ...]] = ("corrections", "verify", "results")
    out: Annotated[str, Option("--out", "The run", "DIR")] = Field(
        "runs/audit", min_length=1, description="The run folder; the night's date replaces {night} here and in the sources."
    )
    night: Annotated[str | None, Option("--night", "The run", "DATE")] = Field(
        None, description="Date of the night, such as 2026-11-22; today in UTC unless given."
    )
    quick: Annotated[bool, Option("--quick", "What is measured")] = Field(
        False,
        description="A first look: the first temperature only, without SOCM, worst pairs and prefix probe. It is never a "
        "baseline.",
    )
    seed: Seed = 0
    keep_text: Annotated[bool, Option("--text/--no-text", "The run")] = Field(
        True, description="Whether excerpts of the worst pairs' texts may be in tables and report."
    )
    corpus: Corpus = Field(default_factory=lambda: Corpus.model_validate({}), description="Which texts.")
    by: By = Field(
        [],
        description="Columns whose values are groups, such as language, source or tenant: whether a group fills the results "
        "of searches, and whether it attracts itself.",
    )
    queries: Queries | None = Field(None, description="Texts that search the corpus, for its exposure; keys as corpus.")
    results: Results | None = Field(None, description="What an index returns for the queries, for its recall.")
    embedding: Embedding = Field(
        default_factory=lambda: Embedding.model_validate({}), description="Models and temperatures."
    )
    analysis: Analysis = Field(default_factory=lambda: Analysis.model_validate({}), description="What is measured.")
    execution: CachedExecution = Field(
        default_factory=lambda: CachedExecution.model_validate({}), description="Where it runs."
    )
    gate: Gate = Field(default_factory=lambda: Gate.model_validate({}), description="What a night is checked against.")
    record: RecordOfNights = Field(
        default_factory=lambda: RecordOfNights.model_validate({}), description="What is kept of a night."
    )
    verify: OfAudit | None = Field(
        None, description="With embedding_column: whether a sample of these vectors is still a model's."
    )

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The checked configuration of tonight, with the quick start's sample sizes where no corpus is named."""
        return checked(cls, with_quick_start(data)).tonight()

    @property
    @override
    def takes_embeddings(self) -> bool:
        """Whether the corpus has embeddings, so that no model runs."""
        return self.corpus.embedding_column is not None

    @property
    @override
    def verification(self) -> VerifyConfig | None:
        """The configuration by which the corpus's vectors are verified, if they are."""
        if self.verify is None:
            return None
        return self.verify.of(self.corpus, out=self.out, seed=self.seed, execution=self.execution)

    @property
    @override
    def other_models(self) -> AuditConfig | None:
        """The configuration by which texts are embedded with the models of `what_if`, under the first temperature."""
        names = [name for what in self.analysis.what_if if (name := model_of(what)) is not None]
        if not names:
            return None
        one = {"models": names, "temperatures": self.embedding.temperatures[:1]}
        changed = {
            "analysis": self.analysis.model_copy(update={"what_if": []}),
            "embedding": self.embedding.model_copy(update=one),
        }
        return self.model_copy(update=changed)

    @property
    def asks(self) -> bool:
        """Whether a night is checked at all."""
        return self.gate.asks() or self.verify is not None

    @field_validator("night")
    @classmethod
    def _is_a_date(cls, night: str | None) -> str | None:
        return checked_night(night)

    @model_validator(mode="after")
    def _own_embeddings_have_no_model(self) -> AuditConfig:
        has_embeddings = self.corpus.embedding_column is not None
        if self.queries is not None and (self.queries.embedding_column is not None) != has_embeddings:
            raise ValueError(
                "the corpus comes as embeddings and the queries as texts: name the column of the queries' embeddings by "
                "--queries-embedding-column (queries.embedding_column)"
                if has_embeddings
                else "the queries come as embeddings and the corpus as texts: name the column of the corpus's embeddings by "
                "--embedding-column (corpus.embedding_column), or give the queries' texts alone"
            )
        if not has_embeddings:
            if self.verify is not None:
                raise ValueError(
                    "[verify] is for vectors of your own: name their column by --embedding-column "
                    "(corpus.embedding_column), or leave out [verify]"
                )
            return self
        if self.embedding.models or "temperatures" in self.embedding.model_fields_set:
            raise ValueError("your own embeddings have neither model nor temperature; leave out --model and --tau")
        for_models = {"max_length", "prompts", "long", "precision", "compiled", "packed", "token_budget", "tune_batches"}
        for_models &= self.embedding.model_fields_set
        if for_models or self.execution.cache is not None:
            name = min(for_models, default="cache")
            raise ValueError(f"your own embeddings are not embedded again; leave out {name}")
        if self.analysis.socm_top_over == "corpus" or self.analysis.socm_se is not None:
            raise ValueError("SOCM needs token embeddings, which your own embeddings do not have; leave out its options")
        return self

    @model_validator(mode="after")
    def _variants_can_be_made(self) -> AuditConfig:
        again = [what for what in self.analysis.what_if if embeds_again(what)]
        if again and self.corpus.embedding_column is not None:
            raise ValueError(
                f"what_if {again[0]!r} embeds the texts again, and only their embeddings are given; leave it out"
            )
        asking = [what for what in self.analysis.what_if if needs_queries(what)]
        if asking and self.queries is None:
            raise ValueError(
                f"what_if {asking[0]!r} is fitted to queries, and none are given: name them by --queries, or leave it out"
            )
        for what in self.analysis.what_if:
            if absent := [column for column in group_columns(what) if column not in self.by]:
                raise ValueError(
                    f"what_if {what!r} depends on the groups by '{absent[0]}', which is not among --by: add --by "
                    f"{shlex.quote(absent[0])}, or leave it out"
                )
        return self

    @model_validator(mode="after")
    def _rows_by_length(self) -> AuditConfig:
        for name, taken in (("what_if", {"length"}), ("results", {"length", "text_length"})):
            asked = self.analysis.what_if if name == "what_if" else self.results
            if asked and (both := sorted(taken & {*self.by})):
                raise ValueError(
                    f"{name} has rows by {both[0]!r} already; rename that column of --by, or leave out one of the two"
                )
        return self

    @model_validator(mode="after")
    def _results_can_be_compared(self) -> AuditConfig:
        if self.results is None:
            return self
        if self.queries is None:
            raise ValueError("--results are what an index returns for queries, and none are given: name them by --queries")
        if not (self.analysis.neighbours and self.analysis.compares):
            raise ValueError("--results are compared with nearest texts; set neighbours and exposure_sample above 0")
        if self.corpus.sample is not None:
            raise ValueError(
                "--results are compared with the nearest of all texts of the index; leave out --sample (corpus.sample)"
            )
        return self

    @model_validator(mode="after")
    def _exact_bounds(self) -> AuditConfig:
        coarse = self.embedding.precision != "float32" and self.execution.cache is not None
        if coarse and self.analysis.socm_top_over == "corpus":
            raise ValueError(
                "socm_top_over = corpus compares texts by figures in the cache, which bfloat16 makes too coarse; "
                "leave out one of cache, precision and socm_top_over"
            )
        return self

    @model_validator(mode="after")
    def _held_temperatures_are_measured(self) -> AuditConfig:
        measured = [temperature.canonical for temperature in self.temperatures()]
        if absent := sorted(self.gate.named() - set(measured)):
            raise ValueError(f"gate.temperatures names {', '.join(absent)}, and the run measures {', '.join(measured)}")
        return self

    @model_validator(mode="after")
    def _quick_measures_what_is_checked(self) -> AuditConfig:
        figures = [threshold.figure for threshold in self.gate.read_thresholds()]
        figures += self.gate.drift if self.gate.baseline is not None else []
        absent = sorted({figure for figure in figures if figure.startswith(("socm_", "prefix_"))})
        if self.quick and absent:
            raise ValueError(
                f"--quick does not measure {', '.join(absent)}, which the gate checks; leave out --quick, or these figures "
                "in gate.thresholds and, with a baseline, in gate.drift"
            )
        return self

    @override
    def identity(self) -> dict[str, Any]:
        """See `Command.identity`. A run has the identity that it had before there were quick ones and verified ones, and
        before `what_if`, `by` and `results`.

        The models of [verify] and of `what_if` count by their files.
        """
        identity = {name: value for name, value in super().identity().items() if name not in _ADDED or value}
        if not self.analysis.what_if:
            identity["analysis"].pop("what_if")
        else:
            identity["analysis"]["what_if"] = [
                what if (name := model_of(what)) is None else by_model(label(name)) for what in self.analysis.what_if
            ]
        for name in ("model", "candidates"):
            identity.get("verify", {}).pop(name, None)
        return identity

    def tonight(self) -> Self:
        """The same with the night's date in place of {night}, the folder of its record, and what a quick audit leaves out
        left out.
        """
        night = self.night or datetime.datetime.now(datetime.UTC).date().isoformat()
        history = filled(history_folder(self.record, self.out), night)
        sections = {
            name: section for name in ("corpus", "queries", "results") if (section := getattr(self, name)) is not None
        }
        analysis = self.analysis.model_copy(update=_LEFT_OUT) if self.quick else self.analysis
        dated = NIGHT in self.out or any(NIGHT in section.source for section in sections.values())
        return self.model_copy(
            update={
                name: section.model_copy(update={"source": filled(section.source, night)})
                for name, section in sections.items()
            }
            | {
                "out": filled(self.out, night),
                "night": night if dated else self.night,
                "record": self.record.model_copy(update={"history": history}),
                "analysis": analysis,
            }
        )

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given; the first is the reference, and the only one of a quick audit."""
        if self.corpus.embedding_column is not None:
            return [Temperature.of(1.0)]
        asked = super().temperatures()[: 1 if self.quick else None]
        of_variants = [Temperature.of(tau) for what in self.analysis.what_if if (tau := temperature_of(what)) is not None]
        return asked + [tau for tau in of_variants if tau.canonical not in {other.canonical for other in asked}]


def with_quick_start(data: dict[str, Any]) -> dict[str, Any]:
    """The data with the quick start's sample sizes, where neither a corpus nor a size is named."""
    corpus, analysis = (data.get(section, {}) for section in QUICK_START)
    if not isinstance(corpus, dict) or not isinstance(analysis, dict) or corpus.keys() & {"source", "sample", "limit"}:
        return data
    # --paper sets a sample.
    has_sizes = analysis.keys() & {*_HOW_MANY, "probe_se"} or analysis.get("socm_regularization")
    sizes = {} if has_sizes else QUICK_START["analysis"]
    return data | {"corpus": QUICK_START["corpus"] | corpus, "analysis": sizes | analysis}


def resolve(data: dict[str, Any]) -> AuditConfig:
    """A checked configuration of tonight from plain data."""
    return checked(AuditConfig, data).tonight()
