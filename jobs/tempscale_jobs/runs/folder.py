"""The run folder: the identity of a run, whether it can be resumed, and its completion."""

from __future__ import annotations

import datetime
import os
import platform
import re
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tempscale
from tempscale.model import checkpoint
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.command import Command, declared
from tempscale_jobs.errors import Damaged, IncompleteRun, UsageError
from tempscale_jobs.runs import lock
from tempscale_jobs.runs.provenance import BELOW, on_this_machine, processor, processors
from tempscale_jobs.runs.storage import Known, Storage
from tempscale_jobs.tables.columns import SCHEMA_VERSION
from tempscale_jobs.tables.finished import completed, current_name
from tempscale_jobs.urls import masked, without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

BEGUN, SHARDED, PLANNED, DONE = "begun.json", "shards/index.json", "shards/plan.json", "run.json"
CALIBRATION = "calibration.json"
"""The file of the cosines of random pairs of texts, by length."""
REMOVE = "remove.txt"
"""The ids of the texts of an audit that are found too often and may go, one a line."""
REPORT = "report.html"
INVENTORY = "partials/inventory.json"
"""The file with a copy of run.json, and with the size and digest of each file of a finished run; see `runs.inventory`."""
SIZES = "shards/sizes.json"
"""The sizes of shards of a run that began on workers with GPUs."""
EXCEPTIONS = "partials/exceptions"
"""Files of one sentence each, on bytes that may differ from those of another run of the same texts."""
TOKENISING = "partials/tokenising"
"""What tokenised the texts of each model: three files of which each is written once."""
TOKENISED, TOKIE_DIFFERS, AGAIN = "by.json", "differs.json", "again.json"
"""What tokenises many texts; the first text for which tokie gave other ids; that what it had tokenised is gone."""
COMPUTED_IN = "partials/computed_in.json"
"""The precision of the run's models, if anything but float32 was requested."""
TAKEOVERS = "partials/takeovers"
"""Records of the dead runs whose lock was taken over."""
LOST = "partials/lost"
"""Records of lost workers."""
UNEXPECTED = "unexpected.json"
"""The place of the last unexpected error, perhaps from before a run began; see `cli.start`."""
_OURS = (
    DONE, REPORT, "figures", "tables", "texts", "factors", "neighbours", "queries", "rejected", "partials", "shards",
    "status.json", "pruned.json", CALIBRATION, REMOVE,
)  # fmt: skip
"""Names that runs of all commands write; `Command.files` has those of one command."""
_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "scipy", "numba", "pyarrow", "ray", "polars")


@dataclass(frozen=True)
class Model:
    """A model of the run."""

    label: str
    name: str
    fingerprint: str
    max_length: int
    """The window in tokens."""
    document_prompt: str = ""
    """The text before every text of a corpus."""
    query_prompt: str = ""
    similarity: str = "cosine"
    """The checkpoint's measure for comparing embeddings."""
    settings: str = ""
    """The digest of its files except the weights: they decide how texts are tokenised."""
    seen: str = ""
    """The state of its files, and the machine, when the driver read them; see `workers.loaded`."""
    revision: str = ""
    """The revision of a hub name when the run began."""
    own_temperature: float = 1.0
    """What the checkpoint's configuration divides its logits by, beside √d."""

    def prompt(self, role: str) -> str:
        """The text before texts of a role, «query» or «document»."""
        return self.query_prompt if role == "query" else self.document_prompt

    def fitted(self, temperature: Temperature, corrections: list[dict[str, Any]]) -> dict[str, Any]:
        """The content of a file of corrections that were fitted to this model's embeddings; see `config.fitted`."""
        model = {"name": self.label, "fingerprint": self.fingerprint, "max_length": self.max_length}
        return {"model": model | {"temperature": temperature.canonical}, "corrections": corrections}

    def identity(self) -> dict[str, Any]:
        """All that decides the tables: its files, its window and its prompts, if there are any."""
        prompts = {role: self.prompt(role) for role in ("document", "query") if self.prompt(role)}
        return {"fingerprint": self.fingerprint, "max_length": self.max_length} | ({"prompts": prompts} if prompts else {})


