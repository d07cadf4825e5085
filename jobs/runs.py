"""The run folder: what identifies a run, what it may resume, and when it is complete."""

from __future__ import annotations

import datetime
import os
import platform
import uuid
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import tempscale
from jobs import lock
from jobs.columns import SCHEMA_VERSION
from jobs.config import AuditConfig, Models
from jobs.errors import IncompleteRun, UsageError
from jobs.execution_config import Execution
from jobs.provenance import hide_secrets, processor, processors
from jobs.storage import Storage
from jobs.urls import shown
from tempscale import checkpoint
from tempscale.temperature import Temperature

BEGUN, SHARDED, DONE = "begun.json", "shards/index.json", "run.json"
EXCEPTIONS = "partials/exceptions"
"""One sentence a file: what is not byte-identical to any other run of the same texts."""
TAKEOVERS = "partials/takeovers"
"""What was known of each dead run whose lock was taken over."""
_OURS = (
    DONE, "report.html", "figures", "tables", "texts", "factors", "neighbours", "queries", "rejected", "partials", "shards",
    "status.json", "pruned.json",
)  # fmt: skip
_OURS_OF = {"evaluate": ("cells", "mteb"), "tune": ("layers.json", "measured", "temperature.json")}
"""What only the runs of a command leave: in another's folder such a name is somebody else's."""
_WORTH = ("cells", "layers.json", "measured/cells", f"measured/{SHARDED}", f"measured/{DONE}")
"""Of these, what is worth going on with."""
_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "scipy", "numba", "pyarrow", "ray", "polars")

_FURTHER_VERSIONS = {"evaluate": ("mteb", "scikit-learn")}
"""What decides the scores of a command besides."""


class RunConfig(Protocol):
    """What a run folder knows of a configuration; `reads` is the section that names the source."""

    command: ClassVar[str]
    reads: ClassVar[str]

    @property
    def out(self) -> str:
        """The run folder."""

    @property
    def embedding(self) -> Models:
        """Models and temperatures."""

    @property
    def execution(self) -> Execution:
        """Where it runs."""

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given."""

    def model_dump(self, *, mode: str, exclude: Any) -> dict[str, Any]:
        """The configuration as plain data."""


Config = TypeVar("Config", bound=RunConfig)


@dataclass(frozen=True)
class Model:
    """A model of the run."""

    label: str
    name: str
    fingerprint: str
    max_length: int


GIVEN = Model("given", "given", "", 0)
"""Stands for the model of embeddings of one's own."""


@dataclass(frozen=True)
class RunOf(Generic[Config]):
    """One run and its folder."""

    config: Config
    storage: Storage
    models: list[Model]
    temperatures: list[Temperature]
    complete: bool
    """Whether the folder already holds this very run, finished."""

    def place(self, kind: str, model: Model, temperature: Temperature) -> str:
        """The folder of one model and temperature below texts/, factors/ or partials/…"""
        return f"{kind}/model={model.label}/temperature={temperature.slug}"

    def key(self, model: Model, temperature: Temperature) -> dict[str, Any]:
        """The columns that every table begins with."""
        values = (model.label, temperature.canonical, temperature.tau, SCHEMA_VERSION)
        return dict(zip(("model", "temperature", "tau", "schema_version"), values, strict=True))

    def part(self, kind: str, model: Model, temperature: Temperature, number: int) -> str:
        """The name of one durable part."""
        return f"{self.place(kind, model, temperature)}/part-{number:05d}.parquet"


Run = RunOf[AuditConfig]
"""An audit."""


def begin(config: Config, *, fresh: bool = False) -> RunOf[Config]:
    """Open the run folder: a new one, or the same run to go on with.

    Args:
        config: what to run.
        fresh: remove what an earlier run left in the folder and start over.

    Raises:
        UsageError: the folder holds something else; a model cannot be used.
    """
    models = [GIVEN] if _own_embeddings(config) else find_models(config)
    storage = Storage(config.out)
    identity: dict[str, Any] = {
        "config": config.identity(),
        "models": {m.label: {"fingerprint": m.fingerprint, "max_length": m.max_length} for m in models},
        "versions": {"tempscale": tempscale.__version__}
        | {name: metadata.version(name) for name in (*_VERSIONS, *_FURTHER_VERSIONS.get(config.command, ()))},
    }
    identity["config"]["embedding"]["models"] = [m.label for m in models]
    hide_secrets(identity["config"], config.reads)
    if config.command != "audit":  # Audits came first, and their folders do not say so.
        identity["command"] = config.command
    found = _begun(storage)
    if found is not None:
        own = _OURS_OF.get(found["identity"].get("command", "audit"), ())
        # Before its corpus was read to the end a run holds nothing worth keeping: a mistyped --corpus blocks no folder.
        worth = [name for name in _WORTH if name.split("/")[0] in own]
        if fresh or not any(map(storage.exists, (SHARDED, DONE, *worth))):
            for name in (*_OURS, *own, BEGUN):
                storage.remove(name)
            found = None
    if found is None:
        try:
            storage.write_json(
                BEGUN,
                {"identity": identity, "run": uuid.uuid4().hex[:12], "started": now(), "processor": processor()},
            )
        except IncompleteRun as error:  # Nothing was begun, and starting again would not help.
            raise UsageError(
                str(error).replace("start the same command again", "choose an --out that can be written")
            ) from None
    else:
        command = found["identity"].get("command", "audit")
        if command != config.command:
            raise UsageError(
                f"'{shown(config.out)}' holds a run of tempscale {command}, and this is tempscale {config.command}. "
                "Choose another --out, or start over in this folder with --fresh"
            )
        differences = _differences(found["identity"], identity)
        if differences:
            raise UsageError(
                f"'{shown(config.out)}' holds a different run: {'; '.join(differences)}. "
                "Choose another --out, or start over in this folder with --fresh"
            )
    storage.sweep()
    if (dead := lock.took_over(storage)) is not None:
        seen = datetime.datetime.fromtimestamp(dead["renewed"], datetime.UTC).isoformat(timespec="seconds")
        record = {"host": dead["host"], "process": dead["pid"], "last_seen": seen, "taken_over": now()}
        storage.write_json(f"{TAKEOVERS}/{uuid.uuid4().hex[:12]}.json", record)
    done = storage.exists(DONE)
    if done:
        storage.remove("shards")  # Still there where the process was killed between the two steps of `complete`.
    return RunOf(config, storage, models, config.temperatures(), done)