GIVEN = Model("given", "given", "", 0)
"""The model of a run with a user's embeddings."""


def place(kind: str, model: Model | str, temperature: Temperature | None = None) -> str:
    """The folder of one model (or its label), or of one model and temperature, below texts/, factors/, partials/…"""
    folder = f"{kind}/model={model if isinstance(model, str) else model.label}"
    return folder if temperature is None else f"{folder}/temperature={temperature.slug}"


def numbered(folder: str, number: int) -> str:
    """The name of a durable part in a folder; only functions of this file make such names."""
    return f"{folder}/part-{number:08d}.parquet"


def number_of(name: str) -> int | None:
    """The number in a name that `numbered` made; None for another."""
    match = re.search(r"/part-(\d{8})\.parquet$", name)
    return None if match is None else int(match[1])


def numbered_in(folder: str, unit: int, number: int) -> str:
    """The name of a durable part of one unit of a source."""
    return f"{folder}/part-{unit:08d}-{number:08d}.parquet"


def of_unit(what: str, unit: int) -> str:
    """The beginning of the name of a file about one unit of a source, which is kept until the run completes."""
    return f"shards/{what}-{unit:08d}"


def cached(folder: str, number: int) -> str:
    """The name of a part of texts that come from the cache."""
    return f"{folder}/part-cached-{number:08d}.parquet"


def tile(folder: str, i: int, j: int, what: str = "") -> str:
    """The name of a finished super-tile's file, or of one of its results, `what`."""
    return f"{folder}/tile-{i:08d}-{j:08d}{what and '-'}{what}.parquet"


def means_by_text(folder: str) -> str:
    """The file with the figures by text of a finished step."""
    return f"{folder}/text_means.parquet"


def all_means_by_text(storage: Storage, folder: str) -> list[str]:
    """The files with the figures by text of a step: one for each block, or one; none if the step was left out."""
    single_file = means_by_text(folder)
    return storage.list(f"{folder}/text_means") or ([single_file] if storage.exists(single_file) else [])


def means_of_block(folder: str, number: int) -> str:
    """The file with the figures of one block's texts, if each block has a file."""
    return numbered(f"{folder}/text_means", number)


def part(kind: str, model: Model, temperature: Temperature | None, number: int) -> str:
    """The name of a durable part of one model, or of one model and temperature."""
    return numbered(place(kind, model, temperature), number)


@dataclass(frozen=True)
class Run:
    """One run and its folder, without its configuration, of which each step gets only sections."""

    storage: Storage
    models: list[Model]
    temperatures: list[Temperature]
    night: str
    """The night's date: the option's, or the day on which the run began."""
    complete: bool = False
    """Whether this run is already finished in the folder."""
    verified_by: tuple[Model, ...] = ()
    """The models of [verify]: that of the vectors, then the candidates."""
    other_models: tuple[Model, ...] = ()
    """The models of `model:NAME` in `what_if`, in their order."""

    @property
    def read_models(self) -> tuple[Model, ...]:
        """All models whose files the run reads."""
        return (*self.models, *self.verified_by, *self.other_models)

    def place(self, kind: str, model: Model, temperature: Temperature | None = None) -> str:
        """The folder of a model, or of a model and temperature, in texts/, factors/, partials/…"""
        return place(kind, model, temperature)

    def part(self, kind: str, model: Model, temperature: Temperature | None, number: int) -> str:
        """The name of one durable part."""
        return part(kind, model, temperature, number)

    def below(self, name: str) -> Run:
        """The same run in a subfolder."""
        return replace(self, storage=Storage(f"{self.storage.root}/{name}"))

    @property
    def taus(self) -> str:
        """The temperatures as a list for sentences."""
        return ", ".join(temperature.canonical for temperature in self.temperatures)

    def named(self, model: Model) -> str:
        """The end of a stage's name, which names the model; empty if the run has only one."""
        return f" of {model.label}" if len(self.models) > 1 else ""

    def key(self, model: Model, temperature: Temperature) -> dict[str, Any]:
        """The columns that every table begins with."""
        values = (model.label, temperature.canonical, temperature.tau, SCHEMA_VERSION)
        return dict(zip(("model", "temperature", "tau", "schema_version"), values, strict=True))


def begin(config: Command, *, fresh: bool = False) -> Run:
    """Create the run's folder or resume the same run in it; `fresh` first removes an earlier run's files."""
    models = ([GIVEN] if config.takes_embeddings else find_models(config)) if config.runs_models else []
    verified_by = [] if config.verification is None else find_models(config.verification)
    other_models = [] if config.other_models is None else find_models(config.other_models, beside=models)
    storage = Storage(config.out)
    identity: dict[str, Any] = {
        "config": config.identity(),
        "models": {m.label: m.identity() for m in models + verified_by + other_models},
        "versions": {"tempscale": tempscale.__version__}
        | {name: metadata.version(name) for name in (*_VERSIONS, *config.packages)},
    }
    if config.runs_models:
        identity["config"]["embedding"]["models"] = [m.label for m in models]
    identity["config"] = without_secrets(identity["config"])
    if config.command != "audit":  # An audit's folder does not name its command, because audits came first.
        identity["command"] = config.command
    previous = begun_record(storage, fresh)
    if previous is not None:
        command = previous["identity"].get("command", "audit")
        command_class = declared(command)
        # Before the corpus is read nothing is worth keeping, so that a mistyped --corpus does not block the folder.
        resumable = (SHARDED, PLANNED, DONE, INVENTORY, *(command_class.worth_resuming if command_class else ()))
        if fresh or not any(map(storage.exists, resumable)):
            for name in (*names_of(command), BEGUN):
                storage.remove(name)
            previous = None
    if previous is None:
        try:
            storage.write_json(
                BEGUN,
                {"identity": identity, "run": uuid.uuid4().hex[:12], "started": now(), "processor": processor()},
            )
        except IncompleteRun as error:  # The same command would fail again.
            raise UsageError(
                str(error).replace("start the same command again", "choose an --out that can be written")
            ) from None
    else:
        if command != config.command:
            raise UsageError(
                f"'{masked(config.out)}' holds a run of tempscale {command}, and this is tempscale {config.command}. "
                "Choose another --out, or start over in this folder with --fresh"
            )
        differences = _differences(previous["identity"], identity)
        if differences:
            raise UsageError(
                f"'{masked(config.out)}' holds a different run: {'; '.join(differences)}. "
                "Choose another --out, or start over in this folder with --fresh"
            )
    storage.sweep()
    if (dead_run := lock.took_over(storage)) is not None:
        last_seen = datetime.datetime.fromtimestamp(dead_run["renewed"], datetime.UTC).isoformat(timespec="seconds")
        record = {"host": dead_run["host"], "process": dead_run["pid"], "last_seen": last_seen, "taken_over": now()}
        storage.write_json(f"{TAKEOVERS}/{uuid.uuid4().hex[:12]}.json", record)
    is_complete = storage.exists(DONE) or storage.exists(INVENTORY)
    if is_complete:
        storage.remove("shards")  # The process may have been killed between the two steps of `complete`.
    start_time = str(storage.read_object(BEGUN)["started"])
    night = getattr(config, "night", None) or start_time[:10]
    return Run(storage, models, config.temperatures(), night, is_complete, tuple(verified_by), tuple(other_models))


def has_read(storage: Storage) -> bool:
    """Whether the run in a folder has begun to read its inputs."""
    return any(map(storage.exists, (SHARDED, PLANNED, DONE)))