def _own_embeddings(config: RunConfig) -> bool:
    return isinstance(config, AuditConfig) and config.corpus.embedding_column is not None


def find_models(config: RunConfig) -> list[Model]:
    """The models of a run, each found, of a supported family, fit for every temperature, and fingerprinted.

    Raises:
        UsageError: one cannot be found or is not supported.
    """
    from tempscale.loading import check_temperatures
    from tempscale.tokens import Tokenizer

    models: list[Model] = []
    for name in config.embedding.models or [checkpoint.default_model()]:
        try:
            folder = checkpoint.resolve(name)
            check_temperatures(folder, config.temperatures())
            limit = Tokenizer(folder, config.embedding.max_length).max_length
        except ValueError as error:
            raise UsageError(str(error)) from None
        fingerprint = checkpoint.fingerprint(folder)
        label = checkpoint.label(name)
        if any(other.fingerprint == fingerprint for other in models):
            raise UsageError(f"model '{name}' has the same files as another model of the run; give each once")
        if any(other.label == label for other in models):
            label = f"{label}-{fingerprint[:8]}"
        # A folder is given to workers by its full path: their working directory is another.
        models.append(Model(label, str(folder.resolve()) if os.path.isdir(name) else name, fingerprint, limit))
    return models


def commonest_reason(run: RunOf[Any], model: Model) -> str:
    """Why most of what a model rejected was, as the end of a sentence; nothing where nothing was."""
    reasons: Counter[str] = Counter()
    for name in run.storage.list(f"rejected/model={model.label}"):
        reasons.update(run.storage.read_table(name, ["reason"]).column("reason").to_pylist())
    return f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""


def facts(run: RunOf[Any]) -> dict[str, Any]:
    """What run.json says of every run, whatever its command."""
    begun = started(run)
    noted = [*run.storage.list(EXCEPTIONS), *run.storage.list(f"queries/{EXCEPTIONS}")]
    exceptions = [("queries: " if name.startswith("queries/") else "") + run.storage.read_json(name) for name in noted]
    exceptions += processors(run.storage, {begun["processor"], processor()})
    models = {m.label: {"name": m.label, "fingerprint": m.fingerprint, "max_length": m.max_length} for m in run.models}
    return {
        "tempscale": tempscale.__version__,
        "run": begun["run"],
        "night": night(run),
        "started": begun["started"],
        "finished": now(),
        "config": described(run),
        "models": models,
        "versions": begun["identity"]["versions"] | {"python": platform.python_version()},
        "processor": processor(),
        "byte_identity_exceptions": exceptions,
        "taken_over": [run.storage.read_json(name) for name in run.storage.list(TAKEOVERS)],
    }


def described(run: RunOf[Any]) -> dict[str, Any]:
    """The configuration as it may be written down."""
    config = run.config.model_dump(mode="json", exclude={"execution": {"address"}})  # An address may hold a secret.
    hide_secrets(config, run.config.reads)
    config["out"] = shown(config["out"])
    if (cache := config["execution"].get("cache")) is not None:
        config["execution"]["cache"] = shown(cache)
    return dict(config)


def complete(run: RunOf[Any], record: dict[str, Any]) -> None:
    """Write run.json, whose presence means that the run is complete, and drop what only the run itself needed."""
    run.storage.write_json(DONE, record)
    for name in ("shards", "queries/shards"):
        run.storage.remove(name)


def finished(folder: str, called: str = "", mend: str = "") -> Storage:
    """The folder of a finished run.

    Args:
        folder: where it should be.
        called: what stands before the folder in the sentence of the error, such as an option's name.
        mend: what stands at its end.

    Raises:
        UsageError: the storage cannot be reached, or there is no finished run in the folder.
    """
    storage = Storage(folder)
    storage.check_reachable()
    if not storage.exists(DONE):
        raise UsageError(f"{called}'{shown(folder)}' holds no finished run: there is no {DONE} in it{mend}")
    return storage


def started(run: RunOf[Any]) -> dict[str, Any]:
    """When and on what processor the run began."""
    begun: dict[str, Any] = run.storage.read_json(BEGUN)
    return begun


def night(run: RunOf[Any]) -> str:
    """The night's date: as given, else of the day on which the run began."""
    return str(getattr(run.config, "night", None) or started(run)["started"][:10])


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _begun(storage: Storage) -> dict[str, Any] | None:
    if storage.exists(BEGUN):
        begun: dict[str, Any] = storage.read_json(BEGUN)
        return begun
    if storage.is_local and os.path.isfile(storage.path("")):
        raise UsageError(f"'{storage.root}' is a file; --out must be a folder")
    if set(storage.names()) - {lock.NAME, "history"}:  # What other runs left in the folder stays through --fresh.
        raise UsageError(f"'{shown(storage.root)}' is not empty and is no tempscale run; choose another --out")
    return None


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """What differs between two identities, each as 'path was OLD, now NEW'."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [d for key in keys for d in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path.removeprefix('config.')} was {old!r}, now {new!r}"]