def find_models(config: Command, beside: Sequence[Model] = ()) -> list[Model]:
    """Find and fingerprint the models of a run; a UsageError if one is missing, not supported, or given twice.

    None may be one of those `beside` them, which the run has too; a window and prompts that were chosen for these are taken
    as far as the others have them.
    """
    from tempscale.model.loading import check_config, check_shapes, check_temperatures
    from tempscale.model.pooling import load_head
    from tempscale.model.settings import Settings
    from tempscale.temperature.own import own_temperature

    models: list[Model] = []
    for name in config.model_names:
        try:
            folder = checkpoint.resolve(name)
            state = checkpoint.state(folder)
            model = check_config(folder)
            check_temperatures(model, config.temperatures())
            checkpoint.check_weights(folder)
            check_shapes(folder, model)
            window, own = _window(folder, config.embedding.max_length, clipped=bool(beside)), own_temperature(model)
            settings, head = Settings.of(folder), load_head(folder)
            prompts = {f"{role}_prompt": settings.prompt(config.embedding.prompts, role) for role in ("document", "query")}
            for prompt in prompts.values():
                head.check_prompt(prompt)
            fingerprint, digest = checkpoint.fingerprint(folder), checkpoint.settings_digest(folder)
        except (ValueError, OSError) as error:
            raise UsageError(str(error)) from None
        if checkpoint.state(folder) != state:
            raise UsageError(f"the files of model '{name}' changed while they were read; start again when they are whole")
        label = checkpoint.label(name)
        known = [*beside, *models]
        if any(other.fingerprint == fingerprint for other in known):
            raise UsageError(f"model '{name}' has the same files as another model of the run; give each once")
        if any(other.label == label for other in known):
            label = f"{label}-{fingerprint[:8]}"
        if config.embedding.prompts == "model" and not settings.has_prompts and not beside:
            raise UsageError(
                f"model {label} names no prompts in its config_sentence_transformers.json; leave out --prompts model"
            )
        # Workers have another working directory, so they get a full path.
        path, revision = checkpoint.pinned(name, folder)
        fields = {
            "settings": digest,
            "seen": on_this_machine(state),
            "revision": revision,
            "similarity": settings.similarity,
        }
        models.append(Model(label, path, fingerprint, window, **prompts, **fields, own_temperature=own))
    return models


def _window(folder: Path, asked: Any, *, clipped: bool) -> int:
    """The window of a model in tokens; `clipped` to its limit, or a ModelError if more are asked."""
    from tempscale.model.tokens import Tokenizer

    if clipped and isinstance(asked, int):
        return min(asked, Tokenizer(folder, "limit").limit)
    return Tokenizer(folder, asked).max_length


def check_models(run: Run) -> None:
    """Raise an IncompleteRun unless this machine still has the files of the models that the run began with."""
    for model in run.read_models:
        if model.fingerprint and checkpoint.fingerprint(checkpoint.resolve(model.name)) != model.fingerprint:
            raise IncompleteRun(
                f"the files of model {model.label} in '{model.name}' were exchanged while the run went on; nothing of the "
                "new ones was kept. Put the old ones back and start the same command again, or start over with --fresh"
            )


def window(config: Command) -> int:
    """The window in tokens of the first model of a run."""
    from tempscale.model.tokens import Tokenizer

    try:
        return Tokenizer(checkpoint.resolve(config.model_names[0]), config.embedding.max_length).max_length
    except ValueError as error:
        raise UsageError(str(error)) from None


def gives_nothing(run: Run, model: Model, what: str) -> UsageError:
    """The error of a model that rejects every text or pair of a run."""
    reasons = rejected_reasons(run, model)
    most_frequent = f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
    return UsageError(
        f"model {model.label} gives no finite {what} under all of τ {run.taus}{most_frequent}; leave out the τ or the "
        "option that causes it"
    )


def rejected_reasons(run: Run, model: Model) -> Counter[str]:
    """The number of texts or pairs that a model rejected, by reason."""
    reasons: Counter[str] = Counter()
    for name in run.storage.list(run.place("rejected", model)):
        reasons.update(run.storage.read_table(name, ["reason"]).column("reason").to_pylist())
    return reasons


def facts(run: Run, config: Command) -> dict[str, Any]:
    """The facts in run.json that all commands share."""
    begun = started(run)
    exceptions = [run.storage.read_json(name) for name in run.storage.list(EXCEPTIONS)]
    for below in BELOW:
        exceptions += [f"{below}: {run.storage.read_json(name)}" for name in run.storage.list(f"{below}/{EXCEPTIONS}")]
    exceptions += processors(run.storage, {begun["processor"], processor()})
    computed = dict[str, Any]()
    if config.runs_models and not config.takes_embeddings:
        precision = {"precision": config.embedding.precision}
        computed["computed_in"] = run.storage.read_json(COMPUTED_IN) if run.storage.exists(COMPUTED_IN) else precision
    models = {m.label: {"name": m.label} | m.identity() | {"similarity": m.similarity} | computed for m in run.models}
    for model in run.models:
        if model.revision:
            models[model.label]["revision"] = model.revision
        if model.own_temperature != 1:
            models[model.label]["own_temperature"] = model.own_temperature
        for name, key in ((TOKENISED, "tokenised_by"), (TOKIE_DIFFERS, "tokenised_again")):
            if run.storage.exists(noted := f"{run.place(TOKENISING, model)}/{name}"):
                models[model.label][key] = run.storage.read_json(noted)
    return {
        "tempscale": tempscale.__version__,
        "run": begun["run"],
        "night": run.night,
        "started": begun["started"],
        "finished": now(),
        "config": described(config),
        "command_line": typed(config),
        "models": models,
        "versions": begun["identity"]["versions"] | {"python": platform.python_version()},
        "processor": processor(),
        "byte_identity_exceptions": exceptions,
        "taken_over": [run.storage.read_json(name) for name in run.storage.list(TAKEOVERS)],
        "lost_workers": [run.storage.read_json(name) for name in run.storage.list(LOST)],
    }


def described(config: Command) -> dict[str, Any]:
    """The configuration as data, without secrets, for files."""
    data = config.model_dump(mode="json", exclude={"execution": {"address"}})  # An address may contain a secret.
    described: dict[str, Any] = without_secrets(data)
    return described


def typed(config: Command) -> dict[str, Any] | None:
    """The command line of a run, without secrets; None where the run was not started by one."""
    if (line := config.command_line) is None:
        return None
    options = {name: [masked(word) for word in words] for name, words in line["options"].items()}
    return line | {"options": options}


def complete(run: Run, record: dict[str, Any]) -> None:
    """Write run.json, which marks the run as complete, and remove the shards, which are no longer needed."""
    run.storage.write_json(DONE, record)
    for name in ("shards", *(f"{below}/shards" for below in BELOW)):
        run.storage.remove(name)


def finished(folder: str, called: str = "", mend: str = "") -> Storage:
    """The storage of a finished run; the error begins with `called`, such as an option's name, and ends with `mend`."""
    storage = Storage(folder)
    storage.check_reachable()
    if not storage.exists(DONE):
        if storage.exists(BEGUN):
            raise UsageError(f"{called}'{masked(folder)}' holds a run that is not finished; start its command again")
        raise UsageError(f"{called}'{masked(folder)}' holds no finished run: there is no {DONE} in it{mend}")
    return storage


def finished_audit(folder: str, called: str = "", mend: str = "") -> tuple[Storage, dict[str, Any]]:
    """The storage of a finished audit and the content of its run.json; the error begins and ends as that of `finished`."""
    storage = finished(folder, called, mend)
    try:
        record = storage.read_json(DONE)
    except Damaged:
        record = None
    command = record.get("command", "audit") if isinstance(record, dict) else None
    if command == "audit" and "models" in record and "corpus" in record.get("config", {}):
        return storage, record
    content = "no audit" if command in (None, "audit") else f"a run of tempscale {command}"
    raise UsageError(f"{called}'{masked(folder)}' holds {content}{mend}")


def parts_of_texts(storage: Storage) -> list[str]:
    """The parts of texts/ of the first model and temperature: all have the same texts, but for rejected ones.

    An empty list if they were pruned.
    """
    names = storage.list("texts", ".parquet")
    first = names[0].rpartition("/")[0] if names else ""
    return [name for name in names if name.startswith(f"{first}/")]


def names_of(command: str) -> tuple[str, ...]:
    """The names of files and folders that runs of a command make, except begun.json."""
    command_class = declared(command)
    return (*_OURS, *(() if command_class is None else command_class.files))


def remove_results(storage: Storage, command: str) -> None:
    """Remove all that a run has made, except begun.json."""
    for name in names_of(command):
        if name != "status.json":
            storage.remove(name)


def is_whole(storage: Storage, ended: str) -> bool:
    """Whether the last file of a step, and all files that it names, exist."""
    return storage.exists(ended) and all(map(storage.exists, storage.read_json(ended).get("files", ())))


def started(run: Run) -> dict[str, Any]:
    """The content of begun.json."""
    return run.storage.read_object(BEGUN)


def now() -> str:
    """The time in UTC, in seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def begun_record(storage: Storage, fresh: bool) -> dict[str, Any] | None:
    """The content of begun.json; None in an empty folder; a UsageError if it is damaged or the folder is not a run's."""
    if storage.exists(BEGUN):
        try:
            begun = storage.read_object(BEGUN)
            if not isinstance(begun["identity"], dict):
                raise Damaged(f"'{masked(storage.root)}/{BEGUN}' is damaged: it has no identity")
        except Damaged as error:
            if fresh:
                return {"identity": {}}
            raise UsageError(
                f"{error}; it says which run this is, so start over with --fresh or choose another --out"
            ) from None
        return begun
    if storage.is_local and os.path.isfile(storage.path("")):
        raise UsageError(f"'{storage.root}' is a file; --out must be a folder")
    if set(storage.names()) - {lock.NAME, UNEXPECTED, "history"}:  # --fresh keeps the record of other runs.
        raise UsageError(f"'{masked(storage.root)}' is not empty and is no tempscale run; choose another --out")
    return None


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The differences between two identities, each as 'path was OLD, now NEW'."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [d for key in keys for d in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path.removeprefix('config.')} was {old!r}, now {new!r}"]


def load_tables(storage: Storage) -> dict[str, pl.DataFrame]:
    """The tables of a finished run, by their names in this version; columns that an earlier one did not write are null."""
    names = [path.removeprefix("tables/").removesuffix(".parquet") for path in storage.list("tables", ".parquet")]
    tables = dict(_named_table(storage, name) for name in names)
    return Known(tables, lambda name: missing_table(storage, name))


def missing_table(storage: Storage, name: str) -> Damaged:
    """The error of a run without one of its tables."""
    path = f"{storage.root}/tables/{name}.parquet"
    return Damaged(f"table {name} is missing: there is no '{masked(path)}'", path)


def load_table(storage: Storage, name: str) -> pl.DataFrame:
    """One of these tables; Damaged if it is missing or not what was written."""
    return _named_table(storage, name)[1]


def _named_table(storage: Storage, name: str) -> tuple[str, pl.DataFrame]:
    """The name of a stored table in this version, and its content."""
    import polars as pl  # Workers never need it.

    table = storage.read_table(f"tables/{name}.parquet")
    name = current_name(name, table)
    return name, pl.DataFrame(pl.from_arrow(completed(name, table)))


def dimensions(run: Run, model: Model, temperature: Temperature) -> int:
    """The dimension of the embeddings in texts/."""
    table = run.storage.read_table(run.storage.list(run.place("texts", model, temperature))[0], ["embedding"])
    return int(table.schema.field("embedding").type.list_size)
